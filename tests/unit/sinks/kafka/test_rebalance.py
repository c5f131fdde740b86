"""sinks.kafka.rebalance: who waits in vain. With a broker: tests/integration/kafka/test_command_tail.py."""

import pytest
from kafka import TopicPartition
from kafka.errors import RebalanceInProgressError
from kafka.structs import ConsumerGroupMetadata, MemberState

from sinks.kafka.rebalance import AssignmentChanges, RebalanceWatch


def member(state: str, generation: int = 1) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata("gateways", generation, "this one", None, state)


@pytest.fixture
def watch() -> RebalanceWatch:
    return RebalanceWatch(session_timeout_ms=6_000, heartbeat_interval_ms=1_500)


def test_who_waits_for_longer_than_the_broker_waits_for_anybody_is_forgotten(watch: RebalanceWatch) -> None:
    watch.look(member(MemberState.REBALANCING), 100.0)
    watch.look(member(MemberState.REBALANCING), 107.5)
    with pytest.raises(RebalanceInProgressError, match=r"for more than 7\.5 s"):
        watch.look(member(MemberState.REBALANCING), 107.6)


@pytest.mark.parametrize("between", [member(MemberState.STABLE), member(MemberState.UNJOINED, -1)], ids=["joined", "expelled"])
def test_every_rebalance_has_its_own_time(watch: RebalanceWatch, between: ConsumerGroupMetadata) -> None:
    watch.look(member(MemberState.REBALANCING), 100.0)
    watch.look(between, 107.0)
    watch.look(member(MemberState.REBALANCING), 108.0)
    watch.look(member(MemberState.REBALANCING), 115.0)


def test_rebalances_that_follow_each_other_at_once_are_told_apart(watch: RebalanceWatch) -> None:
    for generation in range(5):
        watch.look(member(MemberState.REBALANCING, generation), 100.0 + 5 * generation)


def test_only_the_partitions_of_its_topic_are_noted_in_order() -> None:
    noted = AssignmentChanges("commands")
    noted.on_partitions_assigned([TopicPartition("commands", 0), TopicPartition("commands", 1), TopicPartition("other", 7)])
    noted.on_partitions_revoked([TopicPartition("other", 7)])
    noted.on_partitions_revoked([TopicPartition("commands", 1)])
    assert list(noted.changes) == [(True, frozenset((0, 1))), (False, frozenset((1,)))]
