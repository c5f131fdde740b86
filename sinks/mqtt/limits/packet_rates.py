"""How fast one device may send, in packets and in bytes: beyond, it is not read from for a moment. Nothing is lost by it, so it
holds for every packet of every version.

1. A device that has sent many packets at once gets a turn like any other, and then the others get theirs.
2. An acknowledgement that is waited for costs nothing: there are no more of them than there was sent to the device.
3. While others wait it may use only a share of its rates (sinks/mqtt/limits/adaptive_rate.py).
"""

import math
from typing import Final

from sinks.mqtt.limits.adaptive_rate import SMALLEST_SHARE, FairShare
from sinks.mqtt.limits.packet_parts import PARTS_LIKE_A_PACKET_BYTES, PacketParts
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters

_PACKETS_IN_A_TURN: Final = 32
_TURN_MS: Final = 1
_BURSTS_IN_A_SECOND: Final = 10
"""As much as a tenth of a second has may come at once. Of a whole one, a flood of four devices is 8,000 records in its first
instant, for which all others wait."""
_MOST_USED_S: Final = 2 * SMALLEST_SHARE
"""So a device is modest again a second after it has stopped."""


class PacketRates:
    """Of one connection. Times are milliseconds of one monotonic clock.

    paused_until_ms: nothing is to be read before, then call `resume`; None = it goes on. fair: None = there are no others.
    """

    __slots__ = (
        "_bytes",
        "_counters",
        "_fair",
        "_in_turn",
        "_limits",
        "_packets",
        "_turn_ms",
        "_used_ms",
        "_used_s",
        "parts",
        "paused_until_ms",
    )

    def __init__(self, limits: DeviceLimits, counters: GatewayCounters, now_ms: int, fair: FairShare | None = None) -> None:
        self._limits = limits
        self._packets = _bucket(limits.max_packet_rate, now_ms)
        self._bytes = _bucket(limits.max_byte_rate, now_ms)
        self._counters = counters
        self._fair = fair
        self._turn_ms = now_ms
        self._in_turn = 0
        self._used_s = 0.0
        """What it has sent takes so long at the whole rates, beyond `SMALLEST_SHARE` of them. At `_used_ms`."""
        self._used_ms = now_ms
        self.parts = PacketParts(limits, counters)
        self.paused_until_ms: int | None = None

    def may_read(self, now_ms: int) -> bool:
        """One more packet. False: there is a `paused_until_ms`."""
        if self.paused_until_ms is not None:
            return False
        self._drain(now_ms)
        fair, share = self._fair, 1.0
        if fair is not None:
            share = fair.share
            if self._ends_turn(now_ms):
                self.paused_until_ms = now_ms + _TURN_MS
                return False
        packets_ms, bytes_ms = self._packets.ready_ms(now_ms, share), self._bytes.ready_ms(now_ms, share)
        if packets_ms <= now_ms >= bytes_ms:
            return True
        self.paused_until_ms = max(packets_ms, bytes_ms)
        self._counters.limits_reached[Limit.PACKET_RATE if packets_ms >= bytes_ms else Limit.BYTE_RATE] += 1
        return False

    def _ends_turn(self, now_ms: int) -> bool:
        """uvloop's clock stands still for a turn of the loop, however often this device is read in it."""
        if now_ms != self._turn_ms:
            self._turn_ms, self._in_turn = now_ms, 0
        self._in_turn += 1
        return self._in_turn > _PACKETS_IN_A_TURN

    def read(self, packet: bytes, body_start: int, *, is_v5: bool) -> None:
        """A packet, after `may_read`. A large one may take more than there is; then the next one waits the longer.

        Raises ProtocolViolation as PacketParts does.
        """
        parts_bytes = self.parts.measure(packet, body_start, is_v5=is_v5)
        packets = 1 + parts_bytes // PARTS_LIKE_A_PACKET_BYTES
        self._packets.take(packets)
        self._bytes.take(len(packet))
        self._used_s = min(self._used_s + self._seconds(packets, len(packet)), _MOST_USED_S)

    def give_back(self, packet: bytes) -> None:
        """It was one that is waited for. What its properties count stays taken."""
        self._packets.take(-1)
        self._bytes.take(-len(packet))
        self._used_s -= self._seconds(1, len(packet))

    def _seconds(self, packets: int, size_bytes: int) -> float:
        """So long this takes at the whole rates."""
        limits = self._limits
        return max(packets / (limits.max_packet_rate or math.inf), size_bytes / (limits.max_byte_rate or math.inf))

    def is_modest(self, now_ms: int) -> bool:
        """See FairShare."""
        self._drain(now_ms)
        return self._used_s <= SMALLEST_SHARE

    def _drain(self, now_ms: int) -> None:
        self._used_s = max(0.0, self._used_s - (now_ms - self._used_ms) * SMALLEST_SHARE / 1_000)
        self._used_ms = now_ms

    def resume(self, now_ms: int) -> bool:
        """Whether a pause is over, now."""
        if self.paused_until_ms is None or now_ms < self.paused_until_ms:
            return False
        self.paused_until_ms = None
        return True


def _bucket(per_s: int, now_ms: int) -> TokenBucket:
    return TokenBucket(per_s, now_ms, burst=max(1, per_s // _BURSTS_IN_A_SECOND))
