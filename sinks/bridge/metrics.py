"""The counters of a bridge, and their collector for Prometheus (docs/reference/metrics.md)."""

from collections import Counter
from dataclasses import dataclass, field

from sinks.collector import CountersCollector, by, count, gauge
from sinks.kafka.append_times import AppendTimes


@dataclass(slots=True, kw_only=True)
class BridgeCounters:
    """Numbers since the bridge started, each with its text for Prometheus."""

    devices: int = gauge("Devices that this bridge holds a connection for")
    partitions_owned: int = gauge("Partitions of the commands topic")
    clock_skew_seconds: float = gauge("Clock of this machine minus that of Kafka's brokers")
    broker_connections: int = count("Connections to the broker that were accepted")
    connections_refused: int = count("Connections that the broker refused, or that did not reach it")
    broker_losses: Counter[str] = field(default_factory=Counter, metadata=by("reason", "Connections to the broker that ended"))
    publishes_sent: int = count("PUBLISH packets given to the broker")
    publishes_refused: Counter[int] = field(default_factory=Counter, metadata=by("reason", "Messages that the broker refused"))
    publishes_held_off: int = count("Messages refused without asking the broker, after its 0x97")
    unsendable: int = count("Messages that the broker's topics cannot carry")
    acknowledgements: Counter[int] = field(default_factory=Counter, metadata=by("reason", "Acknowledgements of devices"))
    acknowledgements_unknown: int = count("Acknowledgements that were repeated, late, or not for this bridge")
    acknowledgements_unreadable: int = count("Acknowledgements that could not be decoded")
    publications_received: int = count("Publications of devices")
    publications_ignored: Counter[str] = field(
        default_factory=Counter, metadata=by("reason", "Publications that are not handed on: a bridge's own, or for $SYS")
    )
    publications_too_large: int = count("Publications that Kafka refused for their size")
    commands_applied: int = count("Commands of the engine carried out")
    commands_repeated: int = count("Commands ignored because they were carried out before")
    commands_without_connection: int = count("Commands for a connection that is not held here")
    closed_for_other_code: int = count("Connections closed: commands were repeated by another build")
    resends_dropped: int = count("Resends that the device no longer needed")
    unreadable_commands: int = count("Undecodable records of the commands topic")
    leases_lost: int = count("Leases that expired while devices were held, which all went offline")
    appends_unconfirmed: int = gauge("Records given to Kafka and not yet confirmed")
    appends_failed: int = count("Records that Kafka did not accept in time")
    append_seconds: AppendTimes = field(
        default_factory=AppendTimes, metadata={"text": "From an append to its confirmation by Kafka"}
    )


class BridgeCollector(CountersCollector):
    """Register it once with a prometheus-client registry."""

    def __init__(self, counters: BridgeCounters) -> None:
        super().__init__(counters, "inflight_bridge_")
