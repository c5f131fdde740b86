"""Admits one engine for the topics: the only member of the consumer group `PREFIX.engine`, which commits its progress there.

Two engines would send everything twice, each from a checkpoint of its own. Kafka decides which one runs:
1. An engine joins the group under the id of its checkpoint (static membership), and stays while it runs.
2. It does not start while the group has a member with another id. Kafka removes a killed one after `SESSION_TIMEOUT_MS`.
3. If the same id joins again (a copy of the checkpoint, or the next start after a kill), Kafka fences the older member.
4. An engine that is fenced, or finds another member after a time without Kafka, stops with `EngineFenced`.
A frozen engine that wakes up after a takeover completes the micro-batch that it had begun, and no more.

It commits the end of each micro-batch. Tools read the lag from that, and a new checkpoint begins there and sends nothing again
(`starting_offsets`). Each commit carries the id of its topic: an engine that still ran while its topic was made anew has
committed offsets of the old one, and a new checkpoint must not begin there.
"""

import json
import threading
import time
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Self

import structlog
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import FencedInstanceIdError, GroupIdNotFoundError, KafkaError

from sinks.kafka.kafka_python import subscribe
from streaming.background import BackgroundLoop
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.engine.errors import EngineFenced, EngineRuns
from streaming.engine.progress import BatchProgress
from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets

SESSION_TIMEOUT_MS: Final = 15_000
_EARLIEST: Final = -2
"""Spark's value for the beginning of a partition."""
_POLL_S: Final = 0.2
_MEMBER_POLL_S: Final = 1.0
"""How often a member polls while no micro-batch ends. Its heartbeats have a thread of their own."""
_MEMBERS_POLL_S: Final = 5.0
_FORGOTTEN_S: Final = SESSION_TIMEOUT_MS / 1_000 + _MEMBERS_POLL_S
"""By then Kafka has removed a killed engine from the group."""
_JOIN_TIMEOUT_S: Final = 60.0
_FILE: Final = "inflight.id"
_NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})

_log: Final = structlog.get_logger(__name__)


