"""One engine for the topics: it is the only member of a consumer group, `PREFIX.engine`, and commits there how far it is.

Two engines would send everything twice, each from a checkpoint of its own. Kafka decides which one runs:
1. An engine joins the group under the id of its checkpoint (static membership), and stays for as long as it runs.
2. It does not start while a member with another id is there. One that was killed is there until `SESSION_TIMEOUT_MS` has passed.
3. The same id again, that is a copy of the checkpoint or the next start after a kill: Kafka fences the older member.
4. An engine that is fenced, or finds another member beside itself after a time without Kafka, stops with `EngineFenced`.
A frozen engine that wakes up after somebody else has taken over writes the micro-batch that it had begun, and no more.

What it commits is the end of each micro-batch, for tools that watch the lag of consumer groups, and for a new checkpoint: that
begins where the old one was, and sends nothing again (`starting_offsets`).
"""

import json
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Final, Self

import structlog
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import FencedInstanceIdError, GroupIdNotFoundError, KafkaError

from sinks.kafka.subscribing import subscribe
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.engine.errors import EngineFenced, EngineRuns
from streaming.engine.ownership.checkpoint import Offsets
from streaming.spark_internals.checkpoint_files import CheckpointFiles

SESSION_TIMEOUT_MS: Final = 15_000
_EARLIEST: Final = -2
"""Spark's word for the beginning of a partition."""
_LOOK_S: Final = 0.2
_LOOK_AROUND_S: Final = 5.0
_FORGOTTEN_S: Final = SESSION_TIMEOUT_MS / 1_000 + _LOOK_AROUND_S
"""After this Kafka has forgotten an engine that was killed."""
_JOIN_TIMEOUT_S: Final = 60.0
_FILE: Final = "inflight.id"

_log: Final = structlog.get_logger(__name__)


def group_name(settings: Settings) -> str:
    """Of the consumer group."""
    return f"{settings.topics.prefix}.engine"


