"""Lets an engine wait with Spark started and warm until the engine that works is gone (docs/decisions/0044-standby.md).

What shows that it is gone, and does not call a slow engine dead:
1. A checkpoint on a local path, also a volume that several machines share, has a lock. The JVM that writes the checkpoint holds
   it. The kernel frees it when that JVM has died, however it died. A frozen or slow JVM keeps it.
2. Another checkpoint has no lock. There the group of the engines decides: Kafka removes a member after its session time-out.
Of several engines that wait, one gets the lock. It joins the group under the id of the checkpoint, at once, because Kafka then
puts the dead member out (streaming/engine/ownership/engine_group.py, rule 3).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from streaming.config.settings import Settings
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.lifecycle.warm_up import warm_up
from streaming.engine.ownership.engine_group import has_members
from streaming.spark_internals.checkpoint import CheckpointLock
from streaming.spark_internals.locations import is_local_path
from streaming.topics import TopicReport

_LOCK_POLL_S: Final = 0.1
_GROUP_POLL_S: Final = 1.0
_log: Final = structlog.get_logger(__name__)


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """The calls of an engine that may have to wait.

    Attributes:
        on_wait: Called when it waits.
        on_takeover: Called when the checkpoint is its own.
    """

    on_wait: Callable[[], None] = _nothing
    on_takeover: Callable[[], None] = _nothing


class Vacancy(Protocol):
    """Tells whether an engine works on a checkpoint.

    Attributes:
        poll_s: How often to ask, in seconds.
    """

    poll_s: float

    def is_vacant(self) -> bool:
        """Returns True if none does. A lock is ours then, as long as this object is kept."""


class LockVacancy:
    """Asks for the lock of a checkpoint on a local path."""

    poll_s = _LOCK_POLL_S

    def __init__(self, lock: CheckpointLock) -> None:
        self._lock = lock

    def is_vacant(self) -> bool:
        return self._lock.is_taken()


class GroupVacancy:
    """Asks for the group of the engines. While Kafka does not answer, an engine may work."""

    poll_s = _GROUP_POLL_S

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def is_vacant(self) -> bool:
        try:
            return not has_members(self._settings)
        except KafkaError as error:
            _log.debug("engine_group_unknown", error=repr(error))
            return False


def own_as_standby(
    spark: SparkSession, settings: Settings, report: TopicReport, standby: Standby, stop: threading.Event
) -> object:
    """Returns when no other engine works on the checkpoint, or at `stop`. Keep the result until the engine ends."""
    location = settings.sessions_checkpoint
    vacancy = LockVacancy(CheckpointLock(spark, location)) if is_local_path(location) else GroupVacancy(settings)

    def prepare() -> None:
        partitions, topics = report.partitions, settings.topics
        read = {topic: range(partitions[topic]) for topic in (topics.messages, topics.events)}
        warm_up(spark, settings, pipeline_settings(settings, commands_partitions=partitions[topics.commands]), read)

    await_vacancy(vacancy, standby, stop, prepare=prepare)
    return vacancy


def await_vacancy(vacancy: Vacancy, standby: Standby, stop: threading.Event, *, prepare: Callable[[], None]) -> None:
    """Returns when no other engine works, or at `stop`.

    Args:
        prepare: Called before it waits; not if nobody has to be waited for.
    """
    if not vacancy.is_vacant():
        prepare()
        standby.on_wait()
        _log.info("standby_waits", action="nothing has to be done: it takes over when the engine that works is gone")
        while not vacancy.is_vacant():
            if stop.wait(vacancy.poll_s):
                return
        _log.warning("standby_takes_over", reason="the engine that worked is gone")
    standby.on_takeover()
