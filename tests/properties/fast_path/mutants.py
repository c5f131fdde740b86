"""The rules of the fast path, broken one by one (docs/protocol.md, section 7): each has to make some history fail.

    python -m tests.properties.fast_path.mutants

A mutant is a patch of the real code: (object, name of its attribute, what it is instead). `make soak` runs this: some take many
histories, because several things have to come together.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sinks.fast_path.chain import Chain, Link
from sinks.fast_path.packet_ids import FastPacketIds
from sinks.fast_path.router_memory import RouterMemory
from sinks.flow_control.wire_meter import WireMeter
from sinks.mqtt.connection.fast_path import Adopted, FastPath
from sinks.mqtt.connection.outbound import Outbound as GatewayOutbound
from state.activation import Activation
from state.connection import Connection
from state.errors import InflightError
from state.events import Event, FastSent
from state.model import MIN_FAST_PACKET_ID, PacketId, Position
from state.outbound.fast_path import adoption
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import InflightWindow
from state.session import Session
from tests.properties.fast_path.story import story_of
from tests.properties.fast_path.world import World

Patch = tuple[Any, str, Any]


def _goes_on_behind(self: Chain, offset: int) -> None:
    self.after = max(self.after, offset)


def _without_gap(self: Chain, previous: int, offset: int) -> Link:
    if offset <= self.after:
        return Link.KNOWN
    return Link.NEXT if self.broken_at is None else Link.BROKEN


def _falls_back(self: Chain, offset: int) -> None:
    self.broken_at = None if self.broken_at is not None and self.broken_at <= offset else self.broken_at
    self.after = offset


def _forgets_what_was_handled(self: FastPath, *_: Any) -> Adopted:
    for position in [taken for taken in self._taken if taken.offset <= self._chains[self._partition].after]:
        del self._taken[position]
    return Adopted(0, 0)


def _lowest(self: FastPacketIds, is_free: Callable[[PacketId], bool]) -> PacketId:
    return next(id_ for id_ in range(MIN_FAST_PACKET_ID, 65_536) if is_free(id_))


def _ignores_below_handled(self: Positions, position: Position) -> bool:
    if position.offset <= self.handled_in(position.partition):
        self.unread.pop(position, None)
        return False
    self._raise_to(position)
    return True


def _reads_all_anew(self: Positions, position: Position) -> bool:
    self.unread.pop(position, None)
    self._raise_to(position)
    return True


def _never_forgets(self: RouterMemory, partition: int, next_offset: int) -> None:
    if partition not in self._partitions:
        _ASSIGNED(self, partition, next_offset)


def _keeps_the_floor(self: RouterMemory, partition: int, key: bytes, offset: int) -> int:
    known = self._partitions[partition]
    floor = known.floor
    previous = _PREVIOUS(self, partition, key, offset)
    known.floor = floor
    return previous


def _writes_at_once(self: GatewayOutbound, *arguments: Any) -> Any:
    fast = _TAKE(self, *arguments)
    if fast is not None:
        self.confirmed(fast, arguments[-1])
    return fast


def _adopts_from_anyone(self: Session, event: Event, activation: Activation) -> None:
    if isinstance(event, FastSent):
        event = replace(event, connection_id=self.newest_connection_id)
    _APPLY(self, event, activation)


_ASSIGNED: Final = RouterMemory.assigned
_PREVIOUS: Final = RouterMemory.previous
_TAKE: Final = GatewayOutbound.take
_ADOPT: Final = adoption.adopt
_APPLY: Final = Session._apply


def _adopts_behind_a_gap(outbound: Any, event: FastSent, connection: Any, activation: Activation) -> None:
    _ADOPT(outbound, replace(event, previous=-1), connection, activation)


MUTANTS: Final[dict[str, tuple[Patch, ...]]] = {
    "2: an offer behind a message that is missing is taken": ((Chain, "link", _without_gap),),
    "2: a grant takes the chain back": ((Chain, "handled", _falls_back),),
    "2: a first transmission of the session takes the chain on": ((Chain, "break_at", _goes_on_behind),),
    "4: it is written before Kafka has it": ((GatewayOutbound, "take", _writes_at_once),),
    "5: what was taken is sent again": ((FastPath, "was_taken", lambda *_: False),),
    "5: what the session has handled is no longer known as taken": ((FastPath, "_forget_adopted", _forgets_what_was_handled),),
    "6: a FastSent behind one that failed counts": ((adoption, "adopt", _adopts_behind_a_gap),),
    "6: a message that was adopted is read as new": ((Positions, "read", _reads_all_anew),),
    "6: the place in the window is lost": ((InflightWindow, "move_youngest", lambda *_: None),),
    "7: packet ids are free at once": ((FastPacketIds, "next", _lowest),),
    "8: a FastSent of any connection counts": ((Session, "_apply", _adopts_from_anyone),),
    "10: what may be on its way is dropped": ((Connection, "may_be_sending", lambda *_: False),),
    "13: a router remembers over its assignments": (
        (RouterMemory, "assigned", _never_forgets),
        (RouterMemory, "revoked", lambda *_: None),
    ),
    "13: evicting a client does not raise the floor": ((RouterMemory, "previous", _keeps_the_floor),),
    "3: no slot is needed": ((WireMeter, "has_free_slot", property(lambda _: True)),),
}


@contextmanager
def applied(name: str) -> Iterator[None]:
    patches = [patch.object(*one) for one in MUTANTS[name]]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


HISTORIES: Final = 20_000
STEPS: Final = 200


def first_failure(name: str) -> tuple[int, str] | None:
    """The first history that notices, and how; None = none of them does."""
    with applied(name):
        for number in range(HISTORIES):
            dice = random.Random(number)
            try:
                world = World(story_of(number))
                for _ in range(STEPS):
                    world.step(dice.randrange(10_000))
                world.come_to_rest()
            except (AssertionError, InflightError) as error:
                return number, str(error).splitlines()[0]
    return None


def main() -> int:
    console = Console()
    table = Table("rule that is broken", "histories", "noticed by")
    found = {name: first_failure(name) for name in track(MUTANTS, "mutants", console=console)}
    for name, failure in found.items():
        table.add_row(name, *(("", "[bold red]nothing") if failure is None else (f"{failure[0] + 1:,}", failure[1])))
    console.print(table)
    return 1 if None in found.values() else 0


if __name__ == "__main__":
    sys.exit(main())
