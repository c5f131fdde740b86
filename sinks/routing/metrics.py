"""The counters of a matcher, and their collector for Prometheus (docs/reference/metrics.md)."""

from collections import Counter
from dataclasses import dataclass, field

from sinks.collector import CountersCollector, by, count, gauge
from sinks.kafka.append_times import AppendTimes


@dataclass(slots=True, kw_only=True)
class MatcherCounters:
    """Numbers since the matcher started, each with its text for Prometheus. Only the matcher's threads change them."""

    partitions_owned: int = gauge("Partitions of the topics with publications and subscriptions that this matcher reads")
    lag: int = gauge("Records of these partitions that this matcher has not read")
    partitions_waiting: int = gauge("Of these, partitions that wait for a client that is connected and behind")
    clients: int = gauge("Clients with a list of subscriptions, offline ones included")
    subscriptions: int = gauge("Subscriptions of all clients")
    retained_messages: int = gauge("Retained messages of all topics")
    retained_bytes: int = gauge("Topics, payloads and headers of these")
    delayed_publications: int = gauge("Publications with RETAIN that wait for their deliver-at")
    publications: int = count("Publications that were read")
    publications_unmatched: int = count("Publications without a matching subscription")
    publications_refused: Counter[str] = field(
        default_factory=Counter, metadata=by("reason", "Publications that could not be routed, whatever the subscriptions")
    )
    publications_copied: int = count("Publications of QoS 2 that came once more, and were not routed again")
    recipients: int = count("Copies of publications that were written for clients")
    recipients_shed: int = count("QoS 0 copies that were dropped because of routing.max_fan_out")
    waited_ms: int = count("Waits of partitions for clients that are connected and behind", "waited_seconds")
    waits_given_up: int = count("Such waits that routing.max_wait_ms has ended")
    retained_sent: int = count("Retained messages that were written for new subscriptions")
    lists_repeated: int = count("Lists of subscriptions that were written again behind a lower one of the same client")
    records_written: int = count("Records that Kafka has confirmed")
    restarts: int = count("New starts of the Kafka clients after a failure")
    match_seconds: AppendTimes = field(
        default_factory=AppendTimes, metadata={"text": "From reading publications to the confirmation of all their records"}
    )


class MatcherCollector(CountersCollector):
    """Register it once with a prometheus-client registry."""

    def __init__(self, counters: MatcherCounters) -> None:
        super().__init__(counters, "inflight_matcher_")
