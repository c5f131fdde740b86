"""Records the settings of each micro-batch in the checkpoint before it is planned (docs/decisions/0013).

Settings decide what a session emits. A micro-batch is executed again when the engine was killed in it. It has to emit the same
then, because gateways have read the first output, and drop repetitions. So it gets the settings that it had, whatever the
configuration is by now.

1. `CHECKPOINT/inflight.settings/N` has the settings of the micro-batches from N on, up to the next such file.
2. It is written before micro-batch N is planned. So N follows the last planned one, which keeps its own settings if it is not
   committed.
3. A checkpoint of 0.1.0 has no such files. Its uncommitted micro-batch is executed with the present settings, and the log says
   so.
4. An unknown field is ignored, and a missing one has its default: another version wrote the file, and its commands have another
   `code` (state/commands.py).
5. Files that no micro-batch needs any more are deleted.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog

from state.dead_letters.exchanges import Exchanges
from state.dead_letters.policy import permitted
from state.settings import Topics
from streaming.config.settings import Settings
from streaming.engine.errors import UnreadableSettings
from streaming.engine.operator.by_batch import BatchSettings
from streaming.engine.operator.pipeline import PipelineSettings, SessionProfile
from streaming.reload.changes import changed_keys
from streaming.spark_internals.checkpoint import CheckpointFiles

FOLDER: Final = "inflight.settings"
_VERSION: Final = 1
_LINEAGE: Final = "history"
"""The name that the files have for `checkpoint_lineage`."""
_NONE_RECREATED: Final[Mapping[str, int]] = MappingProxyType({})
_log: Final = structlog.get_logger(__name__)


def pipeline_settings(
    settings: Settings,
    *,
    commands_partitions: int,
    checkpoint_lineage: str = "",
    dead_letter_topic_bytes: int | None = None,
    generations: Mapping[str, int] = _NONE_RECREATED,
) -> PipelineSettings:
    """Returns the part of the configuration that the Python workers need.

    Args:
        commands_partitions: The number of partitions in Kafka.
        dead_letter_topic_bytes: See RecordLimits; None = unknown.
        generations: The generations of topics that were recreated.
    """
    limits = settings.record_limits
    if dead_letter_topic_bytes is not None:
        limits = replace(limits, dead_letter_topic_bytes=dead_letter_topic_bytes)
    engine = settings.engine
    return PipelineSettings(
        commands_partitions=commands_partitions,
        topics=Topics(**{field.name: getattr(settings.topics, field.name) for field in fields(Topics)}),
        session=settings.session_settings,
        profiles=tuple(SessionProfile(pattern=pattern, session=session) for pattern, session in settings.session_profiles),
        policies=permitted(settings.policies, settings.permissions),
        exchanges=Exchanges(declared=settings.exchanges),
        limits=limits,
        routing=settings.routing.enabled,
        receipts=engine.receipts,
        ledger=engine.ledger,
        stop_at_newer_events=engine.stop_at_newer_events,
        checkpoint_lineage=checkpoint_lineage,
        lean_worker=engine.lean_worker,
        messages_generation=generations.get(settings.topics.messages, 0),
        events_generation=generations.get(settings.topics.events, 0),
    )


class _SettingsRecord(msgspec.Struct):
    """The content of a file."""

    version: int
    settings: dict[str, Any]


class SettingsLog:
    """The files of one checkpoint."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def put_in_force(self, current: PipelineSettings, *, is_planned_anew: bool = False) -> BatchSettings:
        """Records `current` for the next micro-batch. Call it before each start of the query, and pass on the result.

        Args:
            is_planned_anew: The newest planned micro-batch is not the one that was executed before, so it gets `current`, too.

        Raises:
            UnreadableSettings: A micro-batch has to be executed again, and its settings cannot be read.
        """
        last = self._files.last_batch()
        following = 0 if last is None else last.batch_id + (not is_planned_anew)
        needed = following if last is None or last.is_committed else last.batch_id
        numbers = sorted(int(name) for name in self._files.names() if name.isdigit())
        number = _newest(numbers, needed)
        before = None
        if needed < following and number is not None:
            before = self._read(number, needed)
        elif needed < following:
            _log.warning("settings_unknown", batch=needed, action="it is executed again with the present settings")
        changed = self._record(_newest(numbers, following), following, current)
        for old in set(numbers) - {number, following}:
            self._files.delete(str(old))
        if changed:
            _log.info("settings_in_force", from_batch=following, changed=changed)
        if before is not None:
            # Changes nothing that is emitted. A recreated topic may have fewer partitions than before.
            partitions = min(before.commands_partitions, current.commands_partitions)
            # A broker that refused dead letters would refuse them again. Cut ones are known by id and newest death all the same.
            most_bytes = min(before.limits.dead_letter_topic_bytes, current.limits.dead_letter_topic_bytes)
            before = replace(
                before,
                lean_worker=current.lean_worker,
                commands_partitions=partitions,
                limits=replace(before.limits, dead_letter_topic_bytes=most_bytes),
            )
        return BatchSettings(current=current, from_batch=following, before=None if before == current else before)

    def _record(self, number: int | None, following: int, current: PipelineSettings) -> list[str]:
        """Writes `current` if it differs from the settings in file `number`. Returns the keys that differ."""
        changed = ["all"]
        if number is not None:
            with suppress(UnreadableSettings):  # no micro-batch with those settings is executed again
                changed = changed_keys(_to_plain(self._read(number, following)), _to_plain(current))
        if changed:
            record = _SettingsRecord(_VERSION, _to_plain(current))
            self._files.write(str(following), msgspec.json.encode(record, order="deterministic"))
        return changed

    def _read(self, number: int, batch_id: int) -> PipelineSettings:
        data = self._files.read(str(number)) or b""
        try:
            record = msgspec.json.decode(data, type=_SettingsRecord)
            if record.version != _VERSION:
                raise ValueError(f"version {record.version}, expected {_VERSION}")
            plain = record.settings
            return msgspec.convert(plain | {"checkpoint_lineage": plain.pop(_LINEAGE, "")}, PipelineSettings)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            path = self._files.path(str(number))
            raise UnreadableSettings(
                f"micro-batch {batch_id} has to be executed again, and its settings in {path} cannot be read: {error}. Start the "
                f"version of Inflight that wrote them, or a newer one. If there is none, remove {self._files.path()}: the "
                "micro-batch is then executed with the present settings, and as gateways may take what it says for a repetition, "
                "restart them, too"
            ) from error


def _to_plain(settings: PipelineSettings) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(settings, order="deterministic")
    plain[_LINEAGE] = plain.pop("checkpoint_lineage")
    return plain


def _newest(numbers: list[int], batch_id: int) -> int | None:
    """Returns the number of the file whose settings hold for a micro-batch."""
    return max((number for number in numbers if number <= batch_id), default=None)
