"""What goes out to the device: metered on this wire, in its order, and held back while the device does not read."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from sinks.flow_control.wire_meter import WireMeter
from sinks.mqtt.codec.packets import EncodePublish
from sinks.mqtt.metrics import GatewayCounters
from state.commands import SendPublish
from state.model import Message, PacketId, QoS
from state.records.properties import properties_bytes


class FastSend:
    """A message of the fast path. It is written when Kafka has what says that it was taken (`is_confirmed`).

    data: the encoded packet, with this packet id and expiry. taken_ms: of a monotonic clock.
    """

    __slots__ = ("data", "expiry_interval_s", "is_confirmed", "message", "packet_id", "qos", "taken_ms")

    def __init__(
        self, message: Message, qos: QoS, packet_id: PacketId, expiry_interval_s: int | None, data: bytes, taken_ms: int
    ) -> None:
        self.message = message
        self.qos = qos
        self.packet_id = packet_id
        self.expiry_interval_s = expiry_interval_s
        self.data = data
        self.taken_ms = taken_ms
        self.is_confirmed = False


_Waiting: TypeAlias = FastSend | SendPublish
_MESSAGE_BYTES: Final = 512
"""What a message takes in memory besides its text."""


class _Held(NamedTuple):
    """A message that waits for a slot."""

    since_ms: int
    size_bytes: int


class Outbound:
    """Of one connection. What may be written goes to `output` at once, as bytes; the rest waits for an answer of the device.

    1. QoS 1 and 2 messages wait for a slot, in their order; QoS 0 does not.
    2. Behind a message of the fast path that Kafka has not confirmed nothing new is written, QoS 0 neither. What is on the wire
       already may be repeated.
    3. The fast path takes nothing while something waits for a slot; so all that waits for one stands behind it.

    receive_maximum: of an MQTT 5 device, None = MQTT 3.1.1. is_blocked: the device does not read, so nothing new at QoS 1 and 2
    is written but what the fast path had taken before. now_ms: of one monotonic clock; the time that a message waits here is
    taken off its Message Expiry Interval [MQTT-3.3.2-6]. max_blocked_qos0_bytes: QoS 0 messages that are written while the device
    does not read, and as much again behind the fast path; beyond, they are dropped. held_bytes: of the session's messages that
    wait; those of the fast path count as records that Kafka has not confirmed.
    """

    __slots__ = (
        "_blocked_qos0_bytes",
        "_counters",
        "_encode",
        "_fast",
        "_fast_qos0_bytes",
        "_held",
        "_max_blocked_qos0_bytes",
        "_output",
        "held_bytes",
        "is_blocked",
        "meter",
    )

    def __init__(
        self,
        *,
        send_quota: int,
        receive_maximum: int | None = None,
        encode: EncodePublish,
        output: list[bytes],
        counters: GatewayCounters,
        max_blocked_qos0_bytes: int,
        is_blocked: bool = False,
    ) -> None:
        self.meter = WireMeter(send_quota, receive_maximum)
        self._encode = encode
        self._output = output
        self._counters = counters
        self.is_blocked = is_blocked
        self._max_blocked_qos0_bytes = max_blocked_qos0_bytes
        self._blocked_qos0_bytes = 0
        self._fast: list[_Waiting] = []
        """The first, if there is one, is a FastSend that is not confirmed."""
        self._fast_qos0_bytes = 0
        self._held: dict[PacketId, _Held] = {}
        self.held_bytes = 0

    # --- from the engine ----------------------------------------------------------------------------------------------------

    def send(self, publish: SendPublish, now_ms: int) -> None:
        """Write a message now, later or, if it is a resend that comes too late, never."""
        if publish.qos == QoS.AT_MOST_ONCE:
            self._send_qos0(publish)
            return
        meter = self.meter
        dropped_before = meter.resends_dropped
        if meter.admit(publish):
            self._write(publish)
        elif meter.resends_dropped != dropped_before:
            self._counters.resends_dropped += 1
        else:
            self._hold(publish, now_ms)
        self._write_due(now_ms)

    def _send_qos0(self, publish: SendPublish) -> None:
        if self._fast:
            size_bytes = _size_bytes(publish)
            if self._fast_qos0_bytes + size_bytes > self._max_blocked_qos0_bytes:
                self._counters.qos0_dropped += 1
                return
            self._fast_qos0_bytes += size_bytes
            self.held_bytes += _MESSAGE_BYTES + size_bytes
            self._fast.append(publish)
            return
        if self.is_blocked:
            self._blocked_qos0_bytes += _size_bytes(publish)
            if self._blocked_qos0_bytes > self._max_blocked_qos0_bytes:
                self._counters.qos0_dropped += 1
                return
        self._write(publish)

    def release(self, packet_id: PacketId) -> None:
        """The session sends PUBREL for it. A PUBLISH that waits under the id is dropped: it must not follow [MQTT-4.3.3-6]."""
        if self.meter.holds(packet_id):
            self._counters.resends_dropped += 1
            self._no_longer_held(packet_id)
        self.meter.release(packet_id)

    def withdraw(self, packet_ids: Iterable[PacketId], now_ms: int) -> None:
        """The session has given these up."""
        for packet_id in packet_ids:
            self.meter.withdraw((packet_id,))
            self._no_longer_held(packet_id)
            for waiting in self._fast:
                if isinstance(waiting, FastSend) and waiting.packet_id == packet_id:
                    self._fast.remove(waiting)
                    break
        self._write_fast(now_ms)
        self._write_due(now_ms)

    # --- of the fast path ---------------------------------------------------------------------------------------------------

    def take(self, fast: FastSend) -> bool:
        """A message that is to be written when Kafka has what says so: then call `confirmed`.

        False: it cannot go now, because all slots are taken, or something waits for one.
        """
        if fast.qos and not self.meter.reserve(fast.packet_id):
            return False
        self._fast.append(fast)
        return True

    def confirmed(self, fast: FastSend, now_ms: int) -> None:
        """Kafka has what says that it was taken."""
        fast.is_confirmed = True
        self._write_fast(now_ms)
        self._write_due(now_ms)

    def _write_fast(self, now_ms: int) -> None:
        due = list(takewhile(lambda waiting: isinstance(waiting, SendPublish) or waiting.is_confirmed, self._fast))
        del self._fast[: len(due)]
        for waiting in due:
            if isinstance(waiting, SendPublish):
                size_bytes = _size_bytes(waiting)
                self._fast_qos0_bytes -= size_bytes
                self.held_bytes -= _MESSAGE_BYTES + size_bytes
                self._write(waiting)
            else:
                self._write_taken(waiting, now_ms)

    def _write_taken(self, fast: FastSend, now_ms: int) -> None:
        qos, packet_id = fast.qos, fast.packet_id
        if qos and not self.meter.confirm(packet_id, qos):
            return
        waited_s = (now_ms - fast.taken_ms) // 1_000
        if waited_s and fast.expiry_interval_s is not None:
            left_s = _left_s(fast.expiry_interval_s, waited_s)
            fast.data = self._encode(fast.message, qos=qos, packet_id=packet_id, expiry_interval_s=left_s)
        self._output.append(fast.data)
        self._counters.publishes_sent += 1
        self._counters.fast_publishes_sent += 1

    # --- from the device ----------------------------------------------------------------------------------------------------

    def block(self, is_blocked: bool, now_ms: int) -> None:
        """The device does not take what we write (True), or does again (False)."""
        self.is_blocked = is_blocked
        self._blocked_qos0_bytes = 0
        self._write_due(now_ms)

    def acknowledged(self, packet_id: PacketId, now_ms: int) -> None:
        """PUBACK."""
        self.meter.acknowledged(packet_id)
        self._write_due(now_ms)

    def received(self, packet_id: PacketId, reason_code: int, now_ms: int) -> bool:
        """PUBREC. True: answer PUBREL as soon as the PUBREC is in the log; False: leave the answer to the session."""
        answers = self.meter.received(packet_id, reason_code)
        self._write_due(now_ms)
        return answers

    def completed(self, packet_id: PacketId, now_ms: int) -> None:
        """PUBCOMP."""
        self.meter.completed(packet_id)
        self._write_due(now_ms)

    # --- to the device ------------------------------------------------------------------------------------------------------

    def _write_due(self, now_ms: int) -> None:
        if self.is_blocked or self._fast:
            return
        while (publish := self.meter.next_due()) is not None:
            held = self._no_longer_held(publish.packet_id)
            waited_ms = 0 if held is None else now_ms - held.since_ms
            if not self._write(publish, waited_s=waited_ms // 1_000):
                self.meter.unwritten(publish.packet_id)

    def _hold(self, publish: SendPublish, now_ms: int) -> None:
        """The meter does, until there is a slot."""
        held = self._held[publish.packet_id] = _Held(now_ms, _MESSAGE_BYTES + _size_bytes(publish))
        self.held_bytes += held.size_bytes

    def _no_longer_held(self, packet_id: PacketId) -> _Held | None:
        held = self._held.pop(packet_id, None)
        if held is not None:
            self.held_bytes -= held.size_bytes
        return held

    def _write(self, publish: SendPublish, *, waited_s: int = 0) -> bool:
        """False: MQTT cannot carry the message. The session, which gets no acknowledgement, ends it by `delivery_limit`."""
        expiry_s = publish.expiry_interval_s
        with suppress(ValueError, OverflowError):
            data = self._encode(
                publish,
                qos=publish.qos,
                packet_id=publish.packet_id,
                dup=publish.dup,
                expiry_interval_s=None if expiry_s is None else _left_s(expiry_s, waited_s),
            )
            self._output.append(data)
            self._counters.publishes_sent += 1
            return True
        self._counters.unsendable += 1
        return False


def _size_bytes(publish: SendPublish) -> int:
    return len(publish.topic) + properties_bytes(publish.properties) + len(publish.payload)


def _left_s(expiry_s: int, waited_s: int) -> int:
    """What was given out does not expire any more, so at least a second is left."""
    return max(1, expiry_s - waited_s)
