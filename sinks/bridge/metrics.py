"""What a bridge counts, and how Prometheus reads it (docs/metrics.md). Plain integers that only the loop's thread changes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sinks.kafka.append_times import AppendTimes


@dataclass(slots=True, kw_only=True)
class BridgeCounters:
    """One bridge's numbers since it started; gauges are marked."""

    devices: int = 0  # gauge: devices that this bridge holds a connection for
    partitions_owned: int = 0  # gauge: of the commands topic
    broker_connections: int = 0
    connections_refused: int = 0  # by the broker, or not reached
    broker_losses: Counter[str] = field(default_factory=Counter)  # by cause
    publishes_sent: int = 0
    publishes_refused: Counter[int] = field(default_factory=Counter)  # by the broker's reason code
    publishes_held_off: int = 0  # refused here because the broker has said 0x97 a moment ago
    unsendable: int = 0  # messages that this broker's topics cannot carry
    acknowledgements: Counter[int] = field(default_factory=Counter)  # of devices, by reason code
    acknowledgements_unknown: int = 0  # repeated, late, or not for this bridge
    acknowledgements_unreadable: int = 0
    publications_received: int = 0
    publications_too_large: int = 0
    commands_applied: int = 0
    commands_repeated: int = 0
    commands_without_connection: int = 0
    closed_for_other_code: int = 0  # devices' connections (sinks/host/command_order.py)
    resends_dropped: int = 0
    unreadable_commands: int = 0
    leases_lost: int = 0  # each took all devices offline
    appends_unconfirmed: int = 0  # gauge
    appends_failed: int = 0
    append_seconds: AppendTimes = field(default_factory=AppendTimes)


class BridgeCollector(Collector):
    """Register once with a prometheus-client registry. Read from the exporter's thread: a sample may be one message old."""

    _GAUGES = ("devices", "partitions_owned", "appends_unconfirmed")

    def __init__(self, counters: BridgeCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        yield self._counters.append_seconds.family(
            "inflight_bridge_append_seconds", "From an append to its confirmation by Kafka"
        )
        for name in BridgeCounters.__dataclass_fields__:
            if name == "append_seconds":
                continue
            value = getattr(self._counters, name)
            text = f"{name.replace('_', ' ')} of this bridge (docs/metrics.md)"
            if isinstance(value, Counter):
                family = CounterMetricFamily(f"inflight_bridge_{name}", text, labels=("reason",))
                for key, count in sorted(value.copy().items()):
                    family.add_metric((f"{key:#04x}" if isinstance(key, int) else key,), count)
                yield family
            elif name in self._GAUGES:
                yield GaugeMetricFamily(f"inflight_bridge_{name}", text, value=value)
            else:
                yield CounterMetricFamily(f"inflight_bridge_{name}", text, value=value)
