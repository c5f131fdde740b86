"""The rules of the fast path, broken (docs/protocol.md, section 7): patches of the real code."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

import msgspec

from sinks.fast_path.router_memory import RouterMemory
from sinks.host.outbox import FastPublish, Outbox
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.fast_path import Chain, OfferRefusal, WireFastPath
from state.activation import Activation
from state.connection import SessionConnection
from state.events import Event, FastSent
from state.model import MIN_FAST_PACKET_ID, PacketId, Position
from state.outbound.fast_path import adoption, grants
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import InflightWindow
from state.session import Session
from tests.properties.fast_path.line import Line
from tests.properties.fast_path.story import Story

Patch = tuple[Any, str, Any]
"""An object, the name of its attribute, and what that is instead."""


class Mutant:
    """story: makes of each story the one that is told, such that the situation comes about often."""

    def __init__(self, *patches: Patch, story: Callable[[Story], Story] = lambda story: story) -> None:
        self.patches, self.story = patches, story


def _goes_on_behind(self: Chain, offset: int) -> None:
    self.after = max(self.after, offset)


def _without_gap(self: Chain, *_: int) -> OfferRefusal | None:
    return None if self.broken_at is None else OfferRefusal.BROKEN


def _falls_back(self: Chain, offset: int) -> None:
    self.broken_at = None if self.broken_at is not None and self.broken_at <= offset else self.broken_at
    self.after = offset


def _forgets_what_was_handled(self: WireFastPath, *_: Any) -> tuple[int, int]:
    for position in [taken for taken in self._taken if taken.offset <= self._chains[self._partition].after]:
        del self._taken[position]
    return 0, 0


def _lowest(self: Outbox) -> PacketId:
    return next(packet_id for packet_id in range(MIN_FAST_PACKET_ID, 65_536) if self._is_free(packet_id))


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


def _confirms_at_once(self: Outbox, fast: FastPublish) -> bool:
    fast.is_confirmed = True
    return _RESERVE(self, fast)


def _writes_what_is_due(self: WireConnection, *arguments: Any) -> Any:
    effects = _OFFER(self, *arguments)
    if self._outbox is None:
        return effects
    self._write_due(self._outbox, arguments[-1])
    return msgspec.structs.replace(effects, write=self._effects().write)


def _adopts_from_anyone(self: Session, event: Event, activation: Activation) -> None:
    if isinstance(event, FastSent):
        event = msgspec.structs.replace(event, connection_id=self.newest_connection_id)
    _APPLY(self, event, activation)


_ASSIGNED: Final = RouterMemory.assigned
_PREVIOUS: Final = RouterMemory.previous
_RESERVE: Final = Outbox.reserve
_OFFER: Final = WireConnection.offer
_ADOPT: Final = adoption.adopt
_APPLY: Final = Session._apply


def _adopts_behind_a_gap(outbound: Any, event: FastSent, connection: Any, activation: Activation) -> None:
    _ADOPT(outbound, msgspec.structs.replace(event, previous=-1), connection, activation)


def _open_whatever_waits(outbound: Any, *_: Any) -> Position | None:
    return cast(Position | None, outbound.positions.latest)


def _goes_on_without_its_lease(self: Line) -> None:
    self._is_frozen = False


def _much_in_flight(story: Story) -> Story:
    """Nothing but the number of unanswered messages keeps a message from the fast path."""
    return replace(
        story,
        session=replace(story.session, max_inflight=3, max_mqueue_len=1_000),
        qos=(2,),
        receive_maximum=65_535,
        lives_s=(None,),
        priorities=(0,),
        large=False,
        switches=False,
        begins_open=True,
    )


def _offered_again(story: Story) -> Story:
    """Messages without an id are offered twice, while the engine reads them as fast as the gateway does."""
    return replace(_much_in_flight(story), unnamed=1, late_offers=True, haste=10, faults=0)


def _with_timers(story: Story) -> Story:
    """What is not answered in time is sent again on the same connection."""
    return replace(_much_in_flight(story), versions=(4,), faults=0)


def _with_failed_appends(story: Story) -> Story:
    return replace(_much_in_flight(story), faults=6, stops=False)


def _with_stops(story: Story) -> Story:
    """Gateways freeze, and the session drops meanwhile. `come_to_rest` does not ask whether the path opens again."""
    return replace(story, session=replace(story.session, max_mqueue_len=1, delivery_limit=20), faults=6, stops=True)


MUTANTS: Final[dict[str, Mutant]] = {
    "1: a path is open although messages wait in the queue": Mutant((grants, "_grantable", _open_whatever_waits)),
    "2: an offer behind a message that is missing is taken": Mutant((Chain, "refusal", _without_gap)),
    "2: a grant takes the chain back": Mutant((Chain, "handled", _falls_back), story=_offered_again),
    "2: a first transmission of the session takes the chain on": Mutant((Chain, "break_at", _goes_on_behind)),
    "3: no slot is needed": Mutant((Outbox, "has_free_slot", property(lambda _: True))),
    "4: it is written before Kafka has it": Mutant(
        (Outbox, "reserve", _confirms_at_once), (WireConnection, "offer", _writes_what_is_due)
    ),
    "5: what was taken is sent again": Mutant((WireFastPath, "was_taken", lambda *_: False)),
    "5: what the session has handled is no longer known as taken": Mutant(
        (WireFastPath, "_forget_adopted", _forgets_what_was_handled)
    ),
    "6: a FastSent behind one that failed counts": Mutant((adoption, "adopt", _adopts_behind_a_gap), story=_with_failed_appends),
    "6: a message that was adopted is read as new": Mutant((Positions, "mark_read", _reads_all_anew)),
    "6: the place in the window is lost": Mutant((InflightWindow, "move_newest", lambda *_: None)),
    "7: packet ids are free at once": Mutant((Outbox, "next_fast_id", _lowest), story=_with_timers),
    "8: a FastSent of any connection counts": Mutant((Session, "_apply", _adopts_from_anyone), story=_with_failed_appends),
    "9: a gateway that wakes up goes on without its lease": Mutant((Line, "wake", _goes_on_without_its_lease), story=_with_stops),
    "10: what may be on its way is dropped": Mutant((SessionConnection, "may_be_sending", lambda *_: False)),
    "13: a router remembers over its assignments": Mutant(
        (RouterMemory, "assigned", _never_forgets),
        (RouterMemory, "revoked", lambda *_: None),
    ),
    "13: evicting a client does not raise the floor": Mutant((RouterMemory, "previous", _keeps_the_floor)),
}
