"""The partitions of `messages` and `events` that a checkpoint reads, and what happens when the topics get more of them.

A key's partition follows from their number: with more partitions, a client's next record may stand in another one than its last,
and there is no order between partitions. So:
1. The query reads those partitions with which the checkpoint began, and no others. Their number is in the checkpoint
   (`inflight.partitions`); for one of Inflight 0.1.0, in Spark's offset log.
2. An engine that sees another number while it runs stops (`PartitionsChanged`), also for `commands`: a gateway may already have
   connections in a partition of which this engine does not know.
3. The next start first reads the old partitions as far as they go at that moment, and then all (`Growth`).
Gateways and bridges stop by themselves, too (sinks/kafka/topic_partitions.py), and write to the new partitions when they are
started again.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from streaming.config.settings import Settings
from streaming.engine.errors import PartitionsChanged
from streaming.engine.ownership.checkpoint import Offsets, newest_offsets, offsets_in
from streaming.engine.ownership.log_ends import end_offsets
from streaming.spark_internals.checkpoint_files import CheckpointFiles

Counts = Mapping[str, int]
"""Partitions by topic."""
_FILE: Final = "inflight.partitions"
_LOOK_S: Final = 5.0

_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Topics that have got more partitions since the checkpoint began. old: the number with which it began.

    ends: where the old partitions end, as far as something waits in them.
    """

    old: Counts
    ends: Offsets

    def is_read(self, offsets: Offsets) -> bool:
        """Whether a micro-batch that ends at these offsets leaves nothing in the old partitions."""
        return all(
            offsets.get(topic, {}).get(number, 0) >= end for topic, ends in self.ends.items() for number, end in ends.items()
        )


def growth(files: CheckpointFiles, settings: Settings, actual: Counts) -> Growth | None:
    """None when the checkpoint reads all partitions, as a new one does. actual: of `messages` and `events`, as Kafka has them.

    Raises PartitionsChanged when there are fewer than before, KafkaUnreachable.
    """
    old = recorded_partitions(files, tuple(actual))
    if old is None or all(old.get(topic, count) == count for topic, count in actual.items()):
        return None
    if lost := [topic for topic, count in actual.items() if count < old.get(topic, count)]:
        raise PartitionsChanged(
            f"{', '.join(lost)}: fewer partitions than the checkpoint {files.path()} has read. The topic was deleted and made "
            "anew, and its records are gone. Start with a new engine.checkpoint_location if you accept to lose the sessions, too"
        )
    read = _logged_offsets(files)
    ends = {
        topic: {number: end for number, end in by_number.items() if end > read.get(topic, {}).get(number, 0)}
        for topic, by_number in end_offsets(settings, {topic: range(count) for topic, count in old.items()}).items()
    }
    _log.info("partitions_added", before=dict(old), now=dict(actual), waiting_in_old=ends)
    return Growth(old=old, ends=ends)


def recorded_partitions(files: CheckpointFiles, topics: tuple[str, ...]) -> dict[str, int] | None:
    """With which the checkpoint began; None for a new one."""
    if (counts := _recorded(files)) is not None:
        return counts
    logged = {topic: len(offsets) for topic, offsets in _logged_offsets(files).items() if topic in topics}
    return logged or None


def record_partitions(files: CheckpointFiles, counts: Counts) -> None:
    """From now on the checkpoint reads these. Writes only what is not there yet."""
    if counts != _recorded(files):
        files.write(_FILE, json.dumps(dict(counts)).encode())


def _recorded(files: CheckpointFiles) -> dict[str, int] | None:
    """What our own file says. None = there is none that can be read."""
    if _FILE not in files.names():
        return None
    try:
        return {topic: int(count) for topic, count in json.loads(files.read(_FILE)).items()}
    except ValueError:
        _log.warning("partitions_unreadable", file=files.path(_FILE), action="the offset log is asked")
        return None


class PartitionWatch:
    """Looks every few seconds, in a `with`, whether the topics still have the same number of partitions.

    A Kafka that does not answer is asked again, also after an error that nobody expects, which the log then says.
    """

    def __init__(self, settings: Settings, counts: Counts) -> None:
        self._options = settings.kafka.client_options()
        self._counts = counts
        self._stopping = threading.Event()
        self._changed: str | None = None
        self._thread = threading.Thread(target=self._run, name="inflight-partitions", daemon=True)

    def check(self) -> None:
        """Raises PartitionsChanged."""
        if self._changed is not None:
            raise PartitionsChanged(self._changed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S) and self._changed is None:
            try:
                admin = KafkaAdminClient(**self._options)
                try:
                    while self._changed is None and not self._stopping.wait(_LOOK_S):
                        self._changed = changed(self._counts, _partitions(admin, tuple(self._counts)))
                finally:
                    admin.close()
            except KafkaError as error:
                _log.debug("partitions_unknown", error=repr(error))
            except Exception as error:  # noqa: BLE001 - whatever it was, the engine relies on this look
                _log.warning("partitions_unknown", error=repr(error), action="they are asked for again")


def changed(before: Counts, now: Counts) -> str | None:
    """What an engine says that has to stop."""
    for topic, count in before.items():
        if (found := now.get(topic, count)) != count:
            return (
                f"{topic} has {found} partitions now, and had {count} when this engine started. It stops, so that the order of "
                "each client's records is kept; start it again, and it first reads what waits in the old ones "
                "(docs/operations.md, Adding partitions)"
            )
    return None


def _partitions(admin: Any, topics: tuple[str, ...]) -> dict[str, int]:
    """Of the topics that exist."""
    return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(list(topics)) if topic["partitions"]}


def _logged_offsets(files: CheckpointFiles) -> dict[str, dict[int, int]]:
    """Where the newest micro-batch ends, finished or only planned."""
    return offsets_in(newest_offsets(files))
