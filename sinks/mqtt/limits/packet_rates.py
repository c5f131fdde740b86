"""Limits how fast one device may send, in packets and in bytes. Beyond, reading from it pauses.

Nothing is lost by a pause, so the limits hold for every packet of both MQTT versions.
1. A device that has sent many packets at once is read in turns with the others.
2. An expected acknowledgement costs nothing: there are only as many as messages were sent to the device. But a device with many
   of them has no low rate: its records wait for each other.
3. While low-rate devices wait, it may use only a share of its rates (sinks/mqtt/limits/adaptive_rate.py).
"""

import math
from typing import Final

from sinks.mqtt.limits.adaptive_rate import SMALLEST_SHARE, AdaptiveRateLimiter
from sinks.mqtt.limits.packet_parts import PARTS_LIKE_A_PACKET_BYTES, PacketParts
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits, Limit

_PACKETS_IN_A_TURN: Final = 32
_TURN_MS: Final = 1
_BURSTS_IN_A_SECOND: Final = 10
"""A burst is a tenth of a second's rate. With bursts of a second, four flooding devices would make 8,000 records at once."""
_MOST_USED_S: Final = 2 * SMALLEST_SHARE
"""At most, so that a device has a low rate again a second after it has stopped."""


class PacketRates:
    """The rates of one connection. Times are milliseconds of one monotonic clock.

    Args:
        limiter: None = there are no other connections.

    Attributes:
        paused_until_ms: Read nothing until then, then call `resume`; None = there is no pause.
    """

    __slots__ = (
        "_bytes",
        "_counters",
        "_in_turn",
        "_limiter",
        "_limits",
        "_packets",
        "_turn_ms",
        "_used_ms",
        "_used_s",
        "parts",
        "paused_until_ms",
    )

    def __init__(
        self, limits: DeviceLimits, counters: GatewayCounters, now_ms: int, limiter: AdaptiveRateLimiter | None = None
    ) -> None:
        self._limits = limits
        self._packets = _bucket(limits.max_packet_rate, now_ms)
        self._bytes = _bucket(limits.max_byte_rate, now_ms)
        self._counters = counters
        self._limiter = limiter
        self._turn_ms = now_ms
        self._in_turn = 0
        self._used_s = 0.0
        """Seconds that all packets take at the full rate, beyond `SMALLEST_SHARE` of it; measured at `_used_ms`."""
        self._used_ms = now_ms
        self.parts = PacketParts(limits, counters)
        self.paused_until_ms: int | None = None

    def may_read(self, now_ms: int) -> bool:
        """Asks for one more packet. False: `paused_until_ms` is set."""
        if self.paused_until_ms is not None:
            return False
        self._drain(now_ms)
        limiter, share = self._limiter, 1.0
        if limiter is not None:
            share = limiter.packet_share
            # By the clock, because uvloop's time does not change within an iteration of the loop.
            if now_ms != self._turn_ms:
                self._turn_ms, self._in_turn = now_ms, 0
            self._in_turn += 1
            if self._in_turn > _PACKETS_IN_A_TURN:
                self.paused_until_ms = now_ms + _TURN_MS
                return False
        packets_ms, bytes_ms = self._packets.ready_ms(now_ms, share), self._bytes.ready_ms(now_ms, share)
        if packets_ms <= now_ms >= bytes_ms:
            return True
        self.paused_until_ms = max(packets_ms, bytes_ms)
        self._counters.limits_reached[Limit.PACKET_RATE if packets_ms >= bytes_ms else Limit.BYTE_RATE] += 1
        return False

    def count(self, packet: bytes, parts_bytes: int, *, is_expected: bool) -> None:
        """Counts a packet that `may_read` has admitted.

        Args:
            parts_bytes: The size that `PacketParts.measure` has found.
            is_expected: True for an acknowledgement that was waited for. Only its properties count.
        """
        packets, size_bytes = parts_bytes // PARTS_LIKE_A_PACKET_BYTES, 0
        if not is_expected:
            packets, size_bytes = packets + 1, len(packet)
        elif not packets:
            self._used_s = min(self._used_s + self._seconds(1, 0), _MOST_USED_S)
            return
        self._packets.consume(packets)
        self._bytes.consume(size_bytes)
        seconds = self._seconds(packets, size_bytes)
        self._used_s = min(self._used_s + seconds, _MOST_USED_S)
        if self._limiter is not None and self._used_s > SMALLEST_SHARE:
            self._limiter.used(seconds)

    def _seconds(self, packets: int, size_bytes: int) -> float:
        """Returns how long this takes at the full rates."""
        limits = self._limits
        return max(packets / (limits.max_packet_rate or math.inf), size_bytes / (limits.max_byte_rate or math.inf))

    def is_low_rate(self, now_ms: int) -> bool:
        """Returns True if the device uses less than `SMALLEST_SHARE` of its rates, acknowledgements included."""
        self._drain(now_ms)
        return self._used_s <= SMALLEST_SHARE

    def _drain(self, now_ms: int) -> None:
        self._used_s = max(0.0, self._used_s - (now_ms - self._used_ms) * SMALLEST_SHARE / 1_000)
        self._used_ms = now_ms

    def resume(self, now_ms: int) -> bool:
        """Ends a pause that is over. Returns True if it did."""
        if self.paused_until_ms is None or now_ms < self.paused_until_ms:
            return False
        self.paused_until_ms = None
        return True


def _bucket(per_s: int, now_ms: int) -> TokenBucket:
    return TokenBucket(per_s, now_ms, burst=max(1, per_s // _BURSTS_IN_A_SECOND))
