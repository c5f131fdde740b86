"""What a gateway counts, and how Prometheus reads it (docs/metrics.md).

The counters are plain integers that only the event loop's thread changes: a prometheus-client counter takes a lock per packet.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sinks.kafka.append_times import AppendTimes


@dataclass(slots=True, kw_only=True)
class GatewayCounters:
    """One gateway's numbers since it started; gauges are marked."""

    connections_open: int = 0  # gauge: CONNACK 0x00 sent, socket open
    sockets_open: int = 0  # gauge, counted once a second: with those before CONNECT, and those that linger
    writers_blocked: int = 0  # gauge, likewise: sockets whose device does not read
    unsent_bytes: int = 0  # gauge, likewise: given to sockets, and not taken by devices
    buffered_bytes: int = 0  # gauge, likewise: what is held for all devices together, see sinks.mqtt.limits.buffered
    fair_share: float = 1.0  # gauge, likewise: of its rates that each device has, see sinks.mqtt.limits.fair_share
    partitions_owned: int = 0  # gauge, likewise: of the commands topic
    connections_accepted: int = 0
    connections_refused: Counter[int] = field(default_factory=Counter)  # by CONNACK reason code
    sockets_refused: Counter[str] = field(default_factory=Counter)  # by the step before MQTT that they did not get over
    limits_reached: Counter[str] = field(default_factory=Counter)  # by the key of the limit
    logins_refused: Counter[str] = field(default_factory=Counter)  # by reason
    not_authorized: Counter[str] = field(default_factory=Counter)  # by what was refused: publish, subscribe
    connections_lost: Counter[str] = field(default_factory=Counter)  # by cause
    protocol_errors: Counter[int] = field(default_factory=Counter)  # by reason code
    packets_received: Counter[str] = field(default_factory=Counter)  # by packet type
    publishes_sent: int = 0
    resends_dropped: int = 0
    qos0_dropped: int = 0  # for devices that do not read
    unsendable: int = 0  # messages that MQTT cannot carry
    publishes_refused: int = 0  # answered 0x97, max_publish_rate
    fast_publishes_sent: int = 0  # of publishes_sent
    offers_taken: int = 0
    offers_refused: Counter[str] = field(default_factory=Counter)  # by reason, left to the session
    offers_ignored: int = 0  # without a grant, or known
    copies_dropped: int = 0  # PUBLISHes of the session that the fast path has sent before
    adoptions: int = 0  # messages taken, of which the session has said that it knows
    adoption_delay_ms: int = 0  # from taking to that, all together
    commands_applied: int = 0
    commands_repeated: int = 0
    commands_without_connection: int = 0
    closed_for_other_code: int = 0  # connections (sinks/host/command_order.py)
    unreadable_commands: int = 0
    leases_lost: int = 0  # each cost all connections
    appends_unconfirmed: int = 0  # gauge
    appends_confirmed: int = 0
    appends_failed: int = 0
    append_seconds: AppendTimes = field(default_factory=AppendTimes)
    bugs: int = 0  # exceptions that should not exist; each cost one connection


class GatewayCollector(Collector):
    """Register once with a prometheus-client registry. Read from the exporter's thread: a sample may be one packet old."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield _gauge("connections", "Devices connected", counters.connections_open)
        yield _gauge("sockets", "Sockets open, with those that have not connected yet", counters.sockets_open)
        yield _gauge("writers_blocked", "Sockets whose device does not read, and gets nothing new", counters.writers_blocked)
        yield _gauge("unsent_bytes", "Bytes that devices have not taken yet", counters.unsent_bytes)
        yield _gauge("buffered_bytes", "Bytes held for devices: packets without end, messages, unsent", counters.buffered_bytes)
        yield _gauge("fair_share", "Share of its rates that each device has, 1 = all of them", counters.fair_share)
        yield _gauge("partitions_owned", "Partitions of the commands topic", counters.partitions_owned)
        yield counters.append_seconds.family("inflight_gateway_append_seconds", "From an append to its confirmation by Kafka")
        yield _gauge("appends_unconfirmed", "Records given to Kafka and not yet confirmed", counters.appends_unconfirmed)
        yield _counter("connections_accepted", "CONNACK 0x00 sent", counters.connections_accepted)
        yield _counter("publishes_sent", "PUBLISH packets written", counters.publishes_sent)
        yield _counter("resends_dropped", "Resends that the device no longer needed", counters.resends_dropped)
        yield _counter("qos0_dropped", "QoS 0 messages dropped because the device does not read", counters.qos0_dropped)
        yield _counter("fast_publishes_sent", "PUBLISH packets written by the fast path", counters.fast_publishes_sent)
        yield _counter("offers_taken", "Messages taken by the fast path", counters.offers_taken)
        yield _labelled("offers_refused", "Messages left to the micro-batches", "reason", counters.offers_refused.copy())
        yield _counter(
            "offers_ignored", "Messages for devices without a grant, and offers of a known message", counters.offers_ignored
        )
        yield _counter("copies_dropped", "PUBLISHes of the engine that the fast path had sent before", counters.copies_dropped)
        yield _counter("adoptions", "Messages of the fast path that the engine is known to know", counters.adoptions)
        yield _counter("adoption_delay_seconds", "From taking them to that, all together", counters.adoption_delay_ms / 1_000)
        yield _counter("publishes_refused", "Publications over max_publish_rate, answered 0x97", counters.publishes_refused)
        yield _counter("unsendable", "Messages that MQTT cannot carry", counters.unsendable)
        yield _counter("commands_applied", "Commands of the engine carried out", counters.commands_applied)
        yield _counter("commands_repeated", "Commands ignored because they were carried out before", counters.commands_repeated)
        yield _counter(
            "commands_without_connection", "Commands for a connection that is not held here", counters.commands_without_connection
        )
        yield _counter(
            "closed_for_other_code",
            "Connections closed: commands came again from other code",
            counters.closed_for_other_code,
        )
        yield _counter("unreadable_commands", "Records of the commands topic that are none", counters.unreadable_commands)
        yield _counter("leases_lost", "Leases that passed while connections were held, which all ended", counters.leases_lost)
        yield _counter("appends_confirmed", "Records confirmed by Kafka", counters.appends_confirmed)
        yield _counter("appends_failed", "Records that Kafka did not take in time", counters.appends_failed)
        yield _counter("bugs", "Connections closed by an error of the gateway itself", counters.bugs)
        yield _labelled(
            "connections_refused",
            "CONNECT refused",
            "code",
            {f"{k:#04x}": v for k, v in counters.connections_refused.copy().items()},
        )
        yield _labelled("sockets_refused", "Sockets closed before MQTT", "step", counters.sockets_refused.copy())
        yield _labelled("limits_reached", "What was refused because of a limit", "limit", counters.limits_reached.copy())
        yield _labelled("logins_refused", "CONNECT refused for who it is", "reason", counters.logins_refused.copy())
        yield _labelled("not_authorized", "PUBLISH and SUBSCRIBE refused by a rule", "what", counters.not_authorized.copy())
        yield _labelled(
            "connections_lost", "Connections that ended without DISCONNECT", "cause", counters.connections_lost.copy()
        )
        yield _labelled(
            "protocol_errors",
            "Connections closed for what the device sent",
            "code",
            {f"{k:#04x}": v for k, v in counters.protocol_errors.copy().items()},
        )
        yield _labelled("packets_received", "Packets from devices", "type", counters.packets_received.copy())


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"inflight_gateway_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"inflight_gateway_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"inflight_gateway_{name}", text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family
