"""Draws how each device behaves, all from one number.

Pure: the same seed gives the same devices.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

EXPIRY_S = 4
"""Session expiry interval of the devices whose sessions end."""


class Keeping(StrEnum):
    """The lifetime of a device's session."""

    KEPT = "kept"
    SHORT = "short"
    CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class Character:
    """The behaviour of a device. level: 4 (MQTT 3.1.1) or 5. expiry_s: sent in CONNECT; None = MQTT 3.1.1 cannot say.

    patience_s: how long it stays on a silent connection. will_delay_s: of the wills of all its connections.
    """

    client_id: str
    keeping: Keeping
    level: int
    expiry_s: int | None
    will_delay_s: int
    patience_s: float


SHARES = ((Keeping.KEPT, 0.62), (Keeping.SHORT, 0.26), (Keeping.CLEAN, 0.12))
_A_LONG_TIME_S = 86_400
_WILL_DELAYS_S = (0, 0, 2, 10)
"""The last one is longer than `EXPIRY_S`: that will is due at the end of the session."""
_PATIENCE_S = (5.0, 5.0, 25.0)


def characters(seed: int, count: int) -> tuple[Character, ...]:
    """Devices of all kinds; those of a kind differ, too."""
    dice = random.Random(f"{seed}/characters")
    return tuple(_character(dice, number, keeping) for number, keeping in enumerate(_keepings(count)))


def _keepings(count: int) -> Iterator[Keeping]:
    for number in range(count):
        place = (number + 0.5) / count
        for keeping, share in SHARES:
            if place < share or keeping is Keeping.CLEAN:
                yield keeping
                break
            place -= share


def _character(dice: random.Random, number: int, keeping: Keeping) -> Character:
    level = 5 if keeping is Keeping.SHORT or number % 2 else 4
    expiry_s = {Keeping.KEPT: _A_LONG_TIME_S, Keeping.SHORT: EXPIRY_S, Keeping.CLEAN: 0}[keeping] if level == 5 else None
    return Character(
        client_id=f"{keeping}-{number}",
        keeping=keeping,
        level=level,
        expiry_s=expiry_s,
        will_delay_s=dice.choice(_WILL_DELAYS_S) if level == 5 and keeping is not Keeping.CLEAN else 0,
        patience_s=dice.choice(_PATIENCE_S),
    )
