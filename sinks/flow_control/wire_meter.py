"""How much of what goes out on one connection may be unacknowledged. What may follow what stands in wire_transitions.py.

1. At most `send_quota` QoS 1 and 2 messages are on the wire unacknowledged; the rest of what the engine gave waits here, in its
   order. QoS 0, PUBREL and acknowledgements pass by [MQTT-4.9.0-3].
2. A resend of what is on the wire takes no second slot and does not wait behind newer messages. A resend of what still waits here
   is dropped, and so is what waits under an id for which the session sends PUBREL [MQTT-4.3.3-6].
3. A message of the fast path takes its slot with `reserve`, if nothing waits here, and is written after `confirm`.
4. What the session gives up after it was written leaves the `send_quota` free for another message, but stays counted towards the
   Receive Maximum of an MQTT 5 client for as long as that owes the answer [MQTT-3.3.4-9].
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from sinks.flow_control.wire_transitions import HOLDS_SLOT, WIRE, WireAction, WireEvent, WirePhase
from state.commands import SendPublish
from state.model import PacketId, QoS

_REFUSED_FROM: Final = 0x80
# Read for every packet, and Python finds a name of the module faster than the member of an enum.
_ABSENT: Final = WirePhase.ABSENT
_PUBLISH: Final = WireEvent.PUBLISH
_RESEND: Final = WireEvent.RESEND
_SLOT_FOR_QOS1: Final = WireEvent.SLOT_FOR_QOS1
_SLOT_FOR_QOS2: Final = WireEvent.SLOT_FOR_QOS2
_PUBACK: Final = WireEvent.PUBACK
_PUBREC: Final = WireEvent.PUBREC
_PUBCOMP: Final = WireEvent.PUBCOMP
_WAIT_FOR_SLOT: Final = WireAction.WAIT_FOR_SLOT
_WRITE_PUBLISH: Final = WireAction.WRITE_PUBLISH
_QOS_1: Final = QoS.AT_LEAST_ONCE


def _step_of(phase: WirePhase, event: WireEvent) -> tuple[WirePhase, WireAction, int]:
    next_phase, action = WIRE[phase, event]
    return next_phase, action, (next_phase in HOLDS_SLOT) - (phase in HOLDS_SLOT)


_STEPS: Final = tuple(tuple(_step_of(phase, event) for event in WireEvent) for phase in WirePhase)
"""The table by phase and event, with the slots that a step takes (1) or frees (-1)."""


class WireMeter:
    """send_quota: at least 1. receive_maximum: of the client, None = it has none (MQTT 3.1.1).

    on_wire: QoS 1 and 2 messages that the client has not finished, each of which takes a slot; those that were given up, too, and
    those of the fast path that are not written yet.
    resends_dropped: how many times a resend had come too late or too early. answers: acknowledgements that were waited for.
    """

    __slots__ = (
        "_held",
        "_owed",
        "_phases",
        "_reserved",
        "answers",
        "on_wire",
        "receive_maximum",
        "resends_dropped",
        "send_quota",
    )

    def __init__(self, send_quota: int, receive_maximum: int | None = None) -> None:
        self.send_quota = max(1, send_quota)
        self.receive_maximum = receive_maximum
        self.on_wire = 0
        self.resends_dropped = 0
        self.answers = 0
        self._phases: dict[PacketId, WirePhase] = {}
        self._held: OrderedDict[PacketId, SendPublish] = OrderedDict()
        # Dicts for sets: one that is empty takes a quarter of the memory, and each connection has them.
        self._reserved: dict[PacketId, None] = {}
        self._owed: dict[PacketId, None] = {}

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
        """Whether one more message may be on the wire."""
        if self.on_wire - len(self._owed) >= self.send_quota:
            return False
        return self.receive_maximum is None or self.on_wire < self.receive_maximum

    def holds(self, packet_id: PacketId) -> bool:
        """Whether this message waits for a slot."""
        return packet_id in self._held

    def admit(self, publish: SendPublish) -> bool:
        """Take a QoS 1 or 2 message. True: write it now (a resend). False: `next_due` gives it out later, or it is dropped."""
        packet_id = publish.packet_id
        if packet_id in self._held:
            self.resends_dropped += 1
            return False
        action = self._step(packet_id, _RESEND if publish.dup else _PUBLISH)
        if action is _WAIT_FOR_SLOT:
            self._held[packet_id] = publish
            return False
        if action is _WRITE_PUBLISH:
            return True
        self.resends_dropped += 1
        return False

    def next_due(self) -> SendPublish | None:
        """The next message that may be written, and has to be, now; call until None."""
        if not self._held or not self.has_free_slot:
            return None
        packet_id, publish = self._held.popitem(last=False)
        self._owed.pop(packet_id, None)
        self._step(packet_id, _SLOT_FOR_QOS1 if publish.qos == _QOS_1 else _SLOT_FOR_QOS2)
        return publish

    def is_free(self, packet_id: PacketId) -> bool:
        """Whether `reserve` could take this id."""
        return _STEPS[self._phases.get(packet_id, _ABSENT)][WireEvent.TAKE][1] is WireAction.TAKE_SLOT

    def reserve(self, packet_id: PacketId) -> bool:
        """Take a slot for a message of the fast path. False, and nothing is done: all are taken, or something waits for one, or
        the id is in use."""
        if self._held or not self.has_free_slot or self._step(packet_id, WireEvent.TAKE) is not WireAction.TAKE_SLOT:
            return False
        self._reserved[packet_id] = None
        return True

    def confirm(self, packet_id: PacketId, qos: QoS) -> bool:
        """Kafka has what says that a message of the fast path was taken. True: write it now; False: it has been given up."""
        self._reserved.pop(packet_id, None)
        return self._step(packet_id, WireEvent.CONFIRM_QOS1 if qos == _QOS_1 else WireEvent.CONFIRM_QOS2) is _WRITE_PUBLISH

    def acknowledged(self, packet_id: PacketId) -> None:
        """PUBACK."""
        self._answer(packet_id, _PUBACK)

    def received(self, packet_id: PacketId, reason_code: int) -> bool:
        """PUBREC. True: answer PUBREL as soon as the PUBREC is in the log; False: leave the answer to the session."""
        event = _PUBREC if reason_code < _REFUSED_FROM else WireEvent.PUBREC_REFUSED
        return self._answer(packet_id, event) is WireAction.ANSWER_PUBREL

    def release(self, packet_id: PacketId) -> None:
        """The session has us send PUBREL. What waits under the id is a resend that has come too late."""
        if self._held.pop(packet_id, None) is not None:
            self.resends_dropped += 1
        self._step(packet_id, WireEvent.PUBREL)

    def completed(self, packet_id: PacketId) -> None:
        """PUBCOMP."""
        self._answer(packet_id, _PUBCOMP)

    def withdraw(self, packet_ids: Iterable[PacketId]) -> None:
        """The session has given these up: do not write them. What is written is rule 4's; without a Receive Maximum its slot is
        free."""
        for packet_id in packet_ids:
            was_held = self._held.pop(packet_id, None) is not None or packet_id in self._reserved
            self._reserved.pop(packet_id, None)
            if was_held or self.receive_maximum is None:
                self._step(packet_id, WireEvent.WITHDRAW)
            elif self._phases.get(packet_id, _ABSENT) in HOLDS_SLOT:
                self._owed[packet_id] = None

    def unwritten(self, packet_id: PacketId) -> None:
        """What `next_due` gave out could not be written after all."""
        self._step(packet_id, WireEvent.WITHDRAW)

    def _answer(self, packet_id: PacketId, event: WireEvent) -> WireAction:
        phases = self._phases
        before = phases.get(packet_id, _ABSENT)
        action = self._step(packet_id, event)
        if phases.get(packet_id, _ABSENT) is not before:
            self.answers += 1
        return action

    def _step(self, packet_id: PacketId, event: WireEvent) -> WireAction:
        """The only place where a phase changes."""
        phases = self._phases
        phase = phases.get(packet_id, _ABSENT)
        next_phase, action, slots = _STEPS[phase][event]
        if next_phase is not phase:
            if slots:
                self.on_wire += slots
                self._owed.pop(packet_id, None)
            if next_phase is _ABSENT:
                del phases[packet_id]
            else:
                phases[packet_id] = next_phase
        return action