class EngineGroup(BackgroundLoop):
    """Membership in the group, in a `with`. Entering raises EngineRuns and KafkaUnreachable.

    A thread keeps the membership and commits.

    Args:
        checkpoint_id: The result of `checkpoint_id`.
        topic_ids: The ids of the topics that the engine reads, by name.
    """

    _join_s = SESSION_TIMEOUT_MS / 1_000

    def __init__(self, settings: Settings, checkpoint_id: str, topic_ids: Mapping[str, str] = _NO_IDS) -> None:
        self._has_news = threading.Event()
        """Set after a micro-batch, whose end is to be committed, and at the end."""
        super().__init__("inflight-engine-group", self._has_news.set)
        self._settings = settings
        self._name = f"{settings.topics.prefix}.engine"
        self._id = checkpoint_id
        self._topic_ids = topic_ids
        self._topics = (settings.topics.messages, settings.topics.events)
        self._options = settings.kafka.client_options()
        self._joined = threading.Event()
        self._progress: Offsets | None = None
        self._lost: str | None = None

    def __enter__(self) -> Self:
        try:
            self.await_others_gone(_FORGOTTEN_S)
            self.start()
            if not self._joined.wait(_JOIN_TIMEOUT_S):
                raise EngineRuns(f"Kafka has not let this engine into the group {self._name} within {_JOIN_TIMEOUT_S:.0f} s")
            self.await_others_gone(0)
        except BaseException as error:
            self._stopping.set()
            if isinstance(error, KafkaError):
                raise KafkaUnreachable.of(self._settings.kafka.bootstrap_servers, error) from error
            raise
        return self

    def await_others_gone(self, patience_s: float) -> None:
        """Raises EngineRuns if other engines are there after `patience_s`, and KafkaError if Kafka does not answer."""
        deadline, answer_by = time.monotonic() + patience_s, time.monotonic() + _JOIN_TIMEOUT_S
        while True:
            try:
                others = self._others()
            except KafkaError as error:  # a new Kafka creates its topic of groups at the first request
                if not error.retriable or time.monotonic() >= answer_by:
                    raise
            else:
                if not others:
                    return
                if time.monotonic() >= deadline:
                    raise EngineRuns(_beside(others, self._settings.topics.prefix))
            time.sleep(_POLL_S)

    def committed(self) -> Offsets:
        """Returns the offsets that earlier engines committed, at least those of the oldest records left. Empty if none ran.

        Offsets of a topic that was made anew since are left out. Raises KafkaUnreachable.
        """
        consumer = KafkaConsumer(
            **self._options | {"group_id": self._name, "enable_auto_commit": False, "metrics_enabled": False}
        )
        try:
            by_topic: dict[str, dict[int, int]] = {}
            for topic in self._topics:
                partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
                oldest, newest = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
                for partition in partitions:
                    commit = consumer.committed(partition, metadata=True)
                    if commit is not None and self._is_of(topic, commit) and commit.offset <= newest[partition]:
                        by_topic.setdefault(topic, {})[partition.partition] = max(commit.offset, oldest[partition])
        except KafkaError as error:
            raise KafkaUnreachable.of(self._settings.kafka.bootstrap_servers, error) from error
        finally:
            consumer.close(autocommit=False)
        return by_topic

    def observe(self, batch: BatchProgress) -> None:
        """Call it after each micro-batch. Raises EngineFenced after a takeover."""
        self._progress = batch.end_offsets
        self._has_news.set()
        self.check()

    def check(self) -> None:
        """Raises EngineFenced after a takeover."""
        if self._lost is not None:
            raise EngineFenced(self._lost)

    def _run(self) -> None:
        while not self._stopping.is_set() and self._lost is None:
            try:
                self._stay()
            except FencedInstanceIdError:
                self._lost = self._fenced()
            except Exception as error:  # noqa: BLE001 - whatever failed, joining again is the cure
                _log.warning("engine_group_failed", error=repr(error), action="this engine joins again")
                self._stopping.wait(1)

    def _stay(self) -> None:
        consumer = KafkaConsumer(
            **self._options
            | {
                "client_id": "inflight-engine-group",
                "group_id": self._name,
                "group_instance_id": self._id,
                "session_timeout_ms": SESSION_TIMEOUT_MS,
                "heartbeat_interval_ms": SESSION_TIMEOUT_MS // 5,
                "enable_auto_commit": False,
                "auto_offset_reset": "latest",
                "allow_auto_create_topics": False,
                "fetch_max_bytes": 1,
                "max_partition_fetch_bytes": 1,
                "metrics_enabled": False,
            }
        )
        try:
            listener = _ReadNothing(consumer)
            if not subscribe(consumer, self._topics, listener=listener, stopping=self._stopping):
                return
            committed: Offsets | None = None
            members_due = time.monotonic() + _MEMBERS_POLL_S
            self._has_news.set()  # nobody waits for the first poll
            while not self._stopping.is_set():
                if listener.assigned:
                    self._has_news.wait(_MEMBER_POLL_S)
                    self._has_news.clear()
                consumer.poll(timeout_ms=100)
                if not listener.assigned:
                    continue
                self._joined.set()
                if (progress := self._progress) is not committed and progress is not None:
                    self._commit(consumer, progress)
                    committed = progress
                if time.monotonic() >= members_due:
                    members_due = time.monotonic() + _MEMBERS_POLL_S
                    # kafka-python reports fencing only at a commit, and a query that hangs commits nothing.
                    self._lost = self._seen_beside(consumer.group_metadata().member_id)
                    if self._lost is not None:
                        return
            if self._progress is not None:
                self._commit(consumer, self._progress)
        finally:
            consumer.close(autocommit=False, timeout_ms=2_000)

    def _commit(self, consumer: Any, progress: Offsets) -> None:
        consumer.commit(
            {
                TopicPartition(topic, number): OffsetAndMetadata(offset, f"{self._id} {self._topic_ids.get(topic, '')}", -1)
                for topic, offsets in progress.items()
                for number, offset in offsets.items()
            }
        )

    def _is_of(self, topic: str, commit: OffsetAndMetadata) -> bool:
        """Returns False if the topic was made anew after this commit. A commit of an older version says nothing."""
        then, now = (commit.metadata or "").partition(" ")[2], self._topic_ids.get(topic, "")
        return not then or not now or then == now

    def _members(self) -> list[dict[str, Any]]:
        admin = KafkaAdminClient(**self._options)
        try:
            members: list[dict[str, Any]] = admin.describe_groups([self._name])[self._name]["members"]
        except GroupIdNotFoundError:
            return []
        finally:
            admin.close()
        return members

    def _others(self) -> list[str]:
        """Returns the members with another checkpoint, for people."""
        return [
            f"{member['group_instance_id']} at {member['client_host'].lstrip('/')}"
            for member in self._members()
            if member["group_instance_id"] != self._id
        ]

    def _seen_beside(self, member_id: str) -> str | None:
        """Returns why this engine is no longer the only one, for people; None if it is.

        Another member under our id has fenced us.

        Args:
            member_id: Our member id, empty while we join.
        """
        if others := self._others():
            return _beside(others, self._settings.topics.prefix)
        fenced = any(member["member_id"] != member_id for member in self._members())
        return self._fenced() if member_id and fenced else None

    def _fenced(self) -> str:
        return (
            f"another engine has started with the same checkpoint (id {self._id}) and has taken over; this one stops, so that "
            f"nothing is sent twice. Run one engine for the topics {self._settings.topics.prefix}.*"
        )


