"""How fast one device may send, in packets and in bytes: beyond, it is not read from for a moment. Nothing is lost by it, so it
holds for every packet of every version."""

from sinks.mqtt.limits.packet_parts import PARTS_LIKE_A_PACKET_BYTES, PacketParts
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters


class PacketRates:
    """Of one connection. Times are milliseconds of one monotonic clock.

    paused_until_ms: nothing is to be read before, then call `resume`; None = it goes on.
    """

    __slots__ = ("_bytes", "_counters", "_packets", "parts", "paused_until_ms")

    def __init__(self, limits: DeviceLimits, counters: GatewayCounters, now_ms: int) -> None:
        self._packets = TokenBucket(limits.max_packet_rate, now_ms)
        self._bytes = TokenBucket(limits.max_byte_rate, now_ms)
        self._counters = counters
        self.parts = PacketParts(limits, counters)
        self.paused_until_ms: int | None = None

    def may_read(self, now_ms: int) -> bool:
        """One more packet. False: there is a `paused_until_ms`."""
        if self.paused_until_ms is not None:
            return False
        packets_ms, bytes_ms = self._packets.ready_ms(now_ms), self._bytes.ready_ms(now_ms)
        if packets_ms <= now_ms >= bytes_ms:
            return True
        self.paused_until_ms = max(packets_ms, bytes_ms)
        self._counters.limits_reached[Limit.PACKET_RATE if packets_ms >= bytes_ms else Limit.BYTE_RATE] += 1
        return False

    def read(self, packet: bytes, body_start: int, *, is_v5: bool) -> None:
        """A packet, after `may_read`. A large one may take more than there is; then the next one waits the longer.

        Raises ProtocolViolation as PacketParts does.
        """
        parts_bytes = self.parts.measure(packet, body_start, is_v5=is_v5)
        self._packets.take(1 + parts_bytes // PARTS_LIKE_A_PACKET_BYTES)
        self._bytes.take(len(packet))

    def resume(self, now_ms: int) -> bool:
        """Whether a pause is over, now."""
        if self.paused_until_ms is None or now_ms < self.paused_until_ms:
            return False
        self.paused_until_ms = None
        return True
