"""Topics that get more partitions: the engine stops, and its next start keeps the order of each client."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from sinks.kafka.partitioning import partition_of
from state.commands import GatewayCommand, SendPublish
from tests.spark.child_engine import engine
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka

pytestmark = pytest.mark.faults

BEFORE, AFTER = 12, 6


class GrowingTopics(EngineTopics):
    """Topics with a client whose partition changes when there are five partitions instead of four."""

    def __init__(self, kafka: SharedKafka, prefix: str) -> None:
        super().__init__(kafka, prefix)
        self.client = next(key for key in (b"c%d" % n for n in range(99)) if partition_of(key, 4) != partition_of(key, 5) == 4)

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

    def append(self, topic: str, value: bytes, client: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Appends with a new producer, which learns how many partitions there are."""
        self.producer.close()
        self.producer = KafkaProducer(bootstrap_servers=self.kafka, acks="all")
        super().append(topic, value, client, headers)

    def send_numbers(self, numbers: range) -> None:
        for number in numbers:
            self.send(b"%d" % number, self.client)

    def received(self, count: int) -> list[int]:
        """Returns the numbers that the device gets, as soon as there are `count`."""

        def numbers(commands: list[GatewayCommand]) -> list[int]:
            """Omits resends and copies from re-executed micro-batches, as a gateway does."""
            found: dict[int, SendPublish] = {}
            for command in commands:
                if isinstance(command, SendPublish) and not command.dup:
                    found.setdefault(command.sequence, command)
            return [int(command.payload) for command in found.values()]

        return numbers(self.commands(lambda found: len(numbers(found)) >= count))


@pytest.mark.parametrize("version", ["this", "0.1.0"])
@pytest.mark.promise("added-partitions")
def test_records_of_old_partitions_come_before_those_of_new_ones(kafka: SharedKafka, tmp_path: Path, version: str) -> None:
    topics = GrowingTopics(kafka, f"grown-{version}")
    settings = topics.settings(tmp_path, max_offsets_per_trigger=5)
    with engine(settings) as first:
        topics.connect(1, topics.client)
        topics.send_numbers(range(1))
        assert topics.received(1) == [0]
        topics.add_partition("messages", "events")
        said = first.await_failure()
        assert "PartitionsChanged" in said
        assert "partitions now, and had 4 when this engine started" in said
    assert topics.partitions("messages") == 5
    old = KafkaProducer(bootstrap_servers=topics.kafka, acks="all")
    for number in range(1, BEFORE):
        headers = [("mqtt-topic", b"t"), ("message-id", b"%d" % number)]
        where = partition_of(topics.client, 4)
        old.send(f"{topics.prefix}.messages", b"%d" % number, key=topics.client, headers=headers, partition=where).get(30)
    old.close()
    topics.send_numbers(range(BEFORE, BEFORE + AFTER))
    if version == "0.1.0":
        (tmp_path / "checkpoint" / "sessions" / "inflight.partitions").unlink()
    with engine(settings) as second:
        assert topics.received(BEFORE + AFTER) == list(range(BEFORE + AFTER))
        assert second.stop() == 0
    with engine(settings) as third:
        topics.send_numbers(range(BEFORE + AFTER, BEFORE + AFTER + 1))
        assert topics.received(BEFORE + AFTER + 1)[-1] == BEFORE + AFTER
        topics.add_partition("commands")
        assert f"{topics.prefix}.commands has 9 partitions now" in third.await_failure()
