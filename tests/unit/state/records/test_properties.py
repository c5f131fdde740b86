"""state.records.properties: one table, from which headers, codecs, sizes and columns follow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt.properties import Properties

from sinks.bridge.broker.paho_properties import from_paho, to_paho
from sinks.mqtt.codec import v5
from sinks.mqtt.codec.packets import Publish
from state.model import Message, PublishProperties
from state.outbound.packet_size import publish_packet_bytes
from state.records.messages import format_message, parse_message
from state.records.properties import PROPERTIES, Property, PropertyKind, properties_bytes
from state.records.uplink import uplink_headers

ROOT = Path(__file__).parents[4]
ROOMS = ("state", "sinks", "streaming", "inflight")
MOST_FILES = 5
VALUES = {
    PropertyKind.FLAG: 1,
    PropertyKind.TEXT: "é",
    PropertyKind.TOPIC_NAME: "a/b",
    PropertyKind.BINARY: b"\x00\xff",
    PropertyKind.TEXT_PAIRS: (("n", "1"), ("n", "2")),
}
# Files that give a property a meaning of their own. A property that is only carried needs none.
MEANINGS = {
    "response_topic": {
        "state/commands.py",  # a receipt goes to the client that it names
        "state/dead_letters/message_end.py",
        "state/records/receipts.py",
        "streaming/engine/operator/to_records.py",
        "sinks/bridge/envelope.py",  # devices behind a broker acknowledge there
        "inflight/producer/requests.py",  # devices answer there
        "inflight/producer/producer.py",
        "inflight/producer/async_producer.py",
    },
    "user_properties": {
        "state/records/trace_context.py",  # one of them is the trace
        "state/records/uplink.py",
        "state/dead_letters/message_end.py",
        "sinks/mqtt/codec/v5.py",  # of packets that carry no message
        "sinks/bridge/envelope.py",
    },
}
MEANINGS["correlation_data"] = {*MEANINGS["response_topic"], "sinks/bridge/inbound.py"}


def only(row: Property) -> PublishProperties:
    return PublishProperties(**{row.field: VALUES[row.kind]})


def files_naming(field: str) -> Iterator[str]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if field in path.read_text(encoding="utf-8"):
                yield str(path.relative_to(ROOT))


def test_the_table_has_every_field_of_the_properties_in_order() -> None:
    assert tuple(row.field for row in PROPERTIES) == PublishProperties.__struct_fields__


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.field)
def test_a_property_is_named_in_five_product_files_at_most(row: Property) -> None:
    naming = set(files_naming(row.field))
    assert "state/records/properties.py" in naming
    assert len(naming - MEANINGS.get(row.field, set())) <= MOST_FILES, sorted(naming)


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.field)
def test_a_property_comes_back_from_kafka_mqtt_5_and_paho(row: Property) -> None:
    properties = only(row)
    message = Message(message_id="m", topic="t", payload=b"p", properties=properties)
    parsed, _ = parse_message(format_message(message), payload=b"p", accepted_ms=0, default_message_id="d")
    assert parsed.properties == properties

    packet = v5.encode_publish(message, qos=message.qos, packet_id=1)
    decoded = v5.decode(packet, 2)
    assert isinstance(decoded, Publish)
    assert decoded.properties == properties

    assert from_paho(to_paho(properties, None)) == properties


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.field)
def test_a_property_has_its_id_and_its_size_in_a_packet(row: Property) -> None:
    message = Message(message_id="m", topic="t", payload=b"p", properties=only(row))
    packet = v5.encode_publish(message, qos=message.qos, packet_id=1)
    start = 2 + 2 + len("t") + 2  # fixed header, topic, packet id
    assert (packet[start], packet[start + 1]) == (properties_bytes(message.properties), row.mqtt_id)
    assert len(packet) == publish_packet_bytes(message, qos=1, protocol_version=5, expires=False)


@pytest.mark.parametrize("row", PROPERTIES, ids=lambda row: row.field)
def test_a_property_has_the_same_headers_in_messages_and_uplink(row: Property) -> None:
    message = Message(message_id="m", topic="t", payload=b"", properties=only(row))
    of_message = [(header.key, header.value) for header in format_message(message) if header.key.startswith(row.header)]
    uplink = uplink_headers(client_id="c", inflight_id="i", topic="t", qos=message.qos, properties=only(row))
    assert of_message == [(name, value) for name, value in uplink if name.startswith(row.header)]
    assert len(of_message) == (2 if row.kind is PropertyKind.TEXT_PAIRS else 1)


def test_paho_knows_every_property_by_the_standards_name_and_id() -> None:
    paho = Properties(3)
    ids = {name.replace(" ", ""): number for name, number in paho.names.items()}
    assert {row.mqtt_name.replace(" ", ""): row.mqtt_id for row in PROPERTIES}.items() <= ids.items()
