"""Tells the driver which messages sessions have dropped, and whether their clients were connected, in an accumulator of Spark.

It needs neither receipts nor the ledger, which may be off, and routed messages have no receipts. A task that is executed again
reports the same once more.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.commands import Command, RecordTransition, Transition
from state.model import ClientId, Outcome

EXAMPLES: Final = 3
"""Clients that a report names."""
DROPPED: Final = (
    Outcome.MAXLEN,
    Outcome.EXPIRED,
    Outcome.DELIVERY_LIMIT,
    Outcome.REJECTED,
    Outcome.TOO_LARGE,
    Outcome.OFFLINE,
)
"""Outcomes of messages that a session drops. The messages of a session that has ended went with it."""
_lock: Final = threading.Lock()
"""Spark's thread adds while the driver pops."""


@dataclass(slots=True)
class Drops:
    """Dropped messages by outcome.

    Attributes:
        connected: Of clients that were connected at the end of the activation.
        offline: Of the others.
        clients: Some of the connected clients, the newest last.
    """

    connected: Counter[str] = field(default_factory=Counter)
    offline: Counter[str] = field(default_factory=Counter)
    clients: tuple[ClientId, ...] = ()

    def merge(self, more: "Drops") -> None:
        self.connected.update(more.connected)
        self.offline.update(more.offline)
        if more.clients:
            self.clients = (*(one for one in self.clients if one not in more.clients), *more.clients)[-EXAMPLES:]


DropsAccumulator: TypeAlias = Accumulator[Drops]


def drops_of(commands: Iterable[Command], client_id: ClientId, *, is_connected: bool) -> Drops | None:
    """Returns the drops of an activation; None = it has dropped nothing.

    Args:
        is_connected: The client is connected after the activation.
    """
    outcomes: list[str] = [
        command.outcome.value
        for command in commands
        if command.__class__ is RecordTransition and command.transition is Transition.FINISHED and command.outcome in DROPPED
    ]
    if not outcomes:
        return None
    counts = Counter(outcomes)
    return Drops(connected=counts, clients=(client_id,)) if is_connected else Drops(offline=counts)


class _Sum(AccumulatorParam[Drops]):
    def zero(self, value: Drops) -> Drops:
        return Drops()

    def addInPlace(self, value1: Drops, value2: Drops) -> Drops:  # noqa: N802 - Spark's name
        with _lock:
            value1.merge(value2)
        return value1


class ReportedDrops:
    """The driver's side. accumulator: tasks add their drops to it."""

    def __init__(self, context: SparkContext) -> None:
        self._sum = Drops()
        self.accumulator: DropsAccumulator = context.accumulator(self._sum, _Sum())

    def pop(self) -> Drops:
        """Returns the drops since the last call. A running micro-batch may add at the same time."""
        total = self._sum
        with _lock:
            popped = Drops(total.connected, total.offline, total.clients)
            total.connected, total.offline, total.clients = Counter(), Counter(), ()
        return popped
