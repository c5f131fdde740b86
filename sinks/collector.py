"""Serves the counters of a gateway or bridge to Prometheus (docs/reference/metrics.md).

The counters are plain integers that only the event loop's thread changes: a prometheus-client counter takes a lock per packet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sinks.kafka.append_times import AppendTimes


def gauge(text: str, name: str = "", *, default: int = 0) -> Any:
    """Declares a gauge.

    Args:
        name: The name of the metric, if it differs from the field's.
    """
    return field(default=default, metadata={"text": text, "name": name, "is_gauge": True})


def count(text: str, name: str = "") -> Any:
    """Declares a counter. A field in milliseconds is served in seconds."""
    return field(default=0, metadata={"text": text, "name": name})


def by(label: str, text: str) -> Mapping[str, str]:
    """Returns the metadata of a Counter with one count for each value of a label."""
    return {"text": text, "label": label}


class CountersCollector(Collector):
    """Collects the fields of a dataclass. It runs on the exporter's thread, so a sample may be one message old."""

    def __init__(self, counters: Any, prefix: str) -> None:
        self._counters = counters
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        for known in fields(self._counters):
            value, metadata = getattr(self._counters, known.name), known.metadata
            name, text = f"{self._prefix}{metadata.get('name') or known.name}", metadata["text"]
            if isinstance(value, AppendTimes):
                yield value.family(name, text)
            elif isinstance(value, Counter):
                family = CounterMetricFamily(name, text, labels=(metadata["label"],))
                for key, number in sorted(value.copy().items()):
                    family.add_metric((f"{key:#04x}" if isinstance(key, int) else key,), number)
                yield family
            elif "is_gauge" in metadata:
                yield GaugeMetricFamily(name, text, value=value)
            else:
                yield CounterMetricFamily(name, text, value=value / 1_000 if known.name.endswith("_ms") else value)
