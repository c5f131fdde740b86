import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from sinks.kafka import tail
from sinks.kafka.group_consumer import CommitRefused, ConsumedRecord, MemberFenced, PartitionsAssigned, PartitionsRevoked
from sinks.kafka.group_instance import GroupInstanceTaken
from sinks.kafka.librdkafka import KafkaFailed
from sinks.kafka.tail import KafkaCommandTail
from tests.support.waiting import DEADLINE_S, until

PASSING = CommitRefused("the group is rebalancing", is_passing=True)
LASTING = CommitRefused("too few replicas", is_passing=False)


class Consumer:
    """A GroupConsumer that gets partition 0 with the first poll. `outcome` says what becomes of the next commit."""

    made: list["Consumer"] = []  # noqa: RUF012 - a fresh one for each test

    def __init__(
        self,
        topic: str,
        *,
        on_revoke: Callable[[], None],
        on_commit: Callable[[Mapping[int, int], CommitRefused | None], None],
        **_: Any,
    ) -> None:
        self.changes: deque[PartitionsAssigned | PartitionsRevoked] = deque()
        self.is_closed = False
        self.polls = 0
        self.stamps: list[str] = []
        self._on_revoke, self._on_commit = on_revoke, on_commit
        self._answers: list[tuple[Mapping[int, int], CommitRefused | None]] = []
        self.made.append(self)

    def poll(self, timeout_s: float, most: int) -> dict[int, list[ConsumedRecord]]:
        time.sleep(0.001)
        self.polls += 1
        if self.polls == 1:
            self.changes.append(PartitionsAssigned({0: 0}))
        answers, self._answers = self._answers, []
        for answer in answers:
            self._on_commit(*answer)
        return self.read()

    def read(self) -> dict[int, list[ConsumedRecord]]:
        return {}

    def outcome(self, offsets: Mapping[int, int]) -> CommitRefused | None:
        return None

    def commit(self, offsets: Mapping[int, int], metadata: str) -> None:
        self.stamps.append(metadata)
        self._answers.append((offsets, self.outcome(offsets)))

    def close(self) -> None:
        self.is_closed = True


class Message:
    def __init__(self, value: bytes, offset: int) -> None:
        self.offset = lambda: offset
        self.value = lambda: value


def record(value: bytes, offset: int) -> ConsumedRecord:
    return ConsumedRecord(Message(value, offset))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_COMMIT_INTERVAL_S", "_RESTART_PAUSE_S"):
        monkeypatch.setattr(tail, name, 0.01)
    monkeypatch.setattr(Consumer, "made", [])


def tail_on(
    monkeypatch: pytest.MonkeyPatch,
    consumer: type[Consumer],
    *,
    group_instance_id: str | None = None,
    on_taken: Callable[[], None] = lambda: None,
) -> KafkaCommandTail:
    monkeypatch.setattr(tail, "GroupConsumer", consumer)
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
        self.read: list[bytes] = []

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        self.calls.append(("assigned", partitions))

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self.calls.append(("revoked", partitions))

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        self.read += values
        return [partial(self.done.append, value) for value in values]


class Failing(Consumer):
    def read(self) -> dict[int, list[ConsumedRecord]]:
        if self.polls == 3:
            raise KafkaFailed("offset out of range")
        return {}


@pytest.mark.usefixtures("quick")
async def test_after_a_failed_consumer_another_one_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = frozenset((0,))
    listener, reader = Listener(), tail_on(monkeypatch, Failing)
    reader.start(listener)
    await until(lambda: len(listener.calls) >= 3, "the partition is given up and got again")
    await reader.close(5)
    calls = listener.calls
    assert calls[:3] == [("assigned", partition), ("revoked", partition), ("assigned", partition)]
    assert Consumer.made[0].is_closed


class Losing(Consumer):
    """Partition 0 goes with the second record."""

    def read(self) -> dict[int, list[ConsumedRecord]]:
        if self.polls == 4:
            self.changes.append(PartitionsRevoked(frozenset((0,))))
        return {0: [record(b"%d" % self.polls, self.polls)]} if self.polls in (3, 4) else {}


class GivingUp(Consumer):
    """Partition 1 comes and both partitions go with the second poll; then the group gives them to another member."""

    heard: list[tuple[str, frozenset[int]]] = []  # noqa: RUF012 - a fresh one for each test
    listener: "Listener"

    def read(self) -> dict[int, list[ConsumedRecord]]:
        if self.polls == 2:
            self.changes += [PartitionsAssigned({1: 0}), PartitionsRevoked(frozenset((0, 1)))]
            self._on_revoke()
            self.heard += self.listener.calls
        return {0: [record(b"%d" % self.polls, self.polls)]}


