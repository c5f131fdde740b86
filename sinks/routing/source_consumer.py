"""Reads the topics with publications and subscriptions as a member of the matchers' consumer group. One thread calls all
methods.

Partitions move one by one (cooperative rebalancing). What is `finished` is committed at intervals, and before a partition goes,
so that its next owner begins there. A start that nobody has committed is committed at once, because after a crash the end of a
log would be a later one.

Each commit names the ids of all topics. When a topic is deleted, Kafka deletes its commits. Those of the other topics say then
that it was created again: it is read from its beginning.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.group_consumer import ConsumedRecord, MemberFenced, check_consumer_error, is_committed_later, polled
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, ErrorLogThrottle, KafkaFailed, client_config, new_client, reason_of
from sinks.kafka.topic_ids import is_another_topic
from sinks.routing.log_ends import BEGINNING, END, Partition, log_offsets

_log: Final = structlog.get_logger(__name__)
_ANSWER_S: Final = 10.0
_FETCH_WAIT_MS: Final = 500
_COMMIT_INTERVAL_S: Final = 0.3
"""Publications that were routed within this time are routed once more after a crash."""


class SourceConsumer:
    """A member of the group.

    Attributes:
        owned: By partition, the offset below which everything is finished. Records of other partitions are not returned.

    Raises:
        KafkaFailed: A file or value of the configuration is of no use.
    """

    def __init__(
        self,
        host: HostSettings,
        *,
        group_id: str,
        begins_at_end: Mapping[str, bool],
        ids: Mapping[str, str],
        partitions: Collection[Partition],
        recreated: Collection[str],
        asking: Any,
        before_revoke: Callable[[], None],
        on_gone: Callable[[frozenset[Partition]], None],
    ) -> None:
        """Joins the group.

        Args:
            begins_at_end: By topic, where a partition is begun that nobody has committed.
            ids: Of the topics.
            partitions: All of the topics.
            recreated: Topics that this process has seen recreated.
            asking: A client for `log_offsets`.
            before_revoke: Finishes what was read, as far as it can. Called by `poll` and `close`.
            on_gone: Forgets what was read of partitions that are gone. Called by the same.
        """
        self.owned: dict[Partition, int] = {}
        self._begins_at_end = begins_at_end
        self._ids = ids
        self._metadata = " ".join(ids[topic] for topic in begins_at_end)
        self._partitions = [TopicPartition(topic, number) for topic, number in partitions]
        self._recreated = frozenset(recreated)
        self._asking = asking
        self._before_revoke = before_revoke
        self._on_gone = on_gone
        self._log_throttle = ErrorLogThrottle()
        self._broken: Exception | None = None
        self._committed: dict[Partition, int] = {}
        self._commit_again_s = 0.0
        config: dict[str, Any] = {
            "group.id": group_id,
            "session.timeout.ms": host.group_session_timeout_ms,
            "heartbeat.interval.ms": max(100, host.group_session_timeout_ms // 4),
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "fetch.min.bytes": 1,
            "fetch.queue.backoff.ms": 20,
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": 16_384,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "check.crcs": True,
            "isolation.level": "read_committed",  # a backend may publish in transactions
            "partition.assignment.strategy": "cooperative-sticky",
            "on_commit": self._on_commit,
        }
        if host.group_instance_id is not None:
            config["group.instance.id"] = host.group_instance_id
        errors = ClientErrors()
        # No record is skipped silently: a failure makes a new consumer, which asks where the log begins.
        theirs = client_config(host.bootstrap_servers, host.kafka_options, errors, config)
        self._client: Any = new_client(Consumer, {**theirs, "auto.offset.reset": "error"})
        self._client.subscribe(list(begins_at_end), on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lost)

    def poll(self, timeout_s: float, most: int) -> dict[Partition, list[ConsumedRecord]]:
        """Returns the next records of each partition, `most` in all.

        Raises:
            MemberFenced: Another process has joined under our `group_instance_id`.
            KafkaFailed: Another consumer is the cure.
        """
        messages = polled(self._client, timeout_s, most)
        if self._broken is not None:
            raise self._broken
        batches: dict[Partition, list[ConsumedRecord]] = {}
        for message in messages:
            if (wrong := message.error()) is not None:
                check_consumer_error(wrong, message.topic() or "", self._log_throttle)
                continue
            partition = message.topic(), message.partition()
            if partition in self.owned:
                batches.setdefault(partition, []).append(ConsumedRecord(message))
        return batches

    def finished(self, ends: Mapping[Partition, int]) -> None:
        """Notes that everything below these offsets is finished, and commits it some time later."""
        for partition, end in ends.items():
            if partition in self.owned:
                self.owned[partition] = end

    def pause(self, partition: Partition) -> None:
        """Returns no further records of a partition until `resume`. It stays ours meanwhile. Raises KafkaFailed."""
        self._set_paused(self._client.pause, partition)

    def resume(self, partition: Partition) -> None:
        """Goes on behind the last record that was returned. Raises KafkaFailed."""
        self._set_paused(self._client.resume, partition)

    def _set_paused(self, change: Callable[[list[TopicPartition]], None], partition: Partition) -> None:
        try:
            change([TopicPartition(*partition)])
        except KafkaException as error:
            raise KafkaFailed(f"{partition[0]} {partition[1]} cannot be paused or resumed: {reason_of(error)}") from error

    @property
    def has_joined(self) -> bool:
        """True while this member is in the group."""
        return bool(self._client.memberid())

    def commit(self) -> None:
        """Commits what is due, without waiting. Raises KafkaFailed."""
        now_s = time.monotonic()
        if now_s < self._commit_again_s:
            return
        self._commit_again_s = now_s + _COMMIT_INTERVAL_S
        if offsets := self._uncommitted(self.owned):
            try:
                self._client.commit(offsets=_positions(offsets, self._metadata), asynchronous=True)
            except KafkaException as error:
                raise KafkaFailed(str(reason_of(error))) from error

    def _uncommitted(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        owned, committed = self.owned, self._committed
        return {each: owned[each] for each in partitions if each in owned and committed.get(each) != owned[each]}

    def lag(self, positions: Mapping[Partition, int]) -> int:
        """Returns how many records there are behind these positions, as of the newest fetch."""
        lag = 0
        for (topic, number), position in positions.items():
            _, end = self._client.get_watermark_offsets(TopicPartition(topic, number), cached=True)
            lag += max(0, end - position)
        return lag

    def close(self) -> None:
        """Gives all partitions back, and leaves the group, if the name in it is not kept. Blocks for seconds."""
        self._client.close()

    # --- called by `poll` and `close` -----------------------------------------------------------------------------------------

    def _assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Begins to read new partitions. An exception must not leave this method, as in GroupConsumer."""
        try:
            starts = self._starts(client, [(one.topic, one.partition) for one in partitions])
            client.incremental_assign(_positions(starts))
            client.resume(_positions(starts))  # it may have been paused when it was ours before
        except KafkaException as error:
            self._broken = KafkaFailed(f"partitions of the matchers cannot be read: {reason_of(error)}")
        except Exception as error:  # noqa: BLE001
            self._broken = error
        else:
            self.owned.update(starts)
            self._commit_again_s = 0.0

    def _starts(self, client: Any, partitions: list[Partition]) -> dict[Partition, int]:
        """Returns where to begin."""
        if not partitions:
            return {}
        found = client.committed(self._partitions, timeout=_ANSWER_S)
        recreated = self._recreated.union(*(self._recreated_since(one) for one in found))
        committed = {(one.topic, one.partition): one.offset for one in found if one.topic not in self._recreated_since(one)}
        firsts, ends = (log_offsets(self._asking, partitions, which) for which in (BEGINNING, END))
        starts = {}
        for partition in partitions:
            offset, first, end = committed.get(partition, -1), firsts[partition], ends[partition]
            if offset < 0:
                is_new = self._begins_at_end[partition[0]] and partition[0] not in recreated
                starts[partition] = end if is_new else first
                continue
            self._committed[partition] = offset
            starts[partition] = min(max(first, offset), end)
            if starts[partition] != offset:
                _log.warning(
                    "publications_gone", topic=partition[0], partition=partition[1], first=offset, next=starts[partition]
                )
        return starts

    def _recreated_since(self, commit: TopicPartition) -> frozenset[str]:
        """Returns the topics that were recreated since a commit. One of an older version does not say."""
        then = dict(zip(self._begins_at_end, (commit.metadata or "").split(), strict=False))
        return frozenset(topic for topic, topic_id in then.items() if is_another_topic(topic_id, self._ids[topic]))

    def _revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Finishes, commits, and lets partitions go."""
        going = frozenset((one.topic, one.partition) for one in partitions)
        try:
            self._before_revoke()
            if offsets := self._uncommitted(going):
                client.commit(offsets=_positions(offsets, self._metadata), asynchronous=False)
        except KafkaException as error:  # the next owner routes some publications once more, which their marks say
            _log.warning("commit_at_revocation_failed", error=str(reason_of(error)))
        except Exception as error:  # noqa: BLE001
            self._broken = error
        self._forget(going)

    def _lost(self, client: Any, partitions: list[TopicPartition]) -> None:
        """Commits nothing, because another member may own the partitions already."""
        del client
        self._forget(frozenset((one.topic, one.partition) for one in partitions))

    def _forget(self, going: frozenset[Partition]) -> None:
        for partition in going:
            self.owned.pop(partition, None)
            self._committed.pop(partition, None)
        self._on_gone(going)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        wrong = next((each for each in (error, *(one.error for one in partitions)) if each is not None), None)
        if wrong is None:
            self._committed.update({(one.topic, one.partition): one.offset for one in partitions})
        elif wrong.code() == KafkaError.FENCED_INSTANCE_ID:
            self._broken = MemberFenced(wrong.str())
        elif not is_committed_later(wrong):
            self._broken = KafkaFailed(f"Kafka refuses a commit of the matchers: {wrong.str()}")


def _positions(offsets: Mapping[Partition, int], metadata: str = "") -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset, metadata) for (topic, number), offset in offsets.items()]
