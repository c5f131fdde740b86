"""Checks that a checkpoint can be continued, before its query starts; on a local path before Spark starts.

In this order: another engine does not use it, its format is known, its files are whole, its number of state partitions is the
configured one, and its offsets are those of the topics.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from streaming.checkpoint_topics import CheckpointUse, check_checkpoint_topics
from streaming.config.errors import KafkaUnreachable, UnsafeTopics
from streaming.config.settings import Settings
from streaming.engine.errors import CheckpointInUse, NewerEvent, QueryFailed
from streaming.engine.ownership.checkpoint_format import check_format
from streaming.engine.ownership.repartition import check_state_partitions, in_use
from streaming.spark_internals.checkpoint import CheckpointFiles, hold_local_checkpoint
from streaming.spark_internals.checkpoint_damage import check_damage
from streaming.spark_internals.locations import is_local_path
from streaming.topics import TopicReport, check_topics

_LOCK_TIMEOUT_S: Final = 60.0
_log: Final = structlog.get_logger(__name__)


def check_before_spark(settings: Settings, report: TopicReport, *, accept_loss: bool = False) -> None:
    """Checks a checkpoint on a local path, which needs no JVM, and no other one.

    Args:
        report: The result of `require_safe_topics`.
        accept_loss: See `check_checkpoint`.

    Raises:
        CheckpointInUse: Another engine writes the checkpoint.
        NewerCheckpoint, DamagedCheckpoint, CheckpointMismatch, TopicsReplaced, RecordsGone, KafkaUnreachable: See
            `check_checkpoint`.
    """
    location = settings.sessions_checkpoint
    if not is_local_path(location):
        return
    try:
        with hold_local_checkpoint(location, timeout_s=_LOCK_TIMEOUT_S, on_wait=_say_that_another_engine_works):
            check_checkpoint(CheckpointFiles(None, location), settings, report, accept_loss=accept_loss)
    except TimeoutError as error:
        raise CheckpointInUse(in_use(location, _LOCK_TIMEOUT_S)) from error


def _say_that_another_engine_works() -> None:
    _log.warning(
        "another_engine_works",
        ends_in_s=int(_LOCK_TIMEOUT_S),
        action="it has the checkpoint, and this engine ends if it keeps it; `inflight engine --standby` waits to take over",
    )


def check_checkpoint(
    files: CheckpointFiles, settings: Settings, report: TopicReport, *, thorough: bool = False, accept_loss: bool = False
) -> None:
    """Compares a checkpoint with the configuration and the topics.

    Args:
        thorough: See `damaged_files`.
        accept_loss: Records that Kafka has deleted are no reason to refuse it (streaming/engine/lifecycle/accepted_loss.py).

    Raises:
        NewerCheckpoint: A newer version of Inflight wrote the checkpoint in a format that this one cannot read.
        DamagedCheckpoint: Files of the checkpoint are missing or damaged.
        CheckpointMismatch: The configuration does not fit the checkpoint.
        TopicsReplaced, RecordsGone, KafkaUnreachable: See `check_checkpoint_topics`.
    """
    check_format(files)
    check_damage(files, thorough=thorough)
    check_state_partitions(files, settings.engine.state_partitions)
    check_checkpoint_topics(files, settings, report, _sessions_use(files, is_loss_accepted=accept_loss))


def check_unused_checkpoint(location: str) -> None:
    """Checks the files of a checkpoint before a question reads it. Raises DamagedCheckpoint.

    One that an engine uses is not checked, because its files change meanwhile; nor one that is not on a local path, or that this
    user may not write.
    """
    if not is_local_path(location):
        return
    with suppress(TimeoutError, PermissionError), hold_local_checkpoint(location, timeout_s=0):
        check_damage(CheckpointFiles(None, location))


@contextmanager
def explaining_failures(files: CheckpointFiles, settings: Settings) -> Iterator[None]:
    """Raises what is wrong with the checkpoint or the topics instead of the QueryFailed of a query that died of it."""
    try:
        yield
    except NewerEvent:
        raise
    except QueryFailed as failure:
        with suppress(KafkaUnreachable):
            report = check_topics(settings)
            if report.problems:
                raise UnsafeTopics(report.problems) from failure
            check_checkpoint(files, settings, report, thorough=True)
        raise


def _sessions_use(files: CheckpointFiles, *, is_loss_accepted: bool) -> CheckpointUse:
    return CheckpointUse(
        lost="the sessions",
        accept="Start with `inflight engine --accept-loss` to go on with all sessions and without these records; it reports what "
        "is missing (docs/operate/accept_loss.md).",
        is_loss_accepted=is_loss_accepted,
        cure=f"Put back what fits it; or, if you accept to lose the sessions and what waits in them, move {files.path()} away: "
        "the next start makes a new one, beginning with the oldest records (docs/operate/troubleshoot.md, A topic was made anew)",
    )
