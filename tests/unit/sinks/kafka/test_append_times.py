from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sinks.kafka.append_times import AppendTimes


def test_each_append_is_in_all_buckets_that_are_not_shorter() -> None:
    times = AppendTimes()
    for seconds in (0.001, 0.003, 0.003, 7.0):
        times.add(seconds)

    class One(Collector):
        def collect(self) -> list[Metric]:
            return [times.family("a_seconds", "text")]

    registry = CollectorRegistry()
    registry.register(One())
    text = generate_latest(registry).decode()
    for line in (
        'a_seconds_bucket{le="0.001"} 1.0',
        'a_seconds_bucket{le="0.002"} 1.0',
        'a_seconds_bucket{le="0.005"} 3.0',
        'a_seconds_bucket{le="5.0"} 3.0',
        'a_seconds_bucket{le="+Inf"} 4.0',
        "a_seconds_count 4.0",
        "a_seconds_sum 7.007",
    ):
        assert f"\n{line}\n" in text