@pytest.mark.usefixtures("quick")
async def test_another_member_gets_a_partition_when_the_listener_has_given_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, reader = Listener(), tail_on(monkeypatch, GivingUp)
    monkeypatch.setattr(tail, "_GIVEN_UP_S", DEADLINE_S)
    monkeypatch.setattr(GivingUp, "heard", [])
    monkeypatch.setattr(GivingUp, "listener", listener, raising=False)
    reader.start(listener)
    await until(lambda: GivingUp.heard, "the partitions are given up")
    await reader.close(5)
    assert GivingUp.heard == [("assigned", frozenset((0,))), ("assigned", frozenset((1,))), ("revoked", frozenset((0, 1)))]
    assert listener.calls == GivingUp.heard, "nothing is reported twice"
    assert listener.read == [b"1"]


@pytest.mark.usefixtures("quick")
@pytest.mark.promise("gateway-evicted")
async def test_records_of_a_revoked_partition_are_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, reader = Listener(), tail_on(monkeypatch, Losing)
    reader.start(listener)
    await until(lambda: len(listener.calls) == 2, "the partition comes and goes")
    await reader.close(5)
    assert listener.calls[1] == ("revoked", frozenset((0,)))
    assert listener.read == [b"3"]


class FencedConsumer(Consumer):
    """Commits until somebody else joins under its name."""

    def read(self) -> dict[int, list[ConsumedRecord]]:
        if len(self.stamps) == 3:
            raise MemberFenced("gateway-0")
        return {}


@pytest.mark.usefixtures("quick")
async def test_a_fenced_member_gives_its_partitions_up_and_does_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, taken = Listener(), asyncio.Event()
    reader = tail_on(monkeypatch, FencedConsumer, group_instance_id="gateway-0", on_taken=taken.set)
    reader.start(listener)
    reader.check()
    await asyncio.wait_for(taken.wait(), DEADLINE_S)
    with pytest.raises(GroupInstanceTaken, match="gateways as 'gateway-0' and has taken the partitions over"):
        reader.check()
    await reader.close(5)
    assert listener.calls == [("assigned", frozenset((0,))), ("revoked", frozenset((0,)))]
    (consumer,) = Consumer.made
    assert consumer.is_closed
    assert len(set(consumer.stamps)) == 3, "it stamps although there is nothing new to commit"


