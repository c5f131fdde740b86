"""What a member of a consumer group sees of a rebalance: its partitions come and go, and sometimes it is forgotten."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.errors import RebalanceInProgressError
from kafka.structs import MemberState


class AssignmentChanges(ConsumerRebalanceListener):  # type: ignore[misc]
    """Only takes notes: it runs on the consumer's I/O loop, which must not wait.

    changes: what has happened, oldest first: whether partitions came (else they went), and which. Whoever follows them takes
    them out.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.changes: deque[tuple[bool, frozenset[int]]] = deque()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._note(True, assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._note(False, revoked)

    def _note(self, is_assignment: bool, partitions: Iterable[TopicPartition]) -> None:
        numbers = frozenset(partition.partition for partition in partitions if partition.topic == self._topic)
        if numbers:
            self.changes.append((is_assignment, numbers))


class RebalanceWatch:
    """Finds out that a rebalance has gone on without this member.

    kafka-python 3.0 can lose a join: a leader that joins again only because its metadata have changed looks after the join for
    as long as the assignment is of other metadata, and the assignment is renewed in the middle of the join. When a poll's time is
    over at that moment, nothing ends the join and nothing sends heartbeats any more, while its partitions stay assigned. (Kafka's
    own consumer had a defect of this kind: KAFKA-9815.)

    In one rebalance the broker waits for a member for at most its session timeout, and the others have heard of the rebalance a
    heartbeat later. Whoever waits for longer waits for nothing.
    """

    def __init__(self, *, session_timeout_ms: int, heartbeat_interval_ms: int) -> None:
        self._longest_s = (session_timeout_ms + heartbeat_interval_ms) / 1_000
        self._generation: int | None = None
        self._since_s = 0.0

    def look(self, membership: Any, now_s: float) -> None:
        """membership: `KafkaConsumer.group_metadata()`, after each poll. now_s: monotonic.

        Raises RebalanceInProgressError: the consumer has to be made anew.
        """
        if membership.state != MemberState.REBALANCING:
            self._generation = None
        elif self._generation != membership.generation_id:  # the next rebalance, or a step of this one
            self._generation = membership.generation_id
            self._since_s = now_s
        elif now_s - self._since_s > self._longest_s:
            raise RebalanceInProgressError(f"for more than {self._longest_s:g} s")
