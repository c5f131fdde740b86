"""The table of MQTT 5 message properties: a row for each property that a message carries from end to end.

Everything that treats properties alike follows from the table: the Kafka headers (messages.py, uplink.py), MQTT 5 and paho
(sinks), the size of a packet, and the columns of the archive. A new property takes a field of `PublishProperties`, a row here,
and an argument of `Producer.send`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, cast

from state.model import NO_PROPERTIES, PublishProperties
from state.records.record import Header


class PropertyKind(Enum):
    """The type of a property's value. It decides how the value is checked, encoded and stored."""

    FLAG = auto()
    """A byte, 0 or 1."""
    TEXT = auto()
    """UTF-8 without U+0000, at most 65,535 bytes."""
    TOPIC_NAME = auto()
    """Text that is a topic name, so without wildcards."""
    BINARY = auto()
    """At most 65,535 bytes."""
    TEXT_PAIRS = auto()
    """Pairs of name and value, in order; names may repeat. Empty = not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A row of the table.

    Attributes:
        field: Name of the field of `PublishProperties`.
        header: The Kafka header, or the prefix of the headers of TEXT_PAIRS.
        mqtt_id, mqtt_name: Those of MQTT 5, table 2-4.
        meaning: Text for people; empty = the name says it.
    """

    field: str
    header: str
    mqtt_id: int
    mqtt_name: str
    kind: PropertyKind
    meaning: str = ""


PAYLOAD_FORMAT: Final = Property(
    field="payload_format",
    header="payload-format",
    mqtt_id=0x01,
    mqtt_name="Payload Format Indicator",
    kind=PropertyKind.FLAG,
    meaning="1 = UTF-8 text",
)
CONTENT_TYPE: Final = Property(
    field="content_type", header="content-type", mqtt_id=0x03, mqtt_name="Content Type", kind=PropertyKind.TEXT
)
RESPONSE_TOPIC: Final = Property(
    field="response_topic", header="response-topic", mqtt_id=0x08, mqtt_name="Response Topic", kind=PropertyKind.TOPIC_NAME
)
CORRELATION_DATA: Final = Property(
    field="correlation_data", header="correlation-data", mqtt_id=0x09, mqtt_name="Correlation Data", kind=PropertyKind.BINARY
)
USER_PROPERTIES: Final = Property(
    field="user_properties", header="user-", mqtt_id=0x26, mqtt_name="User Property", kind=PropertyKind.TEXT_PAIRS
)

PROPERTIES: Final = (PAYLOAD_FORMAT, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, USER_PROPERTIES)
"""The rows in the order of the fields of `PublishProperties`, so `msgspec.structs.astuple` gives the values in this order."""

_HEADERS_OF_KIND: Final = {
    PropertyKind.FLAG: "headers.append(Header({header!r}, b'%d' % value))",
    PropertyKind.TEXT: "headers.append(Header({header!r}, value.encode()))",
    PropertyKind.TOPIC_NAME: "headers.append(Header({header!r}, value.encode()))",
    PropertyKind.BINARY: "headers.append(Header({header!r}, value))",
    PropertyKind.TEXT_PAIRS: "headers += [Header({header!r} + name, text.encode()) for name, text in value]",
}
_SIZE_OF_KIND: Final = {
    PropertyKind.FLAG: "size += 2",
    PropertyKind.TEXT: "size += 3 + len(value.encode())",
    PropertyKind.TOPIC_NAME: "size += 3 + len(value.encode())",
    PropertyKind.BINARY: "size += 3 + len(value)",
    PropertyKind.TEXT_PAIRS: "size += sum([5 + len(name.encode()) + len(text.encode()) for name, text in value])",
}


def generated(lines: Iterable[str], **names: object) -> object:
    """Returns the function `generated` that the lines of source define; `names` are its globals.

    Functions on hot paths are generated from the table at import, because a loop over the table takes up to twice as long.
    """
    scope = dict(names)
    exec("\n".join(lines), scope)  # noqa: S102 - made of constants of this repository  # nosec B102
    return scope["generated"]


def property_headers(table: Iterable[Property]) -> Callable[[PublishProperties], list[Header]]:
    """Makes a function that returns the Kafka headers of the properties that are given, in the order of `table`."""
    return cast(Callable[[PublishProperties], list[Header]], generated(_header_lines(table), Header=Header))


def property_header_pairs(table: Iterable[Property]) -> Callable[[PublishProperties], list[tuple[str, bytes]]]:
    """Makes the same function for headers as pairs of name and value."""
    lines = (line.replace("Header(", "(") for line in _header_lines(table))
    return cast(Callable[[PublishProperties], list[tuple[str, bytes]]], generated(lines))


def _header_lines(table: Iterable[Property]) -> Iterator[str]:
    return _lines_over_given("headers = []", _HEADERS_OF_KIND, "return headers", table)


def _lines_over_given(begin: str, statements: Mapping[PropertyKind, str], end: str, table: Iterable[Property]) -> Iterator[str]:
    """Yields the source of a function that executes, for each property that is given, the statement of its kind."""
    yield "def generated(properties):"
    yield f"    {begin}"
    for row in table:
        is_given = "" if row.kind is PropertyKind.TEXT_PAIRS else " is not None"
        yield f"    if (value := properties.{row.field}){is_given}:"
        yield f"        {statements[row.kind].format(header=row.header)}"
    yield f"    {end}"


_given_bytes: Final = cast(
    Callable[[PublishProperties], int],
    generated(_lines_over_given("size = 0", _SIZE_OF_KIND, "return size", PROPERTIES)),
)


def properties_bytes(properties: PublishProperties) -> int:
    """Returns the bytes that the properties take in a PUBLISH, without their length."""
    return 0 if properties == NO_PROPERTIES else _given_bytes(properties)
