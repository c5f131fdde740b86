"""Engines on the same topics: one works, another one waits or refuses, and one that was taken over stops."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer

from state.commands import SendPublish
from state.events import ClientConnected, PubAckReceived
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from tests.spark.child_engine import Engine, engine
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(300)]

EXIT_S = 90.0


class Topics:
    """What clients get, `c` unless another one is named, and what becomes of messages, on topics with a prefix of their own."""

    def __init__(self, kafka: SharedKafka, prefix: str) -> None:
        self.kafka, self.prefix = kafka.bootstrap_servers, prefix
        self.producer = KafkaProducer(bootstrap_servers=self.kafka, acks="all")

    def settings(self, directory: Path) -> dict[str, Any]:
        return {
            "kafka": {"bootstrap_servers": self.kafka},
            "topics": {"prefix": self.prefix},
            "engine": {"data_dir": str(directory), "driver_memory": "512m", "master": "local[2]"},
        }

    def connect(
        self, connection_id: int, client: bytes = b"c", *, protocol_version: int = 4, receive_maximum: int = 65_535
    ) -> None:
        event = ClientConnected(
            connection_id=connection_id,
            commands_partition=0,
            protocol_version=protocol_version,
            clean_start=False,
            session_expiry_interval_s=3_600,
            receive_maximum=receive_maximum,
        )
        self.producer.send(f"{self.prefix}.events", encode_event(event), key=client).get(30)

    def send(self, payload: bytes, client: bytes = b"c", *headers: tuple[str, bytes]) -> None:
        every = [("mqtt-topic", b"t"), ("message-id", payload), *headers]
        self.producer.send(f"{self.prefix}.messages", payload, key=client, headers=every).get(30)

    def sent(self, count: int) -> list[SendPublish]:
        """All PUBLISH commands so far, as soon as there are so many."""

        def publishes(records: list[ReadRecord]) -> list[SendPublish]:
            commands = [command for record in records for command in decode_command_batch(record.value or b"").commands]
            return [command for command in commands if isinstance(command, SendPublish)]

        return publishes(read_topic(self.kafka, f"{self.prefix}.commands", lambda found: len(publishes(found)) >= count))

    def acknowledge(self, publish: SendPublish, client: bytes = b"c") -> None:
        event = PubAckReceived(connection_id=publish.connection_id, packet_id=publish.packet_id)
        self.producer.send(f"{self.prefix}.events", encode_event(event), key=client).get(30)

    def outcomes(self, count: int) -> dict[str, str]:
        """By message id, as soon as there are so many receipts. Each message has one."""
        records = read_topic(self.kafka, f"{self.prefix}.receipts", lambda found: len(found) >= count)
        receipts = [msgspec.json.decode(record.value or b"") for record in records]
        found = {receipt["message_id"]: receipt["outcome"] for receipt in receipts}
        assert len(found) == len(receipts)
        return found

    def deliver(self, payload: bytes, *, before: int) -> None:
        """before: how many PUBLISH commands there were."""
        self.send(payload)
        (publish,) = self.sent(before + 1)[before:]
        assert publish.payload == payload
        self.acknowledge(publish)
        self.outcomes(before + 1)


def ended(process: Engine) -> str:
    """What an engine says that ends by itself."""
    _, errors = process.process.communicate(timeout=EXIT_S)
    assert process.process.returncode != 0
    return str(errors)


def test_an_engine_with_another_checkpoint_does_not_start_beside_one(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = Topics(kafka, "beside")
    with engine(topics.settings(tmp_path / "first")) as first:
        topics.connect(1)
        topics.deliver(b"1", before=0)
        said = ended(Engine(topics.settings(tmp_path / "second")))
        assert "EngineRuns" in said
        assert "another engine works on the topics beside.*" in said
        topics.deliver(b"2", before=1)
        assert first.stop() == 0
    assert topics.outcomes(2) == {"1": "delivered", "2": "delivered"}


def test_an_engine_is_fenced_by_one_with_a_copy_of_its_checkpoint(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = Topics(kafka, "copied")
    with engine(topics.settings(tmp_path / "first")) as first:
        topics.connect(1)
        topics.deliver(b"1", before=0)
        assert first.stop() == 0
    shutil.copytree(tmp_path / "first" / "checkpoint", tmp_path / "copy" / "checkpoint")
    with engine(topics.settings(tmp_path / "first")) as first, engine(topics.settings(tmp_path / "copy")) as copy:
        said = ended(first)
        assert "EngineFenced" in said
        topics.deliver(b"2", before=1)
        assert copy.stop() == 0


def test_a_new_checkpoint_sends_nothing_again(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = Topics(kafka, "renewed")
    with engine(topics.settings(tmp_path / "first")) as first:
        topics.connect(1)
        for number in range(3):
            topics.deliver(b"%d" % number, before=number)
        assert first.stop() == 0
    topics.send(b"unread")
    with engine(topics.settings(tmp_path / "new")) as new:
        topics.connect(2)
        assert [publish.payload for publish in topics.sent(4)] == [b"0", b"1", b"2", b"unread"]
        topics.acknowledge(topics.sent(4)[-1])
        topics.outcomes(4)
        assert new.stop() == 0
    assert Counter(publish.payload for publish in topics.sent(4)) == {b"0": 1, b"1": 1, b"2": 1, b"unread": 1}
