"""The counters of a gateway, and their collector for Prometheus (docs/reference/metrics.md)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from sinks.collector import CountersCollector, by, count, gauge
from sinks.kafka.append_times import AppendTimes
from sinks.routing.metrics import MatcherCollector, MatcherCounters


@dataclass(slots=True, kw_only=True)
class GatewayCounters:
    """Numbers since the gateway started, each with its text for Prometheus, and the metric's name if it differs."""

    connections_open: int = gauge("Devices connected", "connections")
    # The next eight are measured once a second.
    sockets_open: int = gauge("Sockets open, with those that have not connected yet", "sockets")
    writers_blocked: int = gauge("Sockets whose device does not read, and gets nothing new")
    unsent_bytes: int = gauge("Bytes written that devices have not read")
    buffered_bytes: int = gauge("Bytes buffered for devices: incomplete packets, waiting messages, unsent")
    fair_share: float = gauge("Share of its rates that each device may use, 1 = all", default=1)
    clients_contested: int = gauge("Client ids whose devices take each other's connection, and have to wait")
    sessions_left: int = gauge("Sessions that clients have left here, and can resume without the engine")
    partitions_owned: int = gauge("Partitions of the commands topic")
    clock_skew_seconds: float = gauge("Clock of this machine minus that of Kafka's brokers")
    appends_unconfirmed: int = gauge("Records given to Kafka and not yet confirmed")
    append_seconds: AppendTimes = field(
        default_factory=AppendTimes, metadata={"text": "From an append to its confirmation by Kafka"}
    )
    connections_accepted: int = count("CONNACK 0x00 sent")
    sessions_continued: int = count("Clients that came back, and were served before the engine had read their CONNECT")
    takeovers: int = count("Connections ended because another one uses the client id")
    publishes_sent: int = count("PUBLISH packets written")
    resends_dropped: int = count("Resends that the device no longer needed")
    qos0_dropped: int = count("QoS 0 messages dropped because the device does not read")
    unsendable: int = count("Messages that MQTT cannot carry")
    answers_delayed: int = count("PUBACK and PUBREC packets that were delayed because publications wait")
    publishes_refused: int = count("Publications over max_publish_rate, answered 0x97")
    publications_too_large: int = count("Publications that Kafka refused as too large, answered 0x97")
    lists_repeated: int = count("Lists of subscriptions appended once more, because an older one stood behind them")
    fast_publishes_sent: int = count("PUBLISH packets written by the fast path")
    offers_taken: int = count("Messages accepted by the fast path")
    offers_ignored: int = count("Messages for connections that get no grant, and offers of a known message")
    copies_dropped: int = count("PUBLISHes of the engine that the fast path had sent before")
    adoptions: int = count("Messages of the fast path confirmed by the engine")
    adoption_delay_ms: int = count("From sending to that confirmation, sum of all", "adoption_delay_seconds")
    commands_applied: int = count("Commands of the engine carried out")
    commands_repeated: int = count("Commands ignored because they were carried out before")
    commands_without_connection: int = count("Commands for a connection that is not held here")
    closed_for_other_code: int = count("Connections closed: commands were repeated by another build")
    unreadable_commands: int = count("Undecodable records of the commands topic")
    leases_lost: int = count("Leases that expired while connections were held, which all ended")
    appends_confirmed: int = count("Records confirmed by Kafka")
    appends_failed: int = count("Records that Kafka did not accept in time")
    bugs: int = count("Connections closed by an error of the gateway itself")
    offers_refused: Counter[str] = field(default_factory=Counter, metadata=by("reason", "Messages left to the micro-batches"))
    offers_held: Counter[str] = field(
        default_factory=Counter, metadata=by("reason", "Messages that waited at the gateway for a grant, or for a slot")
    )
    connections_refused: Counter[int] = field(default_factory=Counter, metadata=by("code", "CONNECT refused"))
    sockets_refused: Counter[str] = field(default_factory=Counter, metadata=by("step", "Sockets closed before MQTT"))
    limits_reached: Counter[str] = field(default_factory=Counter, metadata=by("limit", "Refusals because of a limit"))
    logins_refused: Counter[str] = field(
        default_factory=Counter, metadata=by("reason", "CONNECT refused by authentication or rules")
    )
    not_authorized: Counter[str] = field(default_factory=Counter, metadata=by("what", "PUBLISH and SUBSCRIBE refused by a rule"))
    connections_lost: Counter[str] = field(
        default_factory=Counter, metadata=by("cause", "Connections that ended without DISCONNECT")
    )
    protocol_errors: Counter[int] = field(default_factory=Counter, metadata=by("code", "Connections closed for a protocol error"))
    packets_received: Counter[str] = field(default_factory=Counter, metadata=by("type", "Packets from devices"))


class GatewayCollector(CountersCollector):
    """Collects the counters of a gateway. Register it once with a prometheus-client registry.

    Args:
        matcher: The counters of this process's matcher; None = it has none.
    """

    def __init__(self, counters: GatewayCounters, matcher: MatcherCounters | None = None) -> None:
        super().__init__(counters, "inflight_gateway_")
        self._matcher = None if matcher is None else MatcherCollector(matcher)

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        if self._matcher is not None:
            yield from self._matcher.collect()
