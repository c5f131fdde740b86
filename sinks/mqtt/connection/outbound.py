"""What the engine sends to the device: metered on this wire, and held back while the device does not read."""

from collections.abc import Callable, Iterable
from typing import Final

from sinks.flow_control.wire_meter import WireMeter
from sinks.mqtt.codec.packets import Publish, ServerPacket
from sinks.mqtt.metrics import GatewayCounters
from state.commands import SendPublish
from state.model import PacketId, QoS

_BLOCKED_QOS0_BYTES: Final = 1_048_576
"""QoS 0 messages written for a device that does not read; beyond this they are dropped."""


class Outbound:
    """Of one connection. What may be written goes to `output` at once, as bytes; the rest waits for an answer of the device.

    receive_maximum: of an MQTT 5 device, None = MQTT 3.1.1. is_blocked: the device does not read, so nothing new at QoS 1 and 2
    is written. now_ms: of one monotonic clock; the time that a message waits here is taken off its Message Expiry Interval
    [MQTT-3.3.2-6].
    """

    __slots__ = ("_blocked_qos0_bytes", "_counters", "_encode", "_held_since_ms", "_is_blocked", "_meter", "_output")

    def __init__(
        self,
        *,
        send_quota: int,
        receive_maximum: int | None = None,
        encode: Callable[[ServerPacket], bytes],
        output: list[bytes],
        counters: GatewayCounters,
        is_blocked: bool = False,
    ) -> None:
        self._meter = WireMeter(send_quota, receive_maximum)
        self._encode = encode
        self._output = output
        self._counters = counters
        self._is_blocked = is_blocked
        self._blocked_qos0_bytes = 0
        self._held_since_ms: dict[PacketId, int] = {}

    # --- from the engine ----------------------------------------------------------------------------------------------------

    def send(self, publish: SendPublish, now_ms: int) -> None:
        """Write a message now, later or, if it is a resend that comes too late, never."""
        if publish.qos == QoS.AT_MOST_ONCE:
            if self._is_blocked:
                self._blocked_qos0_bytes += len(publish.payload)
                if self._blocked_qos0_bytes > _BLOCKED_QOS0_BYTES:
                    self._counters.qos0_dropped += 1
                    return
            self._write(publish)
            return
        meter = self._meter
        dropped_before = meter.resends_dropped
        if meter.admit(publish):
            self._write(publish)
        elif meter.resends_dropped != dropped_before:
            self._counters.resends_dropped += 1
        else:
            self._held_since_ms[publish.packet_id] = now_ms
        self._write_due(now_ms)

    def release(self, packet_id: PacketId) -> None:
        """The session sends PUBREL for it. A PUBLISH that waits under the id is dropped: it must not follow [MQTT-4.3.3-6]."""
        if self._meter.holds(packet_id):
            self._counters.resends_dropped += 1
            self._held_since_ms.pop(packet_id, None)
        self._meter.release(packet_id)

    def withdraw(self, packet_ids: Iterable[PacketId], now_ms: int) -> None:
        """The session has given these up."""
        for packet_id in packet_ids:
            self._meter.withdraw((packet_id,))
            self._held_since_ms.pop(packet_id, None)
        self._write_due(now_ms)

    # --- from the device ----------------------------------------------------------------------------------------------------

    def block(self, is_blocked: bool, now_ms: int) -> None:
        """The device does not take what we write (True), or does again (False)."""
        self._is_blocked = is_blocked
        self._blocked_qos0_bytes = 0
        self._write_due(now_ms)

    def acknowledged(self, packet_id: PacketId, now_ms: int) -> None:
        """PUBACK."""
        self._meter.acknowledged(packet_id)
        self._write_due(now_ms)

    def received(self, packet_id: PacketId, reason_code: int, now_ms: int) -> bool:
        """PUBREC. True: answer PUBREL as soon as the PUBREC is in the log; False: leave the answer to the session."""
        answers = self._meter.received(packet_id, reason_code)
        self._write_due(now_ms)
        return answers

    def completed(self, packet_id: PacketId, now_ms: int) -> None:
        """PUBCOMP."""
        self._meter.completed(packet_id)
        self._write_due(now_ms)

    # --- to the device ------------------------------------------------------------------------------------------------------

    def _write_due(self, now_ms: int) -> None:
        if self._is_blocked:
            return
        while (publish := self._meter.next_due()) is not None:
            waited_ms = now_ms - self._held_since_ms.pop(publish.packet_id, now_ms)
            if not self._write(publish, waited_s=waited_ms // 1_000):
                self._meter.unwritten(publish.packet_id)

    def _write(self, publish: SendPublish, *, waited_s: int = 0) -> bool:
        """False: MQTT cannot carry the message. The session, which gets no acknowledgement, ends it by `delivery_limit`."""
        expiry_s = publish.expiry_interval_s
        try:
            data = self._encode(
                Publish(
                    topic=publish.topic,
                    payload=publish.payload,
                    qos=publish.qos,
                    packet_id=publish.packet_id,
                    dup=publish.dup,
                    retain=publish.retain,
                    # What was given out does not expire any more, so at least a second is left.
                    expiry_interval_s=None if expiry_s is None else max(1, expiry_s - waited_s),
                    properties=publish.properties,
                )
            )
        except (ValueError, OverflowError):
            self._counters.unsendable += 1
            return False
        self._output.append(data)
        self._counters.publishes_sent += 1
        return True
