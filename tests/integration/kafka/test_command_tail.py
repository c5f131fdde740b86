"""The command tail on a real broker, with an assignor that takes longer than a poll, as on a busy machine."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import MemberState

from sinks.kafka import tail
from sinks.kafka.tail import KafkaCommandTail
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import until

pytestmark = pytest.mark.integration


class SlowAssignor(CooperativeStickyAssignor):  # type: ignore[misc]
    def assign(self, cluster: Any, members: Any) -> Any:
        time.sleep(1.5 * tail._POLL_TIMEOUT_MS / 1_000)
        return super().assign(cluster, members)


class SeenConsumer(KafkaConsumer):  # type: ignore[misc]
    made: ClassVar[list[KafkaConsumer]] = []

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.made.append(self)


class Listener:
    def __init__(self) -> None:
        self.owned: set[int] = set()

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        self.owned |= partitions

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self.owned -= partitions

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        return []


def tail_of(kafka: SharedKafka, topic: str) -> KafkaCommandTail:
    """In a group of its own."""
    return KafkaCommandTail(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        group_id=topic,
        group_instance_id=None,
        session_timeout_ms=6_000,
        fetch_max_wait_ms=20,
        options={"partition_assignment_strategy": (SlowAssignor,)},
    )


def test_a_member_that_has_joined_is_not_lost_in_a_second_join(kafka: SharedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three groups of one, one after the other: in the first, Kafka is slower than the metadata, which must not come too late."""
    monkeypatch.setattr(tail, "KafkaConsumer", SeenConsumer)
    monkeypatch.setattr(SeenConsumer, "made", [])

    async def main(topic: str) -> None:
        reader, listener = tail_of(kafka, topic), Listener()
        reader.start(listener)
        try:
            await until(lambda: listener.owned == {0, 1, 2, 3}, "it has its partitions", within_s=30)
            await asyncio.sleep(0.5)  # in which it would join again
            consumer = SeenConsumer.made[-1]
            await until(lambda: consumer.group_metadata().state == MemberState.STABLE, "it is in the group", within_s=4)
        finally:
            await reader.close(5)

    for number in range(1, 4):
        topic = f"command-tail-{number}"
        create_topics(kafka.bootstrap_servers, topic, partitions=4)
        asyncio.run(main(topic))
        assert len(SeenConsumer.made) == number
