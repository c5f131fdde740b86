"""What goes out on one connection, and how much of it may be unacknowledged.

Rules
1. At most `send_quota` QoS 1 and 2 messages are on the wire unacknowledged; the rest of what the engine gave waits in a FIFO.
   QoS 0, PUBREL and acknowledgements pass by [MQTT-4.9.0-3].
2. A slot is taken by the first PUBLISH of a packet id and freed by PUBACK, PUBCOMP, a PUBREC of 0x80 and above [MQTT-4.9.0-2], or
   by the session's withdrawal. A resend takes no second slot and does not wait behind newer messages; a PUBREL replayed on a new
   connection takes none.
3. The session retries by its own clock and cannot see what happened here since its last micro-batch. A resend is therefore
   dropped when the message still waits in the FIFO, when the client has already answered PUBREC (no PUBLISH after PUBREC
   [MQTT-4.3.3-6]) and when the exchange is finished on this connection: a completed QoS 2 message sent again would be delivered
   twice.
4. Who is right about a wrong or unknown acknowledgement is judged by the session; here it changes nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from state.commands import SendPublish
from state.model import PacketId, QoS

_REFUSED_FROM: Final = 0x80


class WirePhase(IntEnum):
    """What the client owes for a packet id that it has been sent."""

    AWAITING_PUBACK = 1
    AWAITING_PUBREC = 2
    AWAITING_PUBCOMP = 3


_FIRST_PHASE: Final = {QoS.AT_LEAST_ONCE: WirePhase.AWAITING_PUBACK, QoS.EXACTLY_ONCE: WirePhase.AWAITING_PUBREC}


class WireMeter:
    """send_quota: at least 1. resends_dropped: how many times rule 3 applied."""

    __slots__ = ("_finished", "_held", "_phases", "_released", "resends_dropped", "send_quota")

    def __init__(self, send_quota: int) -> None:
        self.send_quota = max(1, send_quota)
        self.resends_dropped = 0
        self._phases: dict[PacketId, WirePhase] = {}
        self._held: OrderedDict[PacketId, SendPublish] = OrderedDict()
        self._released: set[PacketId] = set()
        self._finished: set[PacketId] = set()

    @property
    def on_wire(self) -> int:
        """QoS 1 and 2 messages that the client has not finished."""
        return len(self._phases)

    @property
    def held(self) -> int:
        """Messages that wait for a slot."""
        return len(self._held)

    def holds(self, packet_id: PacketId) -> bool:
        """Whether this message waits for a slot."""
        return packet_id in self._held

    def admit(self, publish: SendPublish) -> bool:
        """Take a QoS 1 or 2 message. True: write it now (a resend). False: `next_due` gives it out later, or it is dropped."""
        packet_id = publish.packet_id
        phase = self._phases.get(packet_id)
        if packet_id in self._held:
            self.resends_dropped += 1
            return False
        if publish.dup:
            if packet_id in self._finished or packet_id in self._released or phase is WirePhase.AWAITING_PUBCOMP:
                self.resends_dropped += 1
                return False
            if phase is not None:
                return True
        self._held[packet_id] = publish
        return False

    def next_due(self) -> SendPublish | None:
        """The next message that may be written, and has to be, now; call until None."""
        if not self._held:
            return None
        if len(self._phases) >= self.send_quota:
            return None
        packet_id, publish = self._held.popitem(last=False)
        self._phases[packet_id] = _FIRST_PHASE[publish.qos]
        self._finished.discard(packet_id)
        self._released.discard(packet_id)
        return publish

    def acknowledged(self, packet_id: PacketId) -> None:
        """PUBACK."""
        if self._phases.get(packet_id) is WirePhase.AWAITING_PUBACK:
            self._finish(packet_id)

    def received(self, packet_id: PacketId, reason_code: int) -> bool:
        """PUBREC. True: answer PUBREL as soon as the PUBREC is in the log; False: leave the answer to the session."""
        phase = self._phases.get(packet_id)
        if phase is None:
            return packet_id in self._released and reason_code < _REFUSED_FROM
        if reason_code < _REFUSED_FROM and phase is not WirePhase.AWAITING_PUBACK:
            self._phases[packet_id] = WirePhase.AWAITING_PUBCOMP
            return True
        if phase is WirePhase.AWAITING_PUBREC:
            self._finish(packet_id)
        return False

    def release(self, packet_id: PacketId) -> None:
        """The session has us send PUBREL."""
        if packet_id in self._phases:
            self._phases[packet_id] = WirePhase.AWAITING_PUBCOMP
        else:
            self._released.add(packet_id)

    def completed(self, packet_id: PacketId) -> None:
        """PUBCOMP."""
        if self._phases.get(packet_id) is WirePhase.AWAITING_PUBCOMP:
            self._finish(packet_id)
        elif packet_id in self._released:
            self._released.discard(packet_id)
            self._finished.add(packet_id)

    def withdraw(self, packet_ids: Iterable[PacketId]) -> None:
        """The session has given these up: neither write them nor answer for them."""
        for packet_id in packet_ids:
            self._held.pop(packet_id, None)
            self._phases.pop(packet_id, None)
            self._released.discard(packet_id)

    def _finish(self, packet_id: PacketId) -> None:
        del self._phases[packet_id]
        self._finished.add(packet_id)
