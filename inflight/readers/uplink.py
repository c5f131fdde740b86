"""`Uplink`: iterates over what devices publish.

with Uplink(group="billing", topics=["meter/+/reading"]) as uplink:
    for message in uplink:
        bill(message.client_id, message.topic, message.payload)
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inflight.keywords import checked
from inflight.readers.group_stream import Begin, GroupStream
from sinks.kafka.librdkafka import headers_of
from sinks.mqtt_topics import is_topic_filter
from state.inbound.subscriptions import topic_matches
from state.model import ClientId, PublishProperties
from state.records.publications import publication_in
from state.records.record import Header, position
from state.records.uplink import INFLIGHT_ID, MESSAGE_EXPIRY, USERNAME


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkMessage:
    """A publication of a device (state/records/uplink.py).

    client_id: The device. topic: The topic name to which it published. payload: Bytes as they came. qos: 0, 1 or 2.
    inflight_id: Unique for each publication; copies have the same one.
    username: The user of the connection; None without a login.
    properties: Of MQTT 5: response topic, correlation data, user properties and others; None or empty if not given.
    expiry_interval_s: MQTT 5 Message Expiry Interval in seconds; None = not given.
    received_ms: When Kafka stored the record, milliseconds since 1970. partition, offset: Where the record is.
    """

    client_id: ClientId
    topic: str
    payload: bytes
    qos: int
    retain: bool
    inflight_id: str
    username: str | None
    properties: PublishProperties
    expiry_interval_s: int | None
    received_ms: int
    partition: int
    offset: int


def uplink_message(message: Any) -> UplinkMessage:
    """Reads a record of librdkafka. Raises UnreadableRecord, BrokenContract (a ValueError)."""
    headers = headers_of(message)
    where = position(message.topic(), message.partition(), message.offset())
    received_ms = message.timestamp()[1]
    read = publication_in(
        [Header(name, value) for name, value in headers],
        message.value(),
        accepted_ms=received_ms,
        default_message_id=where,
        is_uplink=True,
    )
    own = {name: (value or b"").decode() for name, value in headers if name in (INFLIGHT_ID, USERNAME, MESSAGE_EXPIRY)}
    published = read.message
    return UplinkMessage(
        client_id=read.publisher,
        topic=published.topic,
        payload=published.payload,
        qos=int(published.qos),
        retain=published.retain,
        inflight_id=own.get(INFLIGHT_ID, where),
        username=own.get(USERNAME),
        properties=published.properties,
        expiry_interval_s=int(own[MESSAGE_EXPIRY]) if MESSAGE_EXPIRY in own else None,
        received_ms=received_ms,
        partition=message.partition(),
        offset=message.offset(),
    )


class Uplink(GroupStream[UplinkMessage]):
    """Iterates over publications of devices, with `for` or `async for`, in the order of each device.

    Processes with the same `group` share the devices. A publication is given out at least once: its offset is committed after
    the body of the loop has ended for it. A body that raises, and `break`, leave their record for the next loop. Copies are
    dropped by `inflight-id` among the last 10,000 publications of this object; after a restart or a rebalance a copy may come
    again. The body may take five minutes for a record; then the group gives the devices to another process.

    bootstrap_servers: `host:port`, several separated by commas; None = that of the `inflight up` that runs here (see Producer).
    group: Name of the consumer group. topics: MQTT topic filters; a publication that matches none is skipped. Default: all.
    begin: Where a new group begins: "earliest" = with all that Kafka keeps, "latest" = with what comes from now on.
    prefix: `topics.prefix` of the system. kafka_options: As of a Producer.

    Iterating raises KafkaFailed when Kafka refuses the reader, ReaderClosed after `close`. Connection losses are waited out.
    """

    @checked()
    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        group: str,
        topics: Iterable[str] = (),
        begin: Begin = "earliest",
        prefix: str = "inflight",
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._filters = (topics,) if isinstance(topics, str) else tuple(topics)
        for topic_filter in self._filters:
            if not is_topic_filter(topic_filter):
                raise ValueError(f"topics has {topic_filter!r}: MQTT topic filters are allowed, for example plant/+/temperature")
        super().__init__(f"{prefix}.uplink", bootstrap_servers, group=group, begin=begin, kafka_options=kafka_options or {})

    def _values_in(self, message: Any) -> Iterable[UplinkMessage]:
        read = uplink_message(message)
        return (read,) if not self._filters or any(topic_matches(each, read.topic) for each in self._filters) else ()

    def _identity(self, value: UplinkMessage) -> Hashable:
        where = position(self._topic, value.partition, value.offset)
        # A record without an id is called by its position, which comes again after the topic was recreated.
        return value.inflight_id if value.inflight_id != where else (where, value.received_ms)
