"""Kafka → state operator → Kafka with the real session, byte for byte."""

import random

from state.events import PublishReceived
from state.model import PublishProperties

EVERY_BYTE = bytes(range(256)) * 3
CLIENT = "gerät/ü\x01😀"


def test_every_byte_of_a_message_arrives_as_it_was_sent(pipeline) -> None:
    noise = random.Random(7).randbytes(250_000)
    pipeline.start()
    pipeline.connect(CLIENT, partition=1)
    pipeline.send_message(
        CLIENT, EVERY_BYTE, ("correlation-data", EVERY_BYTE), ("user-ключ", "значение\x01".encode()), topic="a/ß/😀"
    )
    pipeline.send_message(CLIENT, noise)
    pipeline.send(pipeline.settings.topics.messages, None, key=CLIENT.encode(), headers=[("mqtt-topic", b"t")])

    first, second, third = pipeline.publishes(3)[:3]
    assert (first.payload, first.topic) == (EVERY_BYTE, "a/ß/😀")
    assert first.properties.correlation_data == EVERY_BYTE
    assert first.properties.user_properties == (("ключ", "значение\x01"),)
    assert second.payload == noise
    assert third.payload == b""  # a null value is an empty payload


def test_every_byte_of_a_publication_arrives_at_the_backend(pipeline) -> None:
    topics = pipeline.settings.topics
    properties = PublishProperties(correlation_data=EVERY_BYTE, user_properties=(("a", "1"), ("a", "2")))
    pipeline.start()
    pipeline.connect(CLIENT, partition=1)
    event = PublishReceived(connection_id=1, packet_id=9, topic="up/ß", payload=EVERY_BYTE, properties=properties)
    pipeline.send_event(CLIENT, event)

    (record,) = pipeline.read(topics.uplink, 1)
    assert (record.key, record.value) == (CLIENT.encode(), EVERY_BYTE)
    assert ("mqtt-topic", "up/ß".encode()) in record.headers
    assert ("correlation-data", EVERY_BYTE) in record.headers
    assert [value for name, value in record.headers if name == "user-a"] == [b"1", b"2"]
    inflight_id = dict(record.headers)["inflight-id"].decode()
    assert inflight_id.startswith(f"{topics.events}-")


def test_a_window_of_large_messages_is_divided_into_small_records(pipeline) -> None:
    payloads = [bytes([number]) * 200_000 for number in range(12)]
    for payload in payloads:
        pipeline.send_message("large", payload, ("mqtt-qos", b"1"))
    pipeline.connect("large", partition=1)
    pipeline.start()
    # The queue's limit of 1 MiB drops the oldest, so only the last ones are left when everything comes in one micro-batch.
    sent = pipeline.publishes(5)
    assert [publish.payload for publish in sent] == payloads[: len(sent)] or [p.payload for p in sent] == payloads[-len(sent) :]