class Names:
    """Stands for `await_instance_free`: counts its calls. taken: another process lives under the name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checks = 0
        self.taken = False
        monkeypatch.setattr(tail, "await_instance_free", self._check)

    def _check(self, **_: Any) -> None:
        self.checks += 1
        if self.taken:
            raise GroupInstanceTaken("another process, at 10.0.0.7")


@pytest.mark.usefixtures("quick")
async def test_it_leaves_its_group_and_joins_again_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    partition, names = frozenset((0,)), Names(monkeypatch)
    listener, reader = Listener(), tail_on(monkeypatch, Consumer, group_instance_id="bridge-0")
    await reader.await_instance_free()
    reader.start(listener)
    await until(lambda: listener.calls, "it joins")
    reader.leave()
    await until(lambda: len(listener.calls) == 2, "it leaves")
    (consumer,) = Consumer.made
    assert consumer.is_closed
    assert consumer.stamps[-1] == "bridge-0 left"
    assert names.checks == 1
    reader.start(listener)
    await until(lambda: len(listener.calls) == 3, "it joins again")
    assert names.checks == 2, "while it was in no group another process may have joined under the name"
    assert listener.calls == [("assigned", partition), ("revoked", partition), ("assigned", partition)]
    await reader.close(5)
    assert [each.is_closed for each in Consumer.made] == [True, True]


@pytest.mark.usefixtures("quick")
async def test_it_does_not_join_again_under_a_name_that_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    listener, taken = Listener(), asyncio.Event()
    reader = tail_on(monkeypatch, Consumer, group_instance_id="bridge-0", on_taken=taken.set)
    reader.start(listener)
    await until(lambda: listener.calls, "it joins")
    reader.leave()
    await until(lambda: len(listener.calls) == 2, "it leaves")
    names.taken = True
    reader.start(listener)
    await asyncio.wait_for(taken.wait(), DEADLINE_S)
    with pytest.raises(GroupInstanceTaken, match=r"at 10\.0\.0\.7"):
        reader.check()
    await reader.close(5)
    assert len(Consumer.made) == 1


@pytest.mark.usefixtures("quick")
async def test_a_first_join_that_comes_late_looks_at_the_name_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_NAME_CHECK_HOLDS_S", 0.0)
    names = Names(monkeypatch)
    listener, reader = Listener(), tail_on(monkeypatch, Consumer, group_instance_id="bridge-0")
    await reader.await_instance_free()
    reader.start(listener)
    await until(lambda: listener.calls, "it joins")
    assert names.checks == 2
    await reader.close(5)


@pytest.mark.usefixtures("quick")
async def test_a_tail_that_has_left_its_group_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, reader = Listener(), tail_on(monkeypatch, Consumer)
    reader.start(listener)
    await until(lambda: listener.calls, "it joins")
    reader.leave()
    await until(lambda: len(listener.calls) == 2, "it leaves")
    await reader.close(DEADLINE_S)
    reader.leave()
    assert reader._thread is not None
    assert not reader._thread.is_alive()


class Reading(Consumer):
    """Reads one record. refusals: so many commits are refused first."""

    refusals = 0
    commits = 0

    def read(self) -> dict[int, list[ConsumedRecord]]:
        return {0: [record(b"for nobody here", 6)]} if self.polls == 1 else {}

    def outcome(self, offsets: Mapping[int, int]) -> CommitRefused | None:
        Reading.commits += 1
        return PASSING if Reading.commits <= Reading.refusals else None


class Forgotten(Reading):
    """The group evicts the tail, and refuses its commits before it reports the eviction."""

    def read(self) -> dict[int, list[ConsumedRecord]]:
        if self.polls == 20:
            self.changes.append(PartitionsRevoked(frozenset((0,))))
        return super().read()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("consumer", "refusals", "done"),
    [(Reading, 0, [b"for nobody here"]), (Reading, 3, [b"for nobody here"]), (Forgotten, 10**9, [])],
)
@pytest.mark.promise("gateway-evicted")
async def test_actions_that_need_membership_wait_for_a_commit(
    monkeypatch: pytest.MonkeyPatch, consumer: type[Consumer], refusals: int, done: list[bytes]
) -> None:
    for name, value in (("refusals", refusals), ("commits", 0)):
        monkeypatch.setattr(Reading, name, value)
    listener, reader = Listener(), tail_on(monkeypatch, consumer)
    reader.start(listener)
    await until(lambda: listener.done or len(listener.calls) >= 2, "a commit, or the end of the membership")
    assert Reading.commits > refusals or not listener.done
    await reader.close(5)
    assert listener.done == done


class Unpermitted(Reading):
    """Five batches of one record. The group takes no commit until the last of them."""

    def read(self) -> dict[int, list[ConsumedRecord]]:
        return {0: [record(b"%d" % self.polls, self.polls)]} if self.polls <= 5 else {}

    def outcome(self, offsets: Mapping[int, int]) -> CommitRefused | None:
        return None if offsets == {0: 6} else LASTING


@pytest.mark.usefixtures("quick")
async def test_only_the_newest_batches_wait_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_UNCERTAIN_BATCHES", 3)
    listener, reader = Listener(), tail_on(monkeypatch, Unpermitted)
    reader.start(listener)
    await until(lambda: listener.done, "a commit")
    await reader.close(5)
    assert listener.done == [b"3", b"4", b"5"]


class Leaving(Reading):
    """outcomes: of the commits at the end, one after the other; None is taken, and the last one holds for all that follow.
    SILENT is not answered."""

    outcomes: tuple[Any, ...] = ()
    last_commits = 0

    def commit(self, offsets: Mapping[int, int], metadata: str) -> None:
        if not metadata.endswith("left"):
            super().commit(offsets, metadata)
            return
        outcome = self.outcomes[min(Leaving.last_commits, len(self.outcomes) - 1)]
        Leaving.last_commits += 1
        if outcome is not SILENT:
            self._answers.append((offsets, outcome))


SILENT = object()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("outcomes", "limit_s", "tries"),
    [((PASSING, PASSING, None), DEADLINE_S, 3), ((LASTING,), DEADLINE_S, 1), ((SILENT,), 0.5, 1)],
    ids=["a rebalance ends", "refused for good", "Kafka is away"],
)
def test_the_last_commit_waits_for_the_end_of_a_rebalance_only(
    monkeypatch: pytest.MonkeyPatch, outcomes: tuple[Any, ...], limit_s: float, tries: int
) -> None:
    monkeypatch.setattr(tail, "_LAST_COMMIT_S", limit_s)
    monkeypatch.setattr(Leaving, "outcomes", outcomes)
    assert last_commits(monkeypatch, stop_timeout_s=DEADLINE_S) == tries


@pytest.mark.usefixtures("quick")
def test_the_last_commit_waits_no_longer_than_the_process_may_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_LEAVE_S", 0.0)
    monkeypatch.setattr(tail, "_LAST_COMMIT_S", DEADLINE_S)
    monkeypatch.setattr(Leaving, "outcomes", (PASSING,))
    started = time.monotonic()
    assert last_commits(monkeypatch, stop_timeout_s=0.5) > 0
    assert time.monotonic() - started < DEADLINE_S, "the limit of a commit counts only until the process has to stop"


def last_commits(monkeypatch: pytest.MonkeyPatch, *, stop_timeout_s: float) -> int:
    """Returns the number of commits when a tail with a partition has been closed."""
    monkeypatch.setattr(Leaving, "last_commits", 0)

    async def main() -> None:
        listener, reader = Listener(), tail_on(monkeypatch, Leaving, group_instance_id="gateway-0")
        reader.start(listener)
        await until(lambda: listener.done, "a commit")
        await reader.close(stop_timeout_s)
        await until(lambda: Consumer.made[0].is_closed, "its thread ends")

    asyncio.run(main())
    return Leaving.last_commits
