"""A backlog of messages, and what devices say meanwhile."""

import msgspec
import pytest

from state.commands import SendPublish
from state.events import ClientConnected, PubAckReceived
from state.records.events import encode_event
from tests.support.kafka_topics import read_topic

CLIENTS, IN_FLIGHT, BACKLOG, LIMIT = 20, 10, 3_000, 100


@pytest.mark.faults
@pytest.mark.promise("backlog")
def test_acknowledgements_do_not_wait_behind_a_backlog_of_messages(pipeline) -> None:
    topics, send = pipeline.settings.topics, pipeline.producer.send
    keys = [b"client-%d" % number for number in range(CLIENTS)]
    for key in keys:
        send(topics.events, encode_event(ClientConnected(connection_id=1, commands_partition=0)), key=key)
        for _ in range(IN_FLIGHT):
            send(topics.messages, b"x", key=key, headers=[("mqtt-topic", b"t")])
    pipeline.producer.flush()
    pipeline.start()
    pipeline.commands(lambda found: sum(isinstance(command, SendPublish) for command in found) == CLIENTS * IN_FLIGHT)
    pipeline.await_batches(1)
    pipeline.stop()

    for number in range(BACKLOG):
        send(topics.messages, b"later", key=keys[number % CLIENTS], headers=[("mqtt-topic", b"t")])
    for key in keys:
        for packet_id in range(1, IN_FLIGHT + 1):
            send(topics.events, encode_event(PubAckReceived(connection_id=1, packet_id=packet_id)), key=key)
    pipeline.producer.flush()
    pipeline.max_offsets_per_trigger = LIMIT
    pipeline.start()

    receipts = pipeline.read(topics.receipts, CLIENTS * IN_FLIGHT)
    last_ms = max(msgspec.json.decode(record.value)["recorded_ms"] for record in receipts)
    # What that micro-batch and those before it wrote to the ledger is in Kafka when a later one has begun to write.
    pipeline.await_batches(1)
    ledger = read_topic(pipeline.bootstrap_servers, topics.ledger)
    rows = [row for record in ledger for row in msgspec.json.decode(record.value or b"[]")]
    accepted = sum(row["transition"] == "accepted" and row["batch_ms"] <= last_ms for row in rows)
    # A hundred acknowledgements in each micro-batch, beside a hundred messages; in two partitions each, so it may take one more.
    assert accepted - CLIENTS * IN_FLIGHT <= (CLIENTS * IN_FLIGHT / LIMIT + 2) * LIMIT