class EngineGroup:
    """Membership in the group, in a `with`. Raises EngineRuns on entry, and KafkaUnreachable.

    checkpoint_id: of `checkpoint_id`. A thread of its own keeps the membership and commits.
    """

    def __init__(self, settings: Settings, checkpoint_id: str) -> None:
        self._settings = settings
        self._name = group_name(settings)
        self._id = checkpoint_id
        self._topics = (settings.topics.messages, settings.topics.events)
        self._options = settings.kafka.client_options()
        self._stopping = threading.Event()
        self._joined = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-engine-group", daemon=True)
        self._progress: Offsets | None = None
        self._lost: str | None = None

    def __enter__(self) -> Self:
        try:
            self.await_others_gone(_FORGOTTEN_S)
            self._thread.start()
            if not self._joined.wait(_JOIN_TIMEOUT_S):
                raise EngineRuns(f"Kafka has not let this engine into the group {self._name} within {_JOIN_TIMEOUT_S:.0f} s")
            self.await_others_gone(0)
        except BaseException as error:
            self._stopping.set()
            if isinstance(error, KafkaError):
                raise KafkaUnreachable.of(self._settings.kafka.bootstrap_servers, error) from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join(SESSION_TIMEOUT_MS / 1_000)

    def await_others_gone(self, patience_s: float) -> None:
        """Raises EngineRuns when there are some after this time, and KafkaError when Kafka has not answered for a while."""
        deadline, answer_by = time.monotonic() + patience_s, time.monotonic() + _JOIN_TIMEOUT_S
        while True:
            try:
                others = self._others()
            except KafkaError as error:  # a new Kafka makes its topic of groups when it is asked for the first one
                if not error.retriable or time.monotonic() >= answer_by:
                    raise
            else:
                if not others:
                    return
                if time.monotonic() >= deadline:
                    raise EngineRuns(_beside(others, self._settings.topics.prefix))
            time.sleep(_LOOK_S)

    def committed(self) -> Offsets:
        """How far the engines before this one were, or the oldest record that is left. Empty when there was none.

        Raises KafkaUnreachable.
        """
        consumer = KafkaConsumer(
            **self._options | {"group_id": self._name, "enable_auto_commit": False, "metrics_enabled": False}
        )
        try:
            by_topic: dict[str, dict[int, int]] = {}
            for topic in self._topics:
                partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
                oldest = consumer.beginning_offsets(partitions)
                for partition in partitions:
                    if (offset := consumer.committed(partition)) is not None:
                        by_topic.setdefault(topic, {})[partition.partition] = max(offset, oldest[partition])
        except KafkaError as error:
            raise KafkaUnreachable.of(self._settings.kafka.bootstrap_servers, error) from error
        finally:
            consumer.close(autocommit=False)
        return by_topic

    def observe(self, end: Offsets) -> None:
        """To be called after each micro-batch. Raises EngineFenced when somebody else has taken over."""
        self._progress = end
        self.check()

    def check(self) -> None:
        """Raises EngineFenced when somebody else has taken over."""
        if self._lost is not None:
            raise EngineFenced(self._lost)

    # --- on the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set() and self._lost is None:
            try:
                self._stay()
            except FencedInstanceIdError:
                self._lost = self._fenced()
            except Exception as error:  # noqa: BLE001 - whatever it was, joining again is the cure
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
            next_look = time.monotonic() + _LOOK_AROUND_S
            while not self._stopping.wait(_LOOK_S):
                consumer.poll(timeout_ms=100)
                if not listener.assigned:
                    continue
                self._joined.set()
                if (progress := self._progress) is not committed and progress is not None:
                    self._commit(consumer, progress)
                    committed = progress
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + _LOOK_AROUND_S
                    # kafka-python tells of fencing only when something is committed, which a query that hangs does not.
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
                TopicPartition(topic, number): OffsetAndMetadata(offset, self._id, -1)
                for topic, offsets in progress.items()
                for number, offset in offsets.items()
            }
        )

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
        """The members that have another checkpoint, for people."""
        return [
            f"{member['group_instance_id']} at {member['client_host'].lstrip('/')}"
            for member in self._members()
            if member["group_instance_id"] != self._id
        ]

    def _seen_beside(self, member_id: str) -> str | None:
        """Who else is in the group. member_id: ours, empty while we join; another one under our id has fenced us."""
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
    """The group is for its membership: no partition is fetched."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.assigned = False

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._consumer.pause(*assigned)
        self.assigned = True

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None: ...


def await_no_engine(settings: Settings) -> None:
    """Returns when no engine is in the group; one that was killed is there for a while. Raises EngineRuns, KafkaUnreachable."""
    try:
        EngineGroup(settings, checkpoint_id="").await_others_gone(_FORGOTTEN_S)
    except EngineRuns as error:
        raise EngineRuns(f"an engine works on the topics {settings.topics.prefix}.*: stop it first") from error
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error


def checkpoint_id(files: CheckpointFiles) -> str:
    """The name of a checkpoint, which it gets when it is first asked for, and keeps. files: of the checkpoint.

    One that is no UUID gets a new name: a machine that lost power may have left half of it.
    """
    if _FILE in files.names():
        try:
            return str(uuid.UUID(files.read(_FILE).decode()))
        except ValueError:
            _log.warning("checkpoint_id_unreadable", file=files.path(_FILE), action="the checkpoint gets a new one")
    made = str(uuid.uuid4())
    files.write(_FILE, made.encode())
    return made


def starting_offsets(topic: str, partitions: int, committed: Offsets) -> str:
    """Spark's `startingOffsets`, which count for a new checkpoint only. committed: of `EngineGroup.committed`."""
    known = committed.get(topic)
    if known is None:
        return "earliest"
    return json.dumps({topic: {str(number): known.get(number, _EARLIEST) for number in range(partitions)}})


def _beside(others: list[str], prefix: str) -> str:
    return (
        f"another engine works on the topics {prefix}.* with another checkpoint (id {', '.join(others)}): two would send "
        "everything twice. Stop that one, or give this one another topics.prefix"
    )