class _ReadNothing(ConsumerRebalanceListener):  # type: ignore[misc]
    """Pauses every partition: the group serves its membership, not reading."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.assigned = False

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._consumer.pause(*assigned)
        self.assigned = True

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None: ...


def has_members(settings: Settings) -> bool:
    """Returns True while Kafka has an engine in the group; it keeps a killed one for 15 s. Raises KafkaError."""
    return bool(EngineGroup(settings, checkpoint_id="")._members())


def await_no_engine(settings: Settings) -> None:
    """Returns when no engine is in the group; Kafka keeps a killed one for 15 s. Raises EngineRuns, KafkaUnreachable."""
    try:
        EngineGroup(settings, checkpoint_id="").await_others_gone(_FORGOTTEN_S)
    except EngineRuns as error:
        raise EngineRuns(f"an engine works on the topics {settings.topics.prefix}.*: stop it first") from error
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error


def checkpoint_id(files: CheckpointFiles) -> str:
    """Returns the id of a checkpoint; the first call makes it.

    A file that holds no UUID is replaced: a power failure may have left half of it.
    """
    known = files.decoded(_FILE, lambda data: str(uuid.UUID(data.decode())), otherwise="the checkpoint gets a new id")
    if known is None:
        known = str(uuid.uuid4())
        files.write(_FILE, known.encode())
    return known


def starting_offsets(topic: str, partitions: int, committed: Offsets) -> str:
    """Returns Spark's `startingOffsets`, which count for a new checkpoint only.

    Args:
        committed: The result of `EngineGroup.committed`.
    """
    known = committed.get(topic)
    if known is None:
        return "earliest"
    return json.dumps({topic: {str(number): known.get(number, _EARLIEST) for number in range(partitions)}})


def _beside(others: list[str], prefix: str) -> str:
    return (
        f"another engine works on the topics {prefix}.* with another checkpoint (id {', '.join(others)}): two would send "
        "everything twice. Stop that one, or give this one another topics.prefix"
    )
