"""The counters of a gateway, and their collector for Prometheus (docs/metrics.md).

The counters are plain integers that only the event loop's thread changes: a prometheus-client counter takes a lock per packet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sinks.kafka.append_times import AppendTimes


def _gauge(text: str, name: str = "", *, default: int = 0) -> Any:
    return field(default=default, metadata={"text": text, "name": name, "is_gauge": True})


def _count(text: str, name: str = "") -> Any:
    return field(default=0, metadata={"text": text, "name": name})


def _by(label: str, text: str) -> Mapping[str, str]:
    return {"text": text, "label": label}


@dataclass(slots=True, kw_only=True)
class GatewayCounters:
    """Numbers since the gateway started, each with its text for Prometheus, and the metric's name if it differs."""

    connections_open: int = _gauge("Devices connected", "connections")
    # The next six are measured once a second.
    sockets_open: int = _gauge("Sockets open, with those that have not connected yet", "sockets")
    writers_blocked: int = _gauge("Sockets whose device does not read, and gets nothing new")
    unsent_bytes: int = _gauge("Bytes that devices have not taken yet")
    buffered_bytes: int = _gauge("Bytes held for devices: packets without end, messages, unsent")
    fair_share: float = _gauge("Share of its rates that each device has, 1 = all of them", default=1)
    partitions_owned: int = _gauge("Partitions of the commands topic")
    appends_unconfirmed: int = _gauge("Records given to Kafka and not yet confirmed")
    append_seconds: AppendTimes = field(
        default_factory=AppendTimes, metadata={"text": "From an append to its confirmation by Kafka"}
    )
    connections_accepted: int = _count("CONNACK 0x00 sent")
    publishes_sent: int = _count("PUBLISH packets written")
    resends_dropped: int = _count("Resends that the device no longer needed")
    qos0_dropped: int = _count("QoS 0 messages dropped because the device does not read")
    unsendable: int = _count("Messages that MQTT cannot carry")
    publishes_refused: int = _count("Publications over max_publish_rate, answered 0x97")
    fast_publishes_sent: int = _count("PUBLISH packets written by the fast path")
    offers_taken: int = _count("Messages taken by the fast path")
    offers_ignored: int = _count("Messages for devices without a grant, and offers of a known message")
    copies_dropped: int = _count("PUBLISHes of the engine that the fast path had sent before")
    adoptions: int = _count("Messages of the fast path confirmed by the engine")
    adoption_delay_ms: int = _count("From sending to that confirmation, sum of all", "adoption_delay_seconds")
    commands_applied: int = _count("Commands of the engine carried out")
    commands_repeated: int = _count("Commands ignored because they were carried out before")
    commands_without_connection: int = _count("Commands for a connection that is not held here")
    closed_for_other_code: int = _count("Connections closed: commands came again from other code")
    unreadable_commands: int = _count("Undecodable records of the commands topic")
    leases_lost: int = _count("Leases that passed while connections were held, which all ended")
    appends_confirmed: int = _count("Records confirmed by Kafka")
    appends_failed: int = _count("Records that Kafka did not take in time")
    bugs: int = _count("Connections closed by an error of the gateway itself")
    offers_refused: Counter[str] = field(default_factory=Counter, metadata=_by("reason", "Messages left to the micro-batches"))
    connections_refused: Counter[int] = field(default_factory=Counter, metadata=_by("code", "CONNECT refused"))
    sockets_refused: Counter[str] = field(default_factory=Counter, metadata=_by("step", "Sockets closed before MQTT"))
    limits_reached: Counter[str] = field(default_factory=Counter, metadata=_by("limit", "What was refused because of a limit"))
    logins_refused: Counter[str] = field(default_factory=Counter, metadata=_by("reason", "CONNECT refused for who it is"))
    not_authorized: Counter[str] = field(default_factory=Counter, metadata=_by("what", "PUBLISH and SUBSCRIBE refused by a rule"))
    connections_lost: Counter[str] = field(
        default_factory=Counter, metadata=_by("cause", "Connections that ended without DISCONNECT")
    )
    protocol_errors: Counter[int] = field(
        default_factory=Counter, metadata=_by("code", "Connections closed for what the device sent")
    )
    packets_received: Counter[str] = field(default_factory=Counter, metadata=_by("type", "Packets from devices"))


class GatewayCollector(Collector):
    """Register once with a prometheus-client registry. Read from the exporter's thread: a sample may be one packet old."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for known in fields(self._counters):
            value, metadata = getattr(self._counters, known.name), known.metadata
            name, text = f"inflight_gateway_{metadata.get('name') or known.name}", metadata["text"]
            if isinstance(value, AppendTimes):
                yield value.family(name, text)
            elif isinstance(value, Counter):
                family = CounterMetricFamily(name, text, labels=(metadata["label"],))
                for key, count in sorted(value.copy().items()):
                    family.add_metric((f"{key:#04x}" if isinstance(key, int) else key,), count)
                yield family
            elif "is_gauge" in metadata:
                yield GaugeMetricFamily(name, text, value=value)
            else:
                yield CounterMetricFamily(name, text, value=value / 1_000 if known.name.endswith("_ms") else value)
