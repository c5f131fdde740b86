"""How fast one device may send, in packets and in bytes: beyond, it is not read from for a moment. Nothing is lost by it, so it
holds for every packet of every version.

All devices of a gateway share one event loop and one way into Kafka: what one of them sends keeps the others waiting. Therefore
1. a device that has sent many packets at once gets a turn like any other, and then the others get theirs;
2. an acknowledgement that is waited for costs nothing: there are no more of them than there was sent to the device;
3. while they wait, a device may send only a share of its rates. It falls until nobody waits, or to 1/64, and comes back
   slowly, as TCP shares a line: it slows down who sends most, and nobody else notices.

How long they wait: how late the event loop is, and how much longer Kafka takes to confirm a record than it does when there are
few. (TCP Vegas looks at the round trips in the same way.)
"""

import math
from typing import Final

from sinks.mqtt.limits.packet_parts import PARTS_LIKE_A_PACKET_BYTES, PacketParts
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters

_SMALLEST_SHARE: Final = 1 / 64
_FALLS: Final = 0.8
_RISES: Final = 1.02
"""At each beat: it takes almost two seconds until the share is twice as much."""
_LEAST_RISES_MS: Final = 0.02
"""At each beat: what Kafka takes at least may become more, by 0.4 ms in a second. Not by a factor: a record that was refused at
once takes nothing, and nothing would stay nothing."""
_PACKETS_IN_A_TURN: Final = 32
_TURN_MS: Final = 1


class FairShare:
    """Of one gateway. share: of its rates that each device has."""

    __slots__ = ("_least_append_ms", "_max_delay_ms", "share")

    def __init__(self, limits: DeviceLimits) -> None:
        self.share = 1.0
        self._least_append_ms = math.inf
        self.take(limits)

    def take(self, limits: DeviceLimits) -> None:
        """Another limit, from now on."""
        self._max_delay_ms = limits.max_delay_ms

    def beat(self, loop_lag_ms: float, append_ms: float | None) -> None:
        """loop_lag_ms: how late the event loop has called this; it is to do so every 50 ms. append_ms: what Kafka took to confirm
        records since the last time; None = there were none."""
        delay_ms = loop_lag_ms
        if append_ms is not None:
            self._least_append_ms = min(self._least_append_ms + _LEAST_RISES_MS, append_ms)
            delay_ms = max(loop_lag_ms, append_ms - self._least_append_ms)
        is_late = 0 < self._max_delay_ms < delay_ms
        self.share = max(_SMALLEST_SHARE, self.share * _FALLS) if is_late else min(1.0, self.share * _RISES)


class PacketRates:
    """Of one connection. Times are milliseconds of one monotonic clock.

    paused_until_ms: nothing is to be read before, then call `resume`; None = it goes on. fair: None = there are no others.
    """

    __slots__ = ("_bytes", "_counters", "_fair", "_in_turn", "_packets", "_turn_ms", "parts", "paused_until_ms")

    def __init__(self, limits: DeviceLimits, counters: GatewayCounters, now_ms: int, fair: FairShare | None = None) -> None:
        self._packets = TokenBucket(limits.max_packet_rate, now_ms)
        self._bytes = TokenBucket(limits.max_byte_rate, now_ms)
        self._counters = counters
        self._fair = fair
        self._turn_ms = now_ms
        self._in_turn = 0
        self.parts = PacketParts(limits, counters)
        self.paused_until_ms: int | None = None

    def may_read(self, now_ms: int) -> bool:
        """One more packet. False: there is a `paused_until_ms`."""
        if self.paused_until_ms is not None:
            return False
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
        self._packets.take(1 + parts_bytes // PARTS_LIKE_A_PACKET_BYTES)
        self._bytes.take(len(packet))

    def give_back(self, packet: bytes) -> None:
        """It was one that is waited for. What its properties count stays taken."""
        self._packets.take(-1)
        self._bytes.take(-len(packet))

    def resume(self, now_ms: int) -> bool:
        """Whether a pause is over, now."""
        if self.paused_until_ms is None or now_ms < self.paused_until_ms:
            return False
        self.paused_until_ms = None
        return True
