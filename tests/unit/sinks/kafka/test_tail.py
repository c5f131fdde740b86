"""The consumer behind the gateways' command tail, with one that behaves as told in place of kafka-python's."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import CommitFailedError, FencedInstanceIdError, KafkaTimeoutError, RebalanceInProgressError
from kafka.structs import ConsumerGroupMetadata, MemberState

from sinks.kafka import tail
from sinks.kafka.group_instance import GroupInstanceTaken
from sinks.kafka.tail import KafkaCommandTail
from tests.support.waiting import until


class StuckConsumer:
    """Gets partition 0, one record, and then waits for the end of a rebalance for ever."""

    made: list["StuckConsumer"] = []  # noqa: RUF012 - a fresh one for each test
    state = MemberState.REBALANCING

    def __init__(self, **config: Any) -> None:
        self.listener: Any = None
        self.is_closed = False
        self.made.append(self)

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.listener = listener

    def topics(self) -> set[str]:
        assert self.listener is not None, "what is learnt before it subscribes makes it join twice"
        return {"commands"}

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata("gateways", 2, "this one", None, self.state)

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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_COMMIT_INTERVAL_S", "_RESTART_PAUSE_S"):
        monkeypatch.setattr(tail, name, 0.01)
    monkeypatch.setattr(StuckConsumer, "made", [])


def tail_on(
    monkeypatch: pytest.MonkeyPatch,
    consumer: type[StuckConsumer],
    *,
    group_instance_id: str | None = None,
    on_taken: Callable[[], None] = lambda: None,
) -> KafkaCommandTail:
    monkeypatch.setattr(tail, "KafkaConsumer", consumer)
    return KafkaCommandTail(
        bootstrap_servers="",
        topic="commands",
        group_id="gateways",
        group_instance_id=group_instance_id,
        session_timeout_ms=100,
        fetch_max_wait_ms=10,
        options={},
        on_taken=on_taken,
    )


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


@pytest.mark.usefixtures("quick")
def test_a_member_that_a_rebalance_has_forgotten_gives_its_partitions_up_and_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = frozenset((0,))

    async def main() -> list[tuple[str, frozenset[int]]]:
        listener, reader = Listener(), tail_on(monkeypatch, StuckConsumer)
        reader.start(listener)
        await until(lambda: len(listener.calls) >= 3, "the partition is given up and got again", within_s=20)
        await reader.close(5)
        return listener.calls

    calls = asyncio.run(main())
    assert calls[:3] == [("assigned", partition), ("revoked", partition), ("assigned", partition)]
    assert StuckConsumer.made[0].is_closed


class FencedConsumer(StuckConsumer):
    """Commits until somebody else joins under its name: kafka-python says so in the poll after the commit."""

    state = MemberState.STABLE

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


@pytest.mark.usefixtures("quick")
def test_a_fenced_member_gives_its_partitions_up_and_does_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[tuple[str, frozenset[int]]]:
        listener, taken = Listener(), asyncio.Event()
        reader = tail_on(monkeypatch, FencedConsumer, group_instance_id="gateway-0", on_taken=taken.set)
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
    """Reads one record. refusals: so many commits are refused first; who was left behind is refused until it joins again."""

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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("refusals", "state", "done"),
    [
        (0, MemberState.STABLE, [b"for nobody here"]),
        (3, MemberState.STABLE, [b"for nobody here"]),
        (10**9, MemberState.REBALANCING, []),
    ],
)
def test_what_needs_certainty_waits_until_kafka_has_taken_a_commit(
    monkeypatch: pytest.MonkeyPatch, refusals: int, state: str, done: list[bytes]
) -> None:
    for name, value in (("refusals", refusals), ("commits", 0), ("state", state)):
        monkeypatch.setattr(Reading, name, value)

    async def main() -> Listener:
        listener, reader = Listener(), tail_on(monkeypatch, Reading)
        reader.start(listener)
        await until(lambda: listener.done or len(listener.calls) >= 2, "a commit, or the end of the membership", within_s=20)
        assert Reading.commits > refusals or not listener.done
        await reader.close(5)
        return listener

    assert asyncio.run(main()).done == done


class Unpermitted(Reading):
    """Five batches of one record. The group takes no commit until the last of them."""

    state = MemberState.STABLE
    read = 0

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        super().poll(timeout_ms)
        if Unpermitted.read == 5:
            return {}
        Unpermitted.read += 1
        value = b"%d" % Unpermitted.read
        return {TopicPartition("commands", 0): [SimpleNamespace(value=value, offset=Unpermitted.read)]}

    def commit_async(self, offsets: Any, callback: Any) -> None:
        ((_, offset),) = offsets.items()
        callback(offsets, None if offset.offset == 6 else KafkaTimeoutError("too few replicas"))


@pytest.mark.usefixtures("quick")
def test_of_what_waits_for_a_commit_that_does_not_come_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_UNCERTAIN_BATCHES", 3)
    monkeypatch.setattr(Unpermitted, "read", 0)

    async def main() -> list[bytes]:
        listener, reader = Listener(), tail_on(monkeypatch, Unpermitted)
        reader.start(listener)
        await until(lambda: listener.done, "a commit", within_s=20)
        await reader.close(5)
        return listener.done

    assert asyncio.run(main()) == [b"3", b"4", b"5"]


class Leaving(Reading):
    """outcomes: of the commits at the end, one after the other; None is taken, and the last one holds for all that follow."""

    state = MemberState.STABLE
    outcomes: tuple[Exception | None, ...] = ()
    last_commits = 0

    def commit(self, offsets: Any, timeout_ms: int) -> None:
        outcome = self.outcomes[min(Leaving.last_commits, len(self.outcomes) - 1)]
        Leaving.last_commits += 1
        if outcome is not None:
            raise outcome


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("outcomes", "tries"),
    [
        ((RebalanceInProgressError("it shares out"), CommitFailedError("it did"), None), 3),
        ((KafkaTimeoutError("Kafka is away"),), 1),
        ((FencedInstanceIdError("another one"),), 1),
    ],
    ids=["a rebalance ends", "Kafka is away", "fenced"],
)
def test_the_last_commit_waits_for_the_end_of_a_rebalance_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, outcomes: tuple[Exception | None, ...], tries: int
) -> None:
    monkeypatch.setattr(Leaving, "outcomes", outcomes)
    assert last_commits(monkeypatch, stop_timeout_s=5) == tries


@pytest.mark.usefixtures("quick")
def test_the_last_commit_does_not_wait_for_longer_than_the_process_has_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_LEAVE_S", 0.5)
    monkeypatch.setattr(Leaving, "outcomes", (RebalanceInProgressError("for ever"),))
    started = time.monotonic()
    assert last_commits(monkeypatch, stop_timeout_s=0.8) > 1
    assert time.monotonic() - started < tail._LAST_COMMIT_S  # without a look at when the process has to stop


def last_commits(monkeypatch: pytest.MonkeyPatch, *, stop_timeout_s: float) -> int:
    """How many there were when a tail with a partition has been closed."""
    monkeypatch.setattr(Leaving, "last_commits", 0)

    async def main() -> None:
        listener, reader = Listener(), tail_on(monkeypatch, Leaving)
        reader.start(listener)
        await until(lambda: listener.done, "a commit", within_s=20)
        await reader.close(stop_timeout_s)
        await until(lambda: StuckConsumer.made[0].is_closed, "its thread ends", within_s=20)

    asyncio.run(main())
    return Leaving.last_commits
