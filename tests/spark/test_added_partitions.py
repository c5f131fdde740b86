"""Topics that get more partitions: the engine stops, and its next start keeps the order of each client."""

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from sinks.kafka.partitioning import partition_of
from state.commands import SendPublish
from state.events import ClientConnected
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from tests.spark.child_engine import Engine, engine
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(300)]

EXIT_S = 90.0
BEFORE, AFTER = 12, 6


class Topics:
    """One client, whose records go elsewhere when there are five partitions in place of four."""

    def __init__(self, kafka: SharedKafka, prefix: str) -> None:
        self.kafka, self.prefix = kafka.bootstrap_servers, prefix
        self.client = next(key for key in (b"c%d" % n for n in range(99)) if partition_of(key, 4) != partition_of(key, 5) == 4)

    def settings(self, directory: Path) -> dict[str, Any]:
        return {
            "kafka": {"bootstrap_servers": self.kafka},
            "topics": {"prefix": self.prefix},
            "engine": {"data_dir": str(directory), "driver_memory": "512m", "master": "local[2]", "max_offsets_per_trigger": 5},
        }

    def partitions(self, topic: str) -> int:
        admin = KafkaAdminClient(bootstrap_servers=self.kafka)
        try:
            (description,) = admin.describe_topics([f"{self.prefix}.{topic}"])
            return len(description["partitions"])
        finally:
            admin.close()

    def add_partition(self, *topics: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.kafka)
        admin.create_partitions({f"{self.prefix}.{topic}": self.partitions(topic) + 1 for topic in topics})
        admin.close()

    def write(self, topic: str, *records: tuple[bytes, list[tuple[str, bytes]]]) -> None:
        """With a producer that has just learnt how many partitions there are."""
        producer = KafkaProducer(bootstrap_servers=self.kafka, acks="all")
        for value, headers in records:
            producer.send(f"{self.prefix}.{topic}", value, key=self.client, headers=headers).get(30)
        producer.close()

    def connect(self) -> None:
        event = ClientConnected(connection_id=1, commands_partition=0, clean_start=False, session_expiry_interval_s=3_600)
        self.write("events", (encode_event(event), []))

    def send(self, numbers: range) -> None:
        records = [(b"%d" % n, [("mqtt-topic", b"t"), ("message-id", b"%d" % n)]) for n in numbers]
        self.write("messages", *records)

    def sent(self, count: int) -> list[int]:
        """What the device gets, as soon as it is so much."""

        def publishes(records: list[ReadRecord]) -> list[int]:
            """Without resends and without what a micro-batch that was executed again has written twice, as a gateway reads it."""
            found: dict[int, SendPublish] = {}
            for record in records:
                for command in decode_command_batch(record.value or b"").commands:
                    if isinstance(command, SendPublish) and not command.dup:
                        found.setdefault(command.sequence, command)
            return [int(command.payload) for command in found.values()]

        return publishes(read_topic(self.kafka, f"{self.prefix}.commands", lambda found: len(publishes(found)) >= count))


def ended(process: Engine) -> str:
    """What an engine says that ends by itself."""
    process.process.wait(EXIT_S)  # `communicate` would close its standard input, and so stop it
    _, errors = process.process.communicate()
    assert process.process.returncode != 0
    return str(errors)


@pytest.mark.parametrize("version", ["this", "0.1.0"])
def test_records_of_old_partitions_come_before_those_of_new_ones(kafka: SharedKafka, tmp_path: Path, version: str) -> None:
    topics = Topics(kafka, f"grown-{version}")
    settings = topics.settings(tmp_path)
    with engine(settings) as first:
        topics.connect()
        topics.send(range(1))
        assert topics.sent(1) == [0]
        topics.add_partition("messages", "events")
        said = ended(first)
        assert "PartitionsChanged" in said
        assert "partitions now, and had 4 when this engine started" in said
    assert topics.partitions("messages") == 5
    old = KafkaProducer(bootstrap_servers=topics.kafka, acks="all")
    for number in range(1, BEFORE):
        headers = [("mqtt-topic", b"t"), ("message-id", b"%d" % number)]
        where = partition_of(topics.client, 4)
        old.send(f"{topics.prefix}.messages", b"%d" % number, key=topics.client, headers=headers, partition=where).get(30)
    old.close()
    topics.send(range(BEFORE, BEFORE + AFTER))
    if version == "0.1.0":
        (tmp_path / "checkpoint" / "sessions" / "inflight.partitions").unlink()
    with engine(settings) as second:
        assert topics.sent(BEFORE + AFTER) == list(range(BEFORE + AFTER))
        assert second.stop() == 0
    with engine(settings) as third:
        topics.send(range(BEFORE + AFTER, BEFORE + AFTER + 1))
        assert topics.sent(BEFORE + AFTER + 1)[-1] == BEFORE + AFTER
        topics.add_partition("commands")
        assert f"{topics.prefix}.commands has 9 partitions now" in ended(third)
