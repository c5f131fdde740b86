"""The messages for one device on one connection: which may be written, when, and under which packet id. It writes nothing itself.

It is the one object that knows the packet ids of a wire; wire_table.py has what may follow what for each.

1. At most `send_quota` QoS 1 and 2 messages are on the wire unacknowledged; the rest of what the session gave waits here, in its
   order. QoS 0, PUBREL and acknowledgements pass by [MQTT-4.9.0-3].
2. A resend of what is on the wire takes no second slot and does not wait behind newer messages. A resend of what still waits here
   is dropped, and so is what waits under an id for which the session sends PUBREL [MQTT-4.3.3-6].
3. A message of the fast path takes its packet id with `reserve`, if nothing waits here. It is written when Kafka has the record
   that says so, and the wire has a slot. Behind it nothing new is written, QoS 0 neither; what is on the wire already may be
   repeated. Such messages may be ahead of the slots: twice as many as the device acknowledges while Kafka confirms one. Else a
   window would take as long as Kafka's answer.
4. While the device does not read (`is_blocked`), nothing new at QoS 1 and 2 is written but what the fast path took before.
5. What the session gives up after it was written leaves the `send_quota` free for another message, but stays counted towards the
   Receive Maximum of an MQTT 5 client for as long as that owes the answer [MQTT-3.3.4-9].
6. The packet ids of the fast path are 32,768…65,535, given out going round, so that each rests for long. An id that was used is
   free again only when a grant from behind its message does not list it: until then the session may not have read that it was
   used, and an acknowledgement that comes late could count for another message.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import msgspec

from sinks.host.wire_table import AWAITS_ANSWER, HOLDS_SLOT, WIRE, WireAction, WireEvent, WirePhase
from state.commands import SendPublish
from state.model import MAX_PACKET_ID, MIN_FAST_PACKET_ID, Message, PacketId, Position, QoS
from state.records.properties import properties_bytes

_REFUSED_FROM: Final = 0x80
_MESSAGE_BYTES: Final = 512
"""Memory that a message takes besides its text."""
_MOST_AHEAD: Final = 512
_MOST_AHEAD_BYTES: Final = 262_144
"""Messages, and bytes of their packets, of the fast path ahead of the slots: on a new connection they come again with DUP."""
_AHEAD_PER_ANSWER: Final = 2
# Read for every packet, and Python finds a name of the module faster than the member of an enum.
_ABSENT: Final = WirePhase.ABSENT
_RESERVED: Final = WirePhase.RESERVED
_PUBLISH: Final = WireEvent.PUBLISH
_RESEND: Final = WireEvent.RESEND
_SLOT_FOR: Final = (_PUBLISH, WireEvent.SLOT_FOR_QOS1, WireEvent.SLOT_FOR_QOS2)
_CONFIRM: Final = (_PUBLISH, WireEvent.CONFIRM_QOS1, WireEvent.CONFIRM_QOS2)
_WAIT_FOR_SLOT: Final = WireAction.WAIT_FOR_SLOT
_WRITE_PUBLISH: Final = WireAction.WRITE_PUBLISH
_DROP: Final = WireAction.DROP


def _step_of(phase: WirePhase, event: WireEvent) -> tuple[WirePhase, WireAction, int]:
    next_phase, action = WIRE.get((phase, event), (phase, WireAction.NOTHING))
    return next_phase, action, (next_phase in HOLDS_SLOT) - (phase in HOLDS_SLOT)


_STEPS: Final = tuple(tuple(_step_of(phase, event) for event in WireEvent) for phase in WirePhase)
"""The table by phase and event, with the slots that a step takes (1) or frees (-1)."""


class FastPublish(msgspec.Struct, eq=False):
    """A message that the fast path has taken.

    Attributes:
        packet_id: 0 at QoS 0.
        data: The encoded packet, with this packet id and expiry.
        taken_ms: Milliseconds of a monotonic clock.
        is_confirmed: True when Kafka has the record that says that the fast path has taken the message (`Outbox.confirm`). It may
            be written then.
    """

    position: Position
    message: Message
    qos: QoS
    packet_id: PacketId
    expiry_interval_s: int | None
    data: bytes
    taken_ms: int
    is_confirmed: bool = False

    @property
    def subscription_ids(self) -> tuple[int, ...]:
        return () if self.message.routing is None else self.message.routing.subscription_ids


class _Probe(msgspec.Struct, eq=False):
    """Measures how much is acknowledged while Kafka confirms, by a message of the fast path for which the last slot is taken.

    Attributes:
        answers_before: `Outbox.answers` when it was taken.
        confirmed_ms: When Kafka had confirmed it; None = it has not.
        is_answered: The device has acknowledged it.
    """

    packet_id: PacketId
    taken_ms: int
    answers_before: int
    confirmed_ms: int | None = None
    is_answered: bool = False


class _Held(NamedTuple):
    """A message that waits for a slot."""

    publish: SendPublish
    since_ms: int
    size_bytes: int


Due: TypeAlias = tuple[SendPublish | FastPublish, int]
"""A message that is to be written now, and how many seconds it has waited."""


@dataclass(slots=True, eq=False)
class Outbox:
    """All times are milliseconds of one monotonic clock.

    Attributes:
        send_quota: at least 1.
        receive_maximum: of the client; None = it has none (MQTT 3.1.1).
        max_qos0_bytes: of QoS 0 messages while the device does not read, and as much again behind the fast path.
        is_blocked: the device does not read.
        on_wire: QoS 1 and 2 messages that the client has not finished, each of which takes a slot; those that were given up
            count, and those of the fast path that are not written yet.
        answers: acknowledgements that were waited for.
        held_bytes: of the session's messages that wait.
    """

    send_quota: int
    receive_maximum: int | None = None
    max_qos0_bytes: int = 0
    is_blocked: bool = False
    on_wire: int = 0
    answers: int = 0
    held_bytes: int = 0
    _blocked_bytes: int = 0
    _fast_bytes: int = 0
    _reserved: int = 0
    """Messages of the fast path that are not written; `_reserved_bytes` of their packets."""
    _reserved_bytes: int = 0
    _ahead: int = 0
    """How many of them may have no slot."""
    _probe: _Probe | None = None
    _phases: dict[PacketId, WirePhase] = field(default_factory=dict)  # in the order in which they took their slots
    _held: OrderedDict[PacketId, _Held] = field(default_factory=OrderedDict)
    _owed: dict[PacketId, None] = field(default_factory=dict)  # used as a set: an empty dict takes a quarter of a set's memory
    _behind: list[FastPublish | SendPublish] = field(default_factory=list)
    """Messages of the fast path, and QoS 0 messages behind them. The first one is a FastPublish that is not confirmed."""
    _used_ids: dict[PacketId, Position] = field(default_factory=dict)
    """Packet ids of the fast path that were taken here, with the message's position, and that no grant has freed yet."""
    _listed_ids: Collection[PacketId] = ()
    _last_fast_id: PacketId = 0

    def __post_init__(self) -> None:
        self.send_quota = max(1, self.send_quota)

    @property
    def is_empty(self) -> bool:
        """Returns True if nothing waits here, and nothing is on the wire."""
        return not (self.on_wire or self._held or self._behind)

    @property
    def owed(self) -> int:
        """Messages on the wire that the session has given up."""
        return len(self._owed)

    @property
    def held(self) -> int:
        """Messages that wait for a slot."""
        return len(self._held)

    @property
    def has_free_slot(self) -> bool:
        """True if one more message may be on the wire."""
        if self.on_wire - len(self._owed) >= self.send_quota:
            return False
        return self.receive_maximum is None or self.on_wire < self.receive_maximum

    @property
    def has_room_ahead(self) -> bool:
        """Returns True if the fast path may take one more message that waits for a slot (rule 3)."""
        on_wire, ahead = self.on_wire, self._ahead
        if self._reserved_bytes >= _MOST_AHEAD_BYTES or on_wire - len(self._owed) >= self.send_quota + ahead:
            return False
        return self.receive_maximum is None or on_wire < self.receive_maximum + ahead

    @property
    def ahead_bytes(self) -> int:
        """Returns the memory of all messages of the fast path that are not written, if some are ahead of the slots.

        Else they wait for Kafka only, and count as records.
        """
        return self._reserved_bytes + _MESSAGE_BYTES * self._reserved if self.on_wire > self.send_quota else 0

    def _may_write_reserved(self) -> bool:
        written = self.on_wire - self._reserved
        if written - len(self._owed) >= self.send_quota:
            return False
        return self.receive_maximum is None or written < self.receive_maximum

    # --- from the session -----------------------------------------------------------------------------------------------------

    def send(self, publish: SendPublish, now_ms: int) -> WireAction:
        """Decides what to do with a PUBLISH of the session.

        Returns:
            WRITE_PUBLISH: Write it now. WAIT_FOR_SLOT: `next_due` returns it later. DROP: Forget it.
        """
        packet_id = publish.packet_id
        if not publish.qos:
            return self._send_qos0(publish)
        if packet_id in self._held:
            return _DROP
        action = self._step(packet_id, _RESEND if publish.dup else _PUBLISH)
        if action is not _WAIT_FOR_SLOT:
            return action
        if self._held or self._behind or self.is_blocked or not self.has_free_slot:
            size_bytes = _MESSAGE_BYTES + _size_bytes(publish)
            self._held[packet_id] = _Held(publish, now_ms, size_bytes)
            self.held_bytes += size_bytes
            return action
        self._owed.pop(packet_id, None)
        return self._step(packet_id, _SLOT_FOR[publish.qos])

    def _send_qos0(self, publish: SendPublish) -> WireAction:
        if self._behind:
            size_bytes = _size_bytes(publish)
            if self._fast_bytes + size_bytes > self.max_qos0_bytes:
                return _DROP
            self._fast_bytes += size_bytes
            self.held_bytes += _MESSAGE_BYTES + size_bytes
            self._behind.append(publish)
            return _WAIT_FOR_SLOT
        if self.is_blocked:
            self._blocked_bytes += _size_bytes(publish)
            if self._blocked_bytes > self.max_qos0_bytes:
                return _DROP
        return _WRITE_PUBLISH

    def release(self, packet_id: PacketId) -> WireAction:
        """The session sends PUBREL. DROP: a PUBLISH that waited under the id is dropped, it must not follow [MQTT-4.3.3-6]."""
        dropped = self._no_longer_held(packet_id)
        self._step(packet_id, WireEvent.PUBREL)
        return _DROP if dropped else WireAction.NOTHING

    def withdraw(self, packet_ids: Iterable[PacketId]) -> None:
        """The session has given these up: they are not written. What is written is rule 5's; without a Receive Maximum its slot
        is free. Then take what is due."""
        for packet_id in packet_ids:
            phase = self._phases.get(packet_id, _ABSENT)
            if phase is _RESERVED:
                self._forget_reserved(packet_id)
            if self._probe is not None and self._probe.packet_id == packet_id:
                self._probe = None
            if self._no_longer_held(packet_id) or phase is _RESERVED or self.receive_maximum is None:
                self._step(packet_id, WireEvent.WITHDRAW)
            elif phase in HOLDS_SLOT:
                self._owed[packet_id] = None

    # --- to the device --------------------------------------------------------------------------------------------------------

    def next_due(self, now_ms: int) -> Due | None:
        """The next message that is to be written now. Call until None after each call that may have made one due."""
        while self._behind:
            first = self._behind[0]
            if isinstance(first, SendPublish):
                del self._behind[0]
                size_bytes = _size_bytes(first)
                self._fast_bytes -= size_bytes
                self.held_bytes -= _MESSAGE_BYTES + size_bytes
                return first, 0
            qos = first.qos
            if not first.is_confirmed or (qos and not self._may_write_reserved()):
                return None
            del self._behind[0]
            if qos:
                self._reserved -= 1
                self._reserved_bytes -= len(first.data)
            if not qos or self._step(first.packet_id, _CONFIRM[qos]) is _WRITE_PUBLISH:
                return first, (now_ms - first.taken_ms) // 1_000
        if not self._held or self.is_blocked or not self.has_free_slot:
            return None
        _, (publish, since_ms, size_bytes) = self._held.popitem(last=False)
        self.held_bytes -= size_bytes
        self._owed.pop(publish.packet_id, None)
        self._step(publish.packet_id, _SLOT_FOR[publish.qos])
        return publish, (now_ms - since_ms) // 1_000

    def oldest_unanswered(self) -> PacketId:
        """Returns the packet id of the PUBLISH that was written first of those that await PUBACK or PUBREC; 0 = none does."""
        if not self.on_wire:
            return 0
        return next((id_ for id_, phase in self._phases.items() if phase in AWAITS_ANSWER and id_ not in self._owed), 0)

    def unwritten(self, packet_id: PacketId) -> None:
        """Frees the slot of a message that could not be written."""
        self._step(packet_id, WireEvent.WITHDRAW)

    def block(self, is_blocked: bool) -> None:
        """The device does not take what is written (True), or does again (False): then take what is due."""
        self.is_blocked = is_blocked
        self._blocked_bytes = 0

    # --- of the fast path -----------------------------------------------------------------------------------------------------

    def free_fast_ids(self, after: Position, ids_in_use: Iterable[PacketId], last_id: PacketId) -> None:
        """A grant has come. The arguments are as in OpenFastPath."""
        self._listed_ids = frozenset(ids_in_use) or ()
        self._used_ids = {
            packet_id: position
            for packet_id, position in self._used_ids.items()
            if position.partition != after.partition or position.offset > after.offset
        }
        self._last_fast_id = self._last_fast_id or last_id

    @property
    def fast_ids(self) -> tuple[dict[PacketId, Position], frozenset[PacketId], PacketId]:
        """Returns what `continue_fast_ids` takes."""
        return self._used_ids, frozenset(self._listed_ids), self._last_fast_id

    def continue_fast_ids(self, used: dict[PacketId, Position], listed: frozenset[PacketId], last: PacketId) -> None:
        """Goes on with the ids of the client's connection before this one."""
        self._used_ids, self._listed_ids, self._last_fast_id = used, listed, last

    def next_fast_id(self) -> PacketId | None:
        """The next free packet id of the fast path; None = there is none. `reserve` takes it."""
        last, count = max(self._last_fast_id, MIN_FAST_PACKET_ID - 1), MAX_PACKET_ID - MIN_FAST_PACKET_ID + 1
        for step in range(1, count + 1):
            packet_id = MIN_FAST_PACKET_ID + (last + step - MIN_FAST_PACKET_ID) % count
            if packet_id not in self._used_ids and packet_id not in self._listed_ids and self._is_free(packet_id):
                return packet_id
        return None

    def _is_free(self, packet_id: PacketId) -> bool:
        return _STEPS[self._phases.get(packet_id, _ABSENT)][WireEvent.TAKE][1] is WireAction.TAKE_SLOT

    def reserve(self, fast: FastPublish) -> bool:
        """Takes a message of the fast path. Call `confirm` when Kafka has the record that says so, and take what is due.

        Returns:
            False, and nothing is done: there is no slot and no room ahead, or something waits for one, or the id is in use.
        """
        if fast.qos:
            has_room = not self._held and (self.has_free_slot or self.has_room_ahead)
            if not has_room or self._step(fast.packet_id, WireEvent.TAKE) is not WireAction.TAKE_SLOT:
                return False
            self._used_ids[fast.packet_id] = fast.position
            self._last_fast_id = fast.packet_id
            self._reserved += 1
            self._reserved_bytes += len(fast.data)
            if self._probe is None and not self.has_free_slot:
                self._probe = _Probe(fast.packet_id, fast.taken_ms, self.answers)
        self._behind.append(fast)
        return True

    def confirm(self, fast: FastPublish, now_ms: int) -> None:
        """Notes that Kafka has the record that says that the message was taken. Then take what is due."""
        fast.is_confirmed = True
        probe = self._probe
        if probe is not None and probe.packet_id == fast.packet_id:
            probe.confirmed_ms = now_ms

    def measure_ahead(self, now_ms: int) -> None:
        """Decides how many messages may be ahead of the slots. Call it when what the device has sent at once is worked off."""
        probe = self._probe
        if probe is None or not probe.is_answered:
            return
        self._probe = None
        if probe.confirmed_ms is not None:
            whole_ms, kafka_ms = now_ms - probe.taken_ms + 1, probe.confirmed_ms - probe.taken_ms + 1
            answers = (self.answers - probe.answers_before) * kafka_ms // whole_ms
            self._ahead = min(_MOST_AHEAD, _AHEAD_PER_ANSWER * answers)

    def _forget_reserved(self, packet_id: PacketId) -> None:
        for index, due in enumerate(self._behind):
            if isinstance(due, FastPublish) and due.packet_id == packet_id:
                del self._behind[index]
                self._reserved -= 1
                self._reserved_bytes -= len(due.data)
                return

    # --- from the device: then take what is due -------------------------------------------------------------------------------

    def acknowledged(self, packet_id: PacketId) -> None:
        """PUBACK."""
        self._answer(packet_id, WireEvent.PUBACK)

    def received(self, packet_id: PacketId, reason_code: int) -> bool:
        """PUBREC. True: answer PUBREL as soon as the PUBREC is in the log; False: leave the answer to the session."""
        event = WireEvent.PUBREC if reason_code < _REFUSED_FROM else WireEvent.PUBREC_REFUSED
        return self._answer(packet_id, event) is WireAction.ANSWER_PUBREL

    def completed(self, packet_id: PacketId) -> None:
        """PUBCOMP."""
        self._answer(packet_id, WireEvent.PUBCOMP)

    def _answer(self, packet_id: PacketId, event: WireEvent) -> WireAction:
        before = self._phases.get(packet_id, _ABSENT)
        action = self._step(packet_id, event)
        self.answers += self._phases.get(packet_id, _ABSENT) is not before
        if self._probe is not None and self._probe.packet_id == packet_id:
            self._probe.is_answered = True
        return action

    # --- slots ----------------------------------------------------------------------------------------------------------------

    def _no_longer_held(self, packet_id: PacketId) -> bool:
        held = self._held.pop(packet_id, None)
        if held is None:
            return False
        self.held_bytes -= held.size_bytes
        return True

    def _step(self, packet_id: PacketId, event: WireEvent) -> WireAction:
        """The only place where a phase changes."""
        phases = self._phases
        phase = phases.get(packet_id, _ABSENT)
        next_phase, action, slots = _STEPS[phase][event]
        if next_phase is not phase:
            if slots:
                if slots > 0:
                    phases.pop(packet_id, None)  # the id of an earlier exchange is now the newest
                self.on_wire += slots
                self._owed.pop(packet_id, None)
            if next_phase is _ABSENT:
                del phases[packet_id]
            else:
                phases[packet_id] = next_phase
        return action


def _size_bytes(publish: SendPublish) -> int:
    return len(publish.topic) + properties_bytes(publish.properties) + len(publish.payload)
