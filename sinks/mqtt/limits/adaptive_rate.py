"""Slows all devices of a gateway down while those that send little have to wait.

All devices share one event loop and one way into Kafka, so what one device sends delays the others.
1. A device that uses less than `SMALLEST_SHARE` of its rates, and gets as little, is a low-rate device. This limiter never delays
   it.
2. Only waiting low-rate devices reduce the share. A device that sends much waits for its own records.
3. While low-rate devices wait, every device has only a share of its rates, at least `SMALLEST_SHARE`. The share halves until they
   no longer wait, and grows back slowly, as TCP's congestion window does. Only the devices that send most notice it.
4. While all other devices together use less than `LIGHT_USE` of the rates of one, they are not why anybody waits: the machine is
   busy with something else. Then the share for packets is at least `LIGHT_USE`.

Low-rate devices wait when more than one in fifty of their records is late. A record is late when its confirmation takes longer
than with few records, by more than `max_delay_ms` and more than twice that time. While there are such records, a late event loop
counts too. After a second without any, and none in flight, no low-rate device waits.
"""

import math
from typing import Final

from sinks.mqtt.settings import DeviceLimits

SMALLEST_SHARE: Final = 1 / 64
LIGHT_USE: Final = 1 / 4
_FALLS: Final = 0.5
_RISES: Final = 1.01
"""Each 50 ms: the share doubles in three and a half seconds. Slowly, because devices wait whenever it has grown too far."""
_LEAST_RISES_MS: Final = 0.02
"""The latency floor may drift up by 0.4 ms/s. The drift is additive because a factor would never leave zero."""
_IDLE_INTERVALS: Final = 20
"""Intervals of 50 ms in one second."""
_MOST_LATE: Final = 1 / 50
_FORGETS: Final = 0.95
"""Each 50 ms, so that mostly the last second counts."""
_LONGER: Final = 2


class AdaptiveRateLimiter:
    """The limiter of one gateway.

    Attributes:
        share: The part of its rates that each device may use now.
        packet_share: The same for what connected devices send.
    """

    __slots__ = (
        "_idle_intervals",
        "_late",
        "_least_ms",
        "_max_delay_ms",
        "_new_late",
        "_new_records",
        "_new_sum_ms",
        "_records",
        "_use_s",
        "_waiting",
        "packet_share",
        "share",
    )

    def __init__(self, limits: DeviceLimits) -> None:
        self.share = self.packet_share = 1.0
        self._use_s = 0.0
        self._least_ms = math.inf
        self._new_records = self._new_late = 0
        self._new_sum_ms = 0.0
        self._records = self._late = 0.0
        self._idle_intervals = _IDLE_INTERVALS
        self._waiting = 0
        self.reconfigure(limits)

    def reconfigure(self, limits: DeviceLimits) -> None:
        self._max_delay_ms = limits.max_delay_ms

    def used(self, seconds: float) -> None:
        """Counts what a device has sent that is not a low-rate one.

        Args:
            seconds: Seconds that it takes at the full rates of one device.
        """
        self._use_s += seconds

    def appended(self, records: int) -> None:
        """Counts records of a low-rate device that were given to Kafka. Call `confirmed` once for each."""
        self._waiting += records

    def confirmed(self, append_ms: float | None) -> None:
        """Counts the end of one append of a low-rate device, and whether its confirmation was late.

        Args:
            append_ms: Milliseconds from the append to the confirmation; None = the append failed.
        """
        self._waiting -= 1
        if append_ms is None:
            return
        self._new_records += 1
        self._new_sum_ms += append_ms
        least_ms = self._least_ms
        self._new_late += append_ms - least_ms > max(self._max_delay_ms, _LONGER * least_ms)

    def observe_lag(self, loop_lag_ms: float) -> None:
        """Adapts the shares; called every 50 ms.

        Args:
            loop_lag_ms: How late the event loop has called this, in milliseconds.
        """
        self._adapt(loop_lag_ms)
        self.packet_share = max(self.share, LIGHT_USE) if self._use_s < LIGHT_USE else self.share
        self._use_s *= _FORGETS

    def _adapt(self, loop_lag_ms: float) -> None:
        records, late = self._new_records, self._new_late
        self._records = self._records * _FORGETS + records
        self._late = self._late * _FORGETS + late
        if records:
            self._least_ms = min(self._least_ms + _LEAST_RISES_MS, self._new_sum_ms / records)
            self._new_records, self._new_late, self._new_sum_ms = 0, 0, 0.0
        has_waiting = records > 0 or self._waiting > 0
        self._idle_intervals = 0 if has_waiting else min(self._idle_intervals + 1, _IDLE_INTERVALS)
        if self._idle_intervals >= _IDLE_INTERVALS:
            self.share = 1.0
            return
        is_late = loop_lag_ms > self._max_delay_ms or (late > 0 and self._late > _MOST_LATE * self._records)
        if is_late and self._max_delay_ms:
            self.share = max(SMALLEST_SHARE, self.share * _FALLS)
        else:
            self.share = min(1.0, self.share * _RISES)
