"""What the engine sends to the device: metered on this wire, and held back while the device does not read."""

from collections.abc import Callable, Iterable
from typing import Final

from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.packets import Publish, ServerPacket
from sinks.mqtt.wire_meter import WireMeter
from state.commands import SendPublish
from state.model import PacketId, QoS

_BLOCKED_QOS0_BYTES: Final = 1_048_576
"""QoS 0 messages written for a device that does not read; beyond this they are dropped."""


class Deliveries:
    """Of one connection. What may be written goes to `output` at once, as bytes; the rest waits for an answer of the device.

    is_blocked: the device does not read, so nothing new at QoS 1 and 2 is written.
    """

    __slots__ = ("_blocked_qos0_bytes", "_counters", "_encode", "_is_blocked", "_meter", "_output")

    def __init__(
        self,
        *,
        receive_quota: int,
        encode: Callable[[ServerPacket], bytes],
        output: list[bytes],
        counters: GatewayCounters,
        is_blocked: bool = False,
    ) -> None:
        self._meter = WireMeter(receive_quota)
        self._encode = encode
        self._output = output
        self._counters = counters
        self._is_blocked = is_blocked
        self._blocked_qos0_bytes = 0

    # --- from the engine ----------------------------------------------------------------------------------------------------

    def send(self, publish: SendPublish) -> None:
        """Write a message now, later or, if it is a resend that comes too late, never."""
        if publish.qos == QoS.AT_MOST_ONCE:
            if self._is_blocked:
                self._blocked_qos0_bytes += len(publish.payload)
                if self._blocked_qos0_bytes > _BLOCKED_QOS0_BYTES:
                    self._counters.qos0_dropped += 1
                    return
            self._write(publish)
            return
        dropped_before = self._meter.resends_dropped
        if self._meter.admit(publish):
            self._write(publish)
        self._counters.resends_dropped += self._meter.resends_dropped - dropped_before
        self._write_due()

    def release(self, packet_id: PacketId) -> None:
        """The session sends PUBREL for it."""
        self._meter.release(packet_id)

    def withdraw(self, packet_ids: Iterable[PacketId]) -> None:
        """The session has given these up."""
        self._meter.withdraw(packet_ids)
        self._write_due()

    # --- from the device ----------------------------------------------------------------------------------------------------

    def block(self, is_blocked: bool) -> None:
        """The device does not take what we write (True), or does again (False)."""
        self._is_blocked = is_blocked
        self._blocked_qos0_bytes = 0
        self._write_due()

    def acknowledged(self, packet_id: PacketId) -> None:
        """PUBACK."""
        self._meter.acknowledged(packet_id)
        self._write_due()

    def received(self, packet_id: PacketId, reason_code: int) -> bool:
        """PUBREC. True: answer PUBREL as soon as the PUBREC is in the log; False: leave the answer to the session."""
        answers = self._meter.received(packet_id, reason_code)
        self._write_due()
        return answers

    def completed(self, packet_id: PacketId) -> None:
        """PUBCOMP."""
        self._meter.completed(packet_id)
        self._write_due()

    # --- to the device ------------------------------------------------------------------------------------------------------

    def _write_due(self) -> None:
        if self._is_blocked:
            return
        while (publish := self._meter.next_due()) is not None:
            if not self._write(publish):
                self._meter.withdraw((publish.packet_id,))

    def _write(self, publish: SendPublish) -> bool:
        """False: MQTT cannot carry the message. The session, which gets no acknowledgement, ends it by `delivery_limit`."""
        try:
            data = self._encode(
                Publish(
                    topic=publish.topic,
                    payload=publish.payload,
                    qos=publish.qos,
                    packet_id=publish.packet_id,
                    dup=publish.dup,
                    retain=publish.retain,
                    expiry_interval_s=publish.expiry_interval_s,
                    properties=publish.properties,
                )
            )
        except (ValueError, OverflowError):
            self._counters.unsendable += 1
            return False
        self._output.append(data)
        self._counters.publishes_sent += 1
        return True
