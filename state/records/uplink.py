"""Defines the records of `inflight.uplink`: publications of devices. Gateways and bridges write them. The engine writes wills,
and publications of QoS 2 that no gateway hands on.

A public contract: names and encodings never change. Key: the client id. Value: the payload. Headers, UTF-8 text unless said
otherwise:

| header | value |
|---|---|
| `mqtt-topic` | topic name |
| `mqtt-qos` | `0`, `1`, `2` |
| `mqtt-retain` | `true`, `false` |
| `client-id` | the device that published; the record's key too |
| `inflight-id` | unique per publication; a reader drops a copy by it |
| `content-type`, `response-topic` | MQTT 5, if given |
| `correlation-data` | MQTT 5, if given; bytes as they came |
| `payload-format` | `1` = the payload is UTF-8 text, as the device says |
| `message-expiry` | MQTT 5 Message Expiry Interval in seconds, if given |
| `username` | the user who logged in on the connection; absent without a login |
| `may-be-copy-since` | QoS 2: from this time on, in ms, there may be a record with the same `inflight-id` before this one |
| `connection-id` | beside `may-be-copy-since`: there is none unless the client has had a later connection than this one |
| `micro-batch` | only in records of the engine: time of the micro-batch that wrote it, in ms; a copy has the same time and id |
| `user-…` | one per MQTT 5 user property, in order, names may repeat |
| `traceparent` | W3C Trace Context, if the device sends the user property `traceparent` |
"""

from typing import Final

from state.commands import ForwardPublication
from state.model import NO_PROPERTIES, ClientId, PublishProperties, QoS
from state.records.messages import QOS, RETAIN, TOPIC
from state.records.properties import PROPERTIES, PropertyKind, property_header_pairs
from state.records.record import Header, SinkRecord
from state.records.trace_context import TRACEPARENT, traceparent_of

CLIENT_ID: Final = "client-id"
INFLIGHT_ID: Final = "inflight-id"
MESSAGE_EXPIRY: Final = "message-expiry"
USERNAME: Final = "username"
MICRO_BATCH: Final = "micro-batch"
MAY_BE_COPY_SINCE: Final = "may-be-copy-since"
CONNECTION_ID: Final = "connection-id"
TRUE: Final = b"true"

_QOS: Final = ((QOS, b"0"), (QOS, b"1"), (QOS, b"2"))
_RETAIN: Final = ((RETAIN, b"false"), (RETAIN, TRUE))

UPLINK_PROPERTIES: Final = tuple(
    sorted(PROPERTIES, key=lambda row: (row.kind is PropertyKind.TEXT_PAIRS, row.kind is PropertyKind.FLAG))
)
"""The order of these headers and of the archive's columns. Every version writes flags and pairs last."""

_property_headers: Final = property_header_pairs(UPLINK_PROPERTIES)


def uplink_headers(
    *,
    client_id: ClientId,
    inflight_id: str,
    topic: str,
    qos: QoS,
    retain: bool = False,
    expiry_interval_s: int | None = None,
    properties: PublishProperties = NO_PROPERTIES,
    username: str = "",
) -> list[tuple[str, bytes]]:
    """Returns the headers in the form of kafka-python.

    Args:
        inflight_id: `client:connection:counter` from gateways, the publication id from the engine.
    """
    headers = [
        (TOPIC, topic.encode()),
        _QOS[qos],
        _RETAIN[retain],
        (CLIENT_ID, client_id.encode()),
        (INFLIGHT_ID, inflight_id.encode()),
    ]
    if expiry_interval_s is not None:
        headers.append((MESSAGE_EXPIRY, b"%d" % expiry_interval_s))
    if username:
        headers.append((USERNAME, username.encode()))
    if properties is NO_PROPERTIES:
        return headers
    headers += _property_headers(properties)
    if properties.user_properties and (trace := traceparent_of(properties.user_properties)) is not None:
        headers.append((TRACEPARENT, trace.encode()))
    return headers


def may_be_copy_header(since_ms: int) -> tuple[str, bytes]:
    """Returns the header of a record that may be a copy of an earlier one."""
    return MAY_BE_COPY_SINCE, b"%d" % since_ms


def connection_header(connection_id: int) -> tuple[str, bytes]:
    """Returns the header of a record that is a copy only if its client has had a later connection."""
    return CONNECTION_ID, b"%d" % connection_id


def uplink_record(topic: str, client_id: ClientId, command: ForwardPublication, now_ms: int) -> SinkRecord:
    """Returns the record that the engine writes.

    Args:
        now_ms: Time of the micro-batch.
    """
    headers = uplink_headers(
        client_id=client_id,
        topic=command.topic,
        qos=command.qos,
        retain=command.retain,
        properties=command.properties,
        inflight_id=command.publication_id,
        expiry_interval_s=command.expiry_interval_s,
        username=command.username,
    )
    headers.append((MICRO_BATCH, b"%d" % now_ms))
    if command.may_be_copy_since_ms is not None:
        headers.append(may_be_copy_header(command.may_be_copy_since_ms))
    return SinkRecord(topic, client_id.encode(), command.payload, headers=tuple(Header(name, value) for name, value in headers))
