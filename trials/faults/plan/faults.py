"""Plans what is done to which process, for how long, alone or in pairs: all of it from one number.

Pure: the same seed, victims and kinds give the same incidents, in the same order. The time of an incident depends on the
processes: the run (trials/faults/run.py) continues with the next one when they work again and messages flow.

Each victim suffers each kind once before any fault is repeated. So a short run has most of them, and the counts of a long run
are even.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

LEASE_S = 5
"""`gateway.lease_ms` of the run: short, so that many leases pass in it."""


class Victim(StrEnum):
    """ENGINE: the one that works. STANDBY: the one that waits; after a takeover these are other processes."""

    GATEWAY_A = "gateway a"
    GATEWAY_B = "gateway b"
    ENGINE = "engine"
    STANDBY = "standby"
    KAFKA = "Kafka"
    EXECUTOR = "executor"
    BRIDGE_A = "bridge a"
    BRIDGE_B = "bridge b"
    BROKER = "Mosquitto"
    MATCHER = "matcher"


class Kind(StrEnum):
    """CUT: connections are reset, and new ones refused. STALL: nothing passes, and afterwards everything does. DELAY: every byte
    comes later. FULL_DISK: nothing more can be written where its data is. CLOCK_STEP: its wall clock jumps, and later back.
    OPEN_TRANSACTION: a backend leaves one open in every partition of the messages, and aborts it later.
    """

    KILL = "killed"
    FREEZE = "frozen"
    FREEZE_AND_KILL = "frozen, then killed"
    CUT = "cut off"
    STALL = "held up"
    DELAY = "slow"
    FULL_DISK = "full disk"
    CLOCK_STEP = "clock step"
    OPEN_TRANSACTION = "open transaction"


class Part(StrEnum):
    """The part that suffers: of an engine, which is a family of processes, or of a process's connections."""

    ALL = ""
    DRIVER = "driver"
    JVM = "JVM"
    KAFKA = "from Kafka"
    DEVICES = "from devices"
    BROKER = "from Mosquitto"


ON_PROCESSES = frozenset({Kind.KILL, Kind.FREEZE, Kind.FREEZE_AND_KILL})
ON_CONNECTIONS = frozenset({Kind.CUT, Kind.STALL, Kind.DELAY})
KILLS = frozenset({Kind.KILL, Kind.FREEZE_AND_KILL})
STOPS_ENGINE = frozenset({Victim.ENGINE, Victim.KAFKA, Victim.EXECUTOR})
"""Micro-batches wait for all of these."""

_GATEWAY = (*ON_PROCESSES, *ON_CONNECTIONS, Kind.CLOCK_STEP)
SUFFERS = {
    Victim.GATEWAY_A: frozenset(_GATEWAY),
    Victim.GATEWAY_B: frozenset(_GATEWAY),
    Victim.ENGINE: ON_PROCESSES | ON_CONNECTIONS | {Kind.FULL_DISK},
    Victim.STANDBY: ON_PROCESSES,
    Victim.KAFKA: ON_PROCESSES | {Kind.FULL_DISK, Kind.OPEN_TRANSACTION},
    Victim.EXECUTOR: ON_PROCESSES,
    Victim.BRIDGE_A: frozenset(_GATEWAY),
    Victim.BRIDGE_B: frozenset(_GATEWAY),
    Victim.BROKER: frozenset({Kind.FREEZE}),
    Victim.MATCHER: frozenset(_GATEWAY),
}
"""Mosquitto without persistence forgets what it has confirmed to devices when it is killed."""
GATEWAYS = (Victim.GATEWAY_A, Victim.GATEWAY_B)
BRIDGES = (Victim.BRIDGE_A, Victim.BRIDGE_B)
ENGINES = (Victim.ENGINE, Victim.STANDBY)
"""Suffer together more often than other pairs, half of the time at the same moment."""

