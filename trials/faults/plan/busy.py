"""Says which clients get many messages, and when. Pure: the same seed gives the same episodes.

Their queue has the product's defaults (trials/faults/testbed/shape.py), and they are connected, or away for a moment. So nothing
may be dropped for them, and the account counts each message.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trials.faults.plan.characters import Character, Keeping

BUSY: Final = "busy"
"""First part of the client ids."""
DEAF: Final = f"{BUSY}-deaf"
_A_LONG_TIME_S = 86_400
_PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class BusyClient:
    """A client that gets episodes of many messages.

    rate_per_s: from, to; of an episode that lasts `seconds` (from, to). at_once: from, to; messages of an episode without
    duration. rest_s: from, to; before each. is_deaf: it stops reading at times.
    """

    client_id: str
    level: int
    qos: int
    rest_s: tuple[float, float]
    rate_per_s: tuple[int, int] = (0, 0)
    seconds: tuple[float, float] = (0.0, 0.0)
    at_once: tuple[int, int] = (0, 0)
    is_deaf: bool = False

    @property
    def character(self) -> Character:
        return Character(
            client_id=self.client_id,
            keeping=Keeping.KEPT,
            level=self.level,
            expiry_s=_A_LONG_TIME_S if self.level == 5 else None,
            will_delay_s=0,
            patience_s=_PATIENCE_S,
        )


@dataclass(frozen=True, kw_only=True)
class Episode:
    """`count` messages, spread over `seconds` (0 = all at once), after a pause of rest_s."""

    rest_s: float
    seconds: float
    count: int


BUSY_CLIENTS: Final = (
    BusyClient(client_id=f"{BUSY}-steady", level=4, qos=1, rate_per_s=(300, 500), seconds=(10.0, 20.0), rest_s=(10.0, 30.0)),
    BusyClient(client_id=f"{BUSY}-bursts", level=5, qos=2, at_once=(300, 800), rest_s=(5.0, 20.0)),
    BusyClient(client_id=DEAF, level=5, qos=1, rate_per_s=(30, 60), seconds=(10.0, 20.0), rest_s=(5.0, 10.0), is_deaf=True),
)


def episodes(seed: int, client: BusyClient) -> Iterator[Episode]:
    """Yields the episodes of a client, without end."""
    dice = random.Random(f"{seed}/{client.client_id}")
    while True:
        seconds = dice.uniform(*client.seconds)
        count = round(seconds * dice.uniform(*client.rate_per_s)) + dice.randint(*client.at_once)
        yield Episode(rest_s=dice.uniform(*client.rest_s), seconds=seconds, count=count)
