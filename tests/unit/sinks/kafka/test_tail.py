"""The consumer behind the gateways' command tail, with one that behaves as told in place of kafka-python's."""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import FencedInstanceIdError, RebalanceInProgressError

from sinks.kafka import tail
from sinks.kafka.group_instance import GroupInstanceTaken
from sinks.kafka.tail import KafkaCommandTail
from tests.support.waiting import until


class StuckConsumer:
    """Gets partition 0, one record, and then waits for the end of a rebalance for ever."""

    made: list["StuckConsumer"] = []  # noqa: RUF012 - a fresh one for each test

    def __init__(self, **config: Any) -> None:
        self.listener: Any = None
        self.is_closed = False
        self.made.append(self)

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.listener = listener

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        if self.listener is not None:
            self.listener.on_partitions_assigned([TopicPartition("commands", 0)])
            self.listener = None
        return {}

    def position(self, partition: TopicPartition, timeout_ms: int) -> int:
        return 0

    def commit_async(self, offsets: Any, callback: Any) -> None:
        callback(offsets, RebalanceInProgressError("the group is rebalancing"))

    def commit(self, offsets: Any, timeout_ms: int) -> None: ...

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        self.is_closed = True


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[int]]] = []
        self.done: list[bytes] = []

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        self.calls.append(("assigned", partitions))

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self.calls.append(("revoked", partitions))

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        return [partial(self.done.append, value) for value in values]


def test_a_member_that_a_rebalance_has_forgotten_gives_its_partitions_up_and_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "KafkaConsumer", StuckConsumer)
    for name in ("_COMMIT_INTERVAL_S", "_RESTART_PAUSE_S"):
        monkeypatch.setattr(tail, name, 0.01)
    monkeypatch.setattr(tail, "_SHORTEST_LIMIT_S", 0.05)
    monkeypatch.setattr(StuckConsumer, "made", [])
    partition = frozenset((0,))

    async def main() -> list[tuple[str, frozenset[int]]]:
        listener = Listener()
        reader = KafkaCommandTail(
            bootstrap_servers="",
            topic="commands",
            group_id="gateways",
            group_instance_id=None,
            session_timeout_ms=10,
            fetch_max_wait_ms=10,
            options={},
        )
        reader.start(listener)
        await until(lambda: len(listener.calls) >= 3, "the partition is given up and got again", within_s=20)
        await reader.close(5)
        return listener.calls

    calls = asyncio.run(main())
    assert calls[:3] == [("assigned", partition), ("revoked", partition), ("assigned", partition)]
    assert StuckConsumer.made[0].is_closed


class FencedConsumer(StuckConsumer):
    """Commits until somebody else joins under its name: kafka-python says so in the poll after the commit."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.stamps: list[str] = []

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        if len(self.stamps) == 3:
            raise FencedInstanceIdError("gateway-0")
        return super().poll(timeout_ms)

    def commit_async(self, offsets: Any, callback: Any) -> None:
        self.stamps += [offset.metadata for offset in offsets.values()]
        callback(offsets, None)


def test_a_fenced_member_gives_its_partitions_up_and_does_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "KafkaConsumer", FencedConsumer)
    for name in ("_COMMIT_INTERVAL_S", "_RESTART_PAUSE_S"):
        monkeypatch.setattr(tail, name, 0.01)
    monkeypatch.setattr(StuckConsumer, "made", [])

    async def main() -> list[tuple[str, frozenset[int]]]:
        listener, taken = Listener(), asyncio.Event()
        reader = KafkaCommandTail(
            bootstrap_servers="",
            topic="commands",
            group_id="gateways",
            group_instance_id="gateway-0",
            session_timeout_ms=10,
            fetch_max_wait_ms=10,
            options={},
            on_taken=taken.set,
        )
        reader.start(listener)
        reader.check()
        await asyncio.wait_for(taken.wait(), 20)
        with pytest.raises(GroupInstanceTaken, match="gateways as 'gateway-0' and has taken the partitions over"):
            reader.check()
        await reader.close(5)
        return listener.calls

    assert asyncio.run(main()) == [("assigned", frozenset((0,))), ("revoked", frozenset((0,)))]
    (consumer,) = StuckConsumer.made
    assert isinstance(consumer, FencedConsumer)
    assert consumer.is_closed
    assert len(set(consumer.stamps)) == 3, "it stamps although there is nothing new to commit"


class Reading(StuckConsumer):
    """Reads one record. refusals: so many commits are refused first; a member that was left behind is refused for ever."""

    refusals = 0
    commits = 0

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        if self.listener is None:
            return {}
        super().poll(timeout_ms)
        return {TopicPartition("commands", 0): [SimpleNamespace(value=b"for nobody here", offset=6)]}

    def commit_async(self, offsets: Any, callback: Any) -> None:
        Reading.commits += 1
        if Reading.commits <= Reading.refusals:
            callback(offsets, RebalanceInProgressError("the group is rebalancing"))
        else:
            callback(offsets, None)


@pytest.mark.parametrize(("refusals", "done"), [(0, [b"for nobody here"]), (3, [b"for nobody here"]), (10**9, [])])
def test_what_needs_certainty_waits_until_kafka_has_taken_a_commit(
    monkeypatch: pytest.MonkeyPatch, refusals: int, done: list[bytes]
) -> None:
    monkeypatch.setattr(tail, "KafkaConsumer", Reading)
    for name in ("_COMMIT_INTERVAL_S", "_RESTART_PAUSE_S"):
        monkeypatch.setattr(tail, name, 0.01)
    monkeypatch.setattr(tail, "_SHORTEST_LIMIT_S", 0.5)
    for name, value in (("made", []), ("refusals", refusals), ("commits", 0)):
        monkeypatch.setattr(Reading, name, value)

    async def main() -> Listener:
        listener = Listener()
        reader = KafkaCommandTail(
            bootstrap_servers="",
            topic="commands",
            group_id="gateways",
            group_instance_id=None,
            session_timeout_ms=10,
            fetch_max_wait_ms=10,
            options={},
        )
        reader.start(listener)
        await until(lambda: listener.done or len(listener.calls) >= 2, "a commit, or the end of the membership", within_s=20)
        assert Reading.commits > refusals or not listener.done
        await reader.close(5)
        return listener

    assert asyncio.run(main()).done == done