_PAIRS = 0.4
"""Share of the incidents in which two processes suffer."""
_LATEST_S = 8.0
"""The longest time between the first and the second fault of a pair: the second often begins during the recovery."""
_LONGEST_REST_S = 6.0
_DELAYS_S = (0.05, 1.5)
_STEPS_S = ((1.0, 120.0), (7_200.0, 7_200.0), (864_000.0, 864_000.0))
"""Ranges of clock steps: a correction, a wrong time zone, and a clock that was never set."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """after_s: from the beginning of its incident. lasts_s: 0 for a mere kill. by_s: seconds of a delay in each direction, or
    of a clock step, which may be negative.
    """

    victim: Victim
    kind: Kind
    part: Part = Part.ALL
    after_s: float = 0.0
    lasts_s: float = 0.0
    by_s: float = 0.0

    @property
    def name(self) -> str:
        """Names the fault, without its numbers."""
        part = f" {self.part}" if self.kind in ON_CONNECTIONS else ""
        return f"{self.kind}{part}"

    def __str__(self) -> str:
        family = f" ({self.part})" if self.part in (Part.DRIVER, Part.JVM) else ""
        by = f" by {self.by_s:+.1f} s" if self.by_s else ""
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.victim}{family} {self.name}{by}{lasts}"


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A fault, or two of different victims. rest_s: before the next incident, when everything works again."""

    faults: tuple[Fault, ...]
    rest_s: float


def incidents(seed: int, victims: Collection[Victim], kinds: Collection[Kind]) -> Iterator[Incident]:
    """Yields incidents without end. Raises ValueError when nothing is left to do to anybody."""
    dice = random.Random(f"{seed}/faults")
    deal = _Deal(dice, [(victim, kind) for victim in Victim for kind in Kind if _applies(victim, kind, victims, kinds)])
    while True:
        first = _fault(dice, *deal.next())
        found = (first,)
        other = deal.of_another(first.victim) if dice.random() < _PAIRS else None
        if other is not None:
            at_once = {first.victim, other[0]} == set(ENGINES) and dice.random() < 0.5
            found = (first, _fault(dice, *other, after_s=0.0 if at_once else dice.uniform(0.0, _LATEST_S)))
        yield Incident(faults=found, rest_s=dice.uniform(0.0, _LONGEST_REST_S))


def _applies(victim: Victim, kind: Kind, victims: Collection[Victim], kinds: Collection[Kind]) -> bool:
    return victim in victims and kind in kinds and kind in SUFFERS[victim]


class _Deal:
    """Cards that are shuffled again when none is left."""

    def __init__(self, dice: random.Random, cards: list[tuple[Victim, Kind]]) -> None:
        if not cards:
            raise ValueError("none of these victims suffers any of these kinds")
        self._dice = dice
        self._cards = cards
        self._left: list[tuple[Victim, Kind]] = []

    def next(self) -> tuple[Victim, Kind]:
        if not self._left:
            self._left = self._dice.sample(self._cards, len(self._cards))
        return self._left.pop()

    def of_another(self, victim: Victim) -> tuple[Victim, Kind] | None:
        """The next one of another victim, for an engine of the other engine if there is one left; None = there is none before the
        cards are shuffled again."""
        places = [place for place in range(len(self._left) - 1, -1, -1) if self._left[place][0] is not victim]
        twins = [place for place in places if victim in ENGINES and self._left[place][0] in ENGINES]
        return self._left.pop((twins or places)[0]) if places else None


def _fault(dice: random.Random, victim: Victim, kind: Kind, *, after_s: float = 0.0) -> Fault:
    by_s = 0.0
    if kind is Kind.DELAY:
        by_s = dice.uniform(*_DELAYS_S)
    elif kind is Kind.CLOCK_STEP:
        by_s = dice.choice((-1, 1)) * dice.uniform(*dice.choice(_STEPS_S))
    return Fault(
        victim=victim,
        kind=kind,
        part=_part(dice, victim, kind),
        after_s=after_s,
        lasts_s=0.0 if kind is Kind.KILL else _lasts_s(dice),
        by_s=by_s,
    )


def _part(dice: random.Random, victim: Victim, kind: Kind) -> Part:
    if kind in ON_CONNECTIONS:
        far_side = Part.DEVICES if victim in GATEWAYS else Part.BROKER if victim in BRIDGES else Part.KAFKA
        return dice.choice((Part.KAFKA, far_side))
    if victim is Victim.ENGINE and kind in ON_PROCESSES:
        return dice.choice((Part.DRIVER, Part.JVM) if kind is Kind.KILL else (Part.ALL, Part.DRIVER, Part.JVM))
    return Part.ALL


def _lasts_s(dice: random.Random) -> float:
    """Returns a length that is as often shorter as longer than a lease."""
    return dice.uniform(0.2, LEASE_S) if dice.random() < 0.5 else dice.uniform(LEASE_S, 3 * LEASE_S)
