"""What part of its rates a device may use while others wait.

All devices of a gateway share one event loop and one way into Kafka: what one of them sends keeps the others waiting.
1. A device that uses less than `SMALLEST_SHARE` of its rates is modest: it would never notice any of this.
2. Devices are slowed down for the modest ones and never for each other: those that send much wait for what they send themselves.
3. While modest devices wait, every device has only a share of its rates. It falls until they do not, or to `SMALLEST_SHARE`, and
   comes back slowly, as TCP shares a line: it slows down who sends most, and nobody else notices.

They wait when more than one in fifty of their records is late: Kafka takes longer to confirm it than it does when there are few,
by `max_delay_ms` and by twice as much at least. And, as long as there are such records, when the event loop is as late. A second
without any, and none under way: there is nobody to wait.
"""

import math
from typing import Final

from sinks.mqtt.limits.settings import DeviceLimits

SMALLEST_SHARE: Final = 1 / 64
_FALLS: Final = 0.5
_RISES: Final = 1.01
"""At each beat: the share is twice as much after three and a half seconds. Each time that it is too much somebody waits."""
_LEAST_RISES_MS: Final = 0.02
"""At each beat: what Kafka takes at least may become more, by 0.4 ms in a second. Not by a factor: nothing would stay nothing."""
_NOBODY_AFTER_BEATS: Final = 20
_MOST_LATE: Final = 1 / 50
_FORGETS: Final = 0.95
"""At each beat: what counts is mostly of the last second."""
_LONGER: Final = 2


class FairShare:
    """Of one gateway. share: of its rates that each device has."""

    __slots__ = (
        "_beats_without",
        "_late",
        "_least_ms",
        "_max_delay_ms",
        "_new_late",
        "_new_records",
        "_new_sum_ms",
        "_records",
        "_waiting",
        "share",
    )

    def __init__(self, limits: DeviceLimits) -> None:
        self.share = 1.0
        self._least_ms = math.inf
        self._new_records = self._new_late = 0
        self._new_sum_ms = 0.0
        self._records = self._late = 0.0
        self._beats_without = _NOBODY_AFTER_BEATS
        self._waiting = 0
        self.take(limits)

    def take(self, limits: DeviceLimits) -> None:
        """Another limit, from now on."""
        self._max_delay_ms = limits.max_delay_ms

    def handed_over(self, records: int) -> None:
        """To Kafka, of a modest device. Call `waited` once for each."""
        self._waiting += records

    def waited(self, append_ms: float | None) -> None:
        """Kafka has confirmed a record of a modest device, after so long. None: it has not taken it."""
        self._waiting -= 1
        if append_ms is None:
            return
        self._new_records += 1
        self._new_sum_ms += append_ms
        least_ms = self._least_ms
        self._new_late += append_ms - least_ms > max(self._max_delay_ms, _LONGER * least_ms)

    def beat(self, loop_lag_ms: float) -> None:
        """loop_lag_ms: how late the event loop has called this; it is to do so every 50 ms."""
        records, late = self._new_records, self._new_late
        self._records = self._records * _FORGETS + records
        self._late = self._late * _FORGETS + late
        if records:
            self._least_ms = min(self._least_ms + _LEAST_RISES_MS, self._new_sum_ms / records)
            self._new_records, self._new_late, self._new_sum_ms = 0, 0, 0.0
        somebody_waits = records > 0 or self._waiting > 0
        self._beats_without = 0 if somebody_waits else min(self._beats_without + 1, _NOBODY_AFTER_BEATS)
        if self._beats_without >= _NOBODY_AFTER_BEATS:
            self.share = 1.0
            return
        is_late = loop_lag_ms > self._max_delay_ms or (late > 0 and self._late > _MOST_LATE * self._records)
        if is_late and self._max_delay_ms:
            self.share = max(SMALLEST_SHARE, self.share * _FALLS)
        else:
            self.share = min(1.0, self.share * _RISES)
