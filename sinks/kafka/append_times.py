"""Counts how long Kafka takes to confirm records of a gateway or bridge: one search in a short list for each."""

from bisect import bisect_left
from typing import Final

from prometheus_client.core import HistogramMetricFamily

BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class AppendTimes:
    """A histogram. `add` is called on the event loop's thread, `family` on any: a sample may be one append old."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """Returns the histogram for Prometheus.

        Args:
            name: The name of the metric, which is in seconds.
            text: The help text of the metric.
        """
        total, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts.copy(), strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(name, text)
        family.add_metric((), buckets, self._sum_s)
        return family
