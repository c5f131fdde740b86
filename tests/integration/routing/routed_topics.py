"""The topics of one test of the matcher: writes publications and lists, reads what was routed."""

from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from sinks.kafka.host_settings import HostSettings
from sinks.routing.settings import RoutingSettings
from state.model import QoS, Routing, Subscription
from state.records.routing import RECIPIENT_PREFIX, decode_routing
from state.records.session_marks import ALL_MARKED, encode_mark, mark_key
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.records.throttle import encode_throttle
from state.records.uplink import connection_header, may_be_copy_header, uplink_headers
from tests.support.kafka_topics import create_topics, read_topic

PARTITIONS = 3


@dataclass(frozen=True)
class Copy:
    """A recipient of a routed record."""

    client_id: str
    routing: Routing
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class RoutedTopics:
    """Topics with a prefix of their own. `write` and its like return when Kafka has confirmed the record."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self.prefix = prefix
        self.host = host_settings(bootstrap_servers)
        self.settings = routing_settings(prefix)
        self._producer: Any = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "acks": "all"})
        settings = self.settings
        create_topics(
            bootstrap_servers,
            settings.uplink_topic,
            settings.publications_topic,
            settings.messages_topic,
            partitions=PARTITIONS,
        )
        create_topics(
            bootstrap_servers,
            settings.subscriptions_topic,
            settings.retained_topic,
            settings.throttle_topic,
            partitions=PARTITIONS,
            cleanup_policy="compact",
        )

    def write(self, topic: str, key: str, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        failures: list[object] = []
        self._producer.produce(
            topic, value, key.encode(), headers=headers, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        assert self._producer.flush(30) == 0
        assert not failures

    def publish(self, topic: str, payload: bytes = b"", *, publisher: str = "dev") -> None:
        headers = uplink_headers(client_id=publisher, inflight_id=f"{publisher}:{payload!r}", topic=topic, qos=QoS.AT_LEAST_ONCE)
        self.write(self.settings.uplink_topic, publisher, payload, headers)

    def hand_on(self, topic: str, payload: bytes, *, inflight_id: str, since_ms: int, connection_id: int | None = None) -> None:
        """Hands on a publication of QoS 2 of the device `dev`.

        Args:
            connection_id: Of a first attempt; None = it is a repetition.
        """
        headers = uplink_headers(client_id="dev", inflight_id=inflight_id, topic=topic, qos=QoS.EXACTLY_ONCE)
        headers.append(may_be_copy_header(since_ms))
        if connection_id is not None:
            headers.append(connection_header(connection_id))
        self.write(self.settings.uplink_topic, "dev", payload, headers)

    def mark(self, client_id: str, connection_id: int) -> None:
        """Marks a session, as the gateway of a connection does."""
        self.write(self.settings.subscriptions_topic, mark_key(client_id).decode(), encode_mark(connection_id), [])

    def start_publishing(self, topic: str, payload: bytes, *, publisher: str = "dev") -> None:
        """Publishes without a wait for Kafka."""
        headers = uplink_headers(client_id=publisher, inflight_id=f"{publisher}:{payload!r}", topic=topic, qos=QoS.AT_LEAST_ONCE)
        self._producer.produce(self.settings.uplink_topic, payload, publisher.encode(), headers=headers)
        self._producer.poll(0.001)

    def send(self, topic: str, payload: bytes = b"", *, retain: bool = False, deliver_at: str = "") -> None:
        headers = [("mqtt-topic", topic.encode()), ("mqtt-retain", b"true" if retain else b"false")]
        if deliver_at:
            headers.append(("deliver-at", deliver_at.encode()))
        self.write(self.settings.publications_topic, "backend", payload, headers)

    def subscribe(self, client_id: str, *filters: str, version: int = 1, wanted: tuple[str, ...] = ()) -> None:
        subscriptions = tuple(Subscription(topic_filter=each, qos=QoS.AT_LEAST_ONCE) for each in filters)
        listed = SubscriptionList(connection_id=1, version=version, subscriptions=subscriptions, wanted=wanted)
        self.write(self.settings.subscriptions_topic, client_id, encode_subscriptions(listed), [])

    def fall_behind(self, client_id: str) -> None:
        """Throttles a client that is connected and catches up, as an engine does."""
        self.write(self.settings.throttle_topic, client_id, encode_throttle("behind", 1, is_progressing=True), [])

    def catch_up(self, client_id: str) -> None:
        self.write(self.settings.throttle_topic, client_id, None, [])

    def mark_all(self) -> None:
        """Says, as an engine does, that the lists of all sessions are written."""
        self.write(self.settings.subscriptions_topic, ALL_MARKED.decode(), encode_mark(0), [])

    def copies(self, at_least: int = 0) -> list[Copy]:
        """Returns the recipients of all routed records, in the order of each partition. Waits for so many."""

        def found(records: Any) -> list[Copy]:
            copies = []
            for record in records:
                for name, value in record.headers:
                    if name.startswith(RECIPIENT_PREFIX):
                        routing = decode_routing(value)
                        assert routing is not None
                        copies.append(Copy(name.removeprefix(RECIPIENT_PREFIX), routing, record.value, record.headers))
            return copies

        return found(
            read_topic(self.host.bootstrap_servers, self.settings.messages_topic, lambda records: len(found(records)) >= at_least)
        )


def host_settings(bootstrap_servers: str) -> HostSettings:
    return HostSettings(bootstrap_servers=bootstrap_servers, group_session_timeout_ms=6_000)


def routing_settings(prefix: str) -> RoutingSettings:
    return RoutingSettings(
        enabled=True,
        group_id=f"{prefix}.matchers",
        uplink_topic=f"{prefix}.uplink",
        publications_topic=f"{prefix}.publications",
        subscriptions_topic=f"{prefix}.subscriptions",
        retained_topic=f"{prefix}.retained",
        messages_topic=f"{prefix}.messages",
        throttle_topic=f"{prefix}.throttle",
    )
