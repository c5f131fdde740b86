"""Who is killed or frozen, when and for how long, and how the devices behave: all of it from one number.

Pure: the same seed and settings give the same plan. The run (tests/soak/run.py) carries it out.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

LEASE_S = 5
"""`gateway.lease_ms` of the run: short, so that many leases pass in it."""
EXPIRY_S = 4
"""Session expiry interval of the devices whose sessions end."""


class Victim(StrEnum):
    GATEWAY_A = "gateway a"
    GATEWAY_B = "gateway b"
    ENGINE = "engine"
    KAFKA = "Kafka"


class Harm(StrEnum):
    """What is done to a process."""

    KILL = "killed"
    FREEZE = "frozen"
    FREEZE_AND_KILL = "frozen, then killed"


class Part(StrEnum):
    """Of the engine, which is a family of processes."""

    ALL = "all"
    DRIVER = "driver"
    JVM = "jvm"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """at_s: after the beginning of the traffic. frozen_s: 0 for a mere kill. part: ALL for the others, which are one
    process each."""

    at_s: float
    victim: Victim
    harm: Harm
    frozen_s: float = 0.0
    part: Part = Part.ALL

    @property
    def until_s(self) -> float:
        return self.at_s + self.frozen_s

    def __str__(self) -> str:
        part = "" if self.part is Part.ALL else f" ({self.part})"
        freeze = f" for {self.frozen_s:.1f} s" if self.frozen_s else ""
        return f"{self.victim}{part} {self.harm}{freeze}"


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """Of the faults of one victim. pause_s: mean time from the end of one to the next, of which at_least_s is sure."""

    pause_s: float
    at_least_s: float
    kills: float


GATEWAY_RHYTHM = Rhythm(pause_s=13.0, at_least_s=3.0, kills=0.4)
ENGINE_RHYTHM = Rhythm(pause_s=45.0, at_least_s=25.0, kills=0.6)
KAFKA_RHYTHM = Rhythm(pause_s=60.0, at_least_s=30.0, kills=0.4)
RHYTHMS = {
    Victim.GATEWAY_A: GATEWAY_RHYTHM,
    Victim.GATEWAY_B: GATEWAY_RHYTHM,
    Victim.ENGINE: ENGINE_RHYTHM,
    Victim.KAFKA: KAFKA_RHYTHM,
}
FIRST_FAULT_S = 4.0


def faults(seed: int, seconds: float) -> tuple[Fault, ...]:
    """In the order of time; the last freeze is over at `seconds`."""
    each = (_faults_of(victim, random.Random(f"{seed}/{victim}"), seconds) for victim in Victim)
    return tuple(sorted(chain.from_iterable(each), key=lambda fault: fault.at_s))


def _faults_of(victim: Victim, dice: random.Random, seconds: float) -> Iterator[Fault]:
    rhythm = RHYTHMS[victim]
    now_s = FIRST_FAULT_S + dice.uniform(0.0, rhythm.pause_s / 2)
    while now_s < seconds:
        harm = _harm(dice, rhythm)
        frozen_s = 0.0 if harm is Harm.KILL else min(_freeze_s(dice), seconds - now_s)
        part = Part.ALL
        if victim is Victim.ENGINE:
            part = dice.choice((Part.DRIVER, Part.JVM) if harm is Harm.KILL else tuple(Part))
        yield Fault(at_s=now_s, victim=victim, harm=harm, frozen_s=frozen_s, part=part)
        now_s += frozen_s + rhythm.at_least_s + dice.expovariate(1 / (rhythm.pause_s - rhythm.at_least_s))


def _harm(dice: random.Random, rhythm: Rhythm) -> Harm:
    if dice.random() < rhythm.kills:
        return Harm.KILL
    return Harm.FREEZE_AND_KILL if dice.random() < 0.3 else Harm.FREEZE


def _freeze_s(dice: random.Random) -> float:
    """As often shorter as longer than a lease."""
    return dice.uniform(0.2, LEASE_S) if dice.random() < 0.5 else dice.uniform(LEASE_S, 3 * LEASE_S)


class Keeping(StrEnum):
    """How long a device's session lives."""

    KEPT = "kept"
    SHORT = "short"
    CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class Character:
    """One device. level: 4 (MQTT 3.1.1) or 5. expiry_s: told in CONNECT; None = MQTT 3.1.1 cannot say.

    patience_s: how long it stays on a connection that says nothing. will_delay_s: of the wills of all its connections.
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
