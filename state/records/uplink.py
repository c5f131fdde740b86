"""The headers of a record of `inflight.uplink`, for its two writers: gateways (QoS 0, 1) and the engine (QoS 2, wills).

A public contract: names and encodings never change. UTF-8 text unless said otherwise.

| header | value |
|---|---|
| `mqtt-topic` | topic name |
| `mqtt-qos` | `0`, `1`, `2` |
| `mqtt-retain` | `true`, `false` |
| `client-id` | who published (also the record's key) |
| `inflight-id` | unique per publication; a repeated one is a copy that the reader drops |
| `content-type`, `response-topic` | MQTT 5, if given |
| `correlation-data` | MQTT 5, if given; bytes as they came |
| `payload-format` | `1` = the payload is UTF-8 text, as the device says |
| `message-expiry` | MQTT 5 Message Expiry Interval in seconds, if given |
| `user-…` | one per MQTT 5 user property, in order, names may repeat |
"""

from typing import Final

from state.model import NO_PROPERTIES, ClientId, PublishProperties, QoS

_QOS: Final = (("mqtt-qos", b"0"), ("mqtt-qos", b"1"), ("mqtt-qos", b"2"))
_RETAIN: Final = (("mqtt-retain", b"false"), ("mqtt-retain", b"true"))


def uplink_headers(
    *,
    client_id: ClientId,
    inflight_id: str,
    topic: str,
    qos: QoS,
    retain: bool = False,
    expiry_interval_s: int | None = None,
    properties: PublishProperties = NO_PROPERTIES,
) -> list[tuple[str, bytes]]:
    """inflight_id: gateways say `client:connection:counter`, the engine the publication id."""
    headers = [
        ("mqtt-topic", topic.encode()),
        _QOS[qos],
        _RETAIN[retain],
        ("client-id", client_id.encode()),
        ("inflight-id", inflight_id.encode()),
    ]
    if expiry_interval_s is not None:
        headers.append(("message-expiry", b"%d" % expiry_interval_s))
    if properties is NO_PROPERTIES:
        return headers
    if properties.content_type is not None:
        headers.append(("content-type", properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append(("response-topic", properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append(("correlation-data", properties.correlation_data))
    if properties.payload_format is not None:
        headers.append(("payload-format", b"%d" % properties.payload_format))
    headers.extend((f"user-{name}", value.encode()) for name, value in properties.user_properties)
    return headers
