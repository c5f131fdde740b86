"""The headers of `inflight.messages` as the engine writes and reads them; the contract itself is state/records/messages.py."""

from state.model import NO_PROPERTIES, Message, PublishProperties
from state.records.messages import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    EXPIRATION,
    MAX_EXPIRATION_MS,
    MAX_MESSAGE_ID_BYTES,
    MAX_STRING_BYTES,
    MESSAGE_ID,
    PAYLOAD_FORMAT,
    PRIORITY,
    QOS,
    RESPONSE_TOPIC,
    RETAIN,
    TOPIC,
    USER_PREFIX,
    BrokenContract,
    parse_broken_message,
    parse_message,
)
from streaming.engine.operator.cells import Header

__all__ = [
    "CONTENT_TYPE",
    "CORRELATION_DATA",
    "EXPIRATION",
    "MAX_EXPIRATION_MS",
    "MAX_MESSAGE_ID_BYTES",
    "MAX_STRING_BYTES",
    "MESSAGE_ID",
    "PAYLOAD_FORMAT",
    "PRIORITY",
    "QOS",
    "RESPONSE_TOPIC",
    "RETAIN",
    "TOPIC",
    "USER_PREFIX",
    "BrokenContract",
    "format_message",
    "headers_bytes",
    "parse_broken_message",
    "parse_message",
]


def format_message(message: Message) -> list[Header]:
    """The headers that say what `message` is: what `parse_message` reads, without the time to live.

    A dead letter must not expire a second time, so `expiration` is left to whoever sends it again.
    """
    headers = [
        Header(TOPIC, message.topic.encode()),
        Header(QOS, b"%d" % message.qos),
        Header(MESSAGE_ID, message.message_id.encode()),
    ]
    if message.retain:
        headers.append(Header(RETAIN, b"true"))
    if message.priority:
        headers.append(Header(PRIORITY, b"%d" % message.priority))
    if message.properties != NO_PROPERTIES:
        headers += _format_properties(message.properties)
    return headers


def headers_bytes(headers: tuple[Header, ...]) -> int:
    """Size of all names and values, in bytes."""
    return sum(len(header.key.encode()) + len(header.value or b"") for header in headers)


def _format_properties(properties: PublishProperties) -> list[Header]:
    headers = []
    if properties.payload_format is not None:
        headers.append(Header(PAYLOAD_FORMAT, b"%d" % properties.payload_format))
    if properties.content_type is not None:
        headers.append(Header(CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        headers.append(Header(RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        headers.append(Header(CORRELATION_DATA, properties.correlation_data))
    headers += [Header(USER_PREFIX + name, value.encode()) for name, value in properties.user_properties]
    return headers
