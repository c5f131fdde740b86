"""The settings of each micro-batch, recorded in the checkpoint before it is planned (docs/decisions/0013).

Settings decide what a session says. A micro-batch that is executed again, because the engine was killed in it, has to say the
same again: gateways have read it, and drop what comes a second time. So it gets the settings that it had, whatever the
configuration says by now.

1. `CHECKPOINT/inflight.settings/N` has the settings of the micro-batches from N on, up to the next such file.
2. It is written before micro-batch N is planned. So N is the one after the last that was planned, and that one, if it is not
   committed, keeps its own.
3. A checkpoint of 0.1.0 has no such files: what it has not committed is executed with the present settings, and the log says so.
4. A field that this version does not know is ignored, and one that is missing has its default: the file is another version's,
   whose commands have another `code` (state/commands.py).
5. Files that no micro-batch needs any more are removed.
"""

from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from streaming.engine.errors import UnreadableSettings
from streaming.engine.operator.by_batch import BatchSettings
from streaming.engine.operator.settings import PipelineSettings
from streaming.reload.changed_keys import changed_keys
from streaming.spark_internals.checkpoint_files import CheckpointFiles

FOLDER: Final = "inflight.settings"
_VERSION: Final = 1
_log: Final = structlog.get_logger(__name__)


class _Record(msgspec.Struct):
    version: int
    settings: PipelineSettings


class SettingsLog:
    """The files of one checkpoint."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def put_in_force(self, current: PipelineSettings) -> BatchSettings:
        """Records `current` for the next micro-batch. Call it whenever the query is about to start, and give it what is returned.

        Raises UnreadableSettings when a micro-batch has to be executed again and its settings cannot be read.
        """
        last = self._files.last_batch()
        following = 0 if last is None else last.batch_id + 1
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
        if changed is not None:
            _log.info("settings_in_force", from_batch=following, changed=changed)
        if before is not None:
            before = _as_now(before, current)
        return BatchSettings(current=current, from_batch=following, before=None if before == current else before)

    def _record(self, number: int | None, following: int, current: PipelineSettings) -> list[str] | None:
        """Returns the keys that differ from what was in force, None = nothing does. number: of the file with that."""
        if number is not None:
            try:
                in_force = self._read(number, following)
            except UnreadableSettings:
                changed = ["all"]  # nothing that was written with them is executed again
            else:
                changed = changed_keys(_plain(in_force), _plain(current))
            if not changed:
                return None
        else:
            changed = ["all"]
        self._files.write(str(following), msgspec.json.encode(_Record(_VERSION, current), order="deterministic"))
        return changed

    def _read(self, number: int, batch_id: int) -> PipelineSettings:
        data = self._files.read(str(number))
        try:
            record = msgspec.json.decode(data, type=_Record)
            if record.version != _VERSION:
                raise ValueError(f"version {record.version}, expected {_VERSION}")
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            path = self._files.path(str(number))
            raise UnreadableSettings(
                f"micro-batch {batch_id} has to be executed again, and its settings in {path} cannot be read: {error}. Start the "
                f"version of Inflight that wrote them, or a newer one. If there is none, remove {self._files.path()}: the "
                "micro-batch is then executed with the present settings, and as gateways may take what it says for a repetition, "
                "restart them, too"
            ) from error
        return record.settings


def _plain(settings: PipelineSettings) -> Any:
    return msgspec.to_builtins(settings, order="deterministic")


def _newest(numbers: list[int], batch_id: int) -> int | None:
    """Of the file whose settings hold for a micro-batch."""
    return max((number for number in numbers if number <= batch_id), default=None)


def _as_now(before: PipelineSettings, current: PipelineSettings) -> PipelineSettings:
    """With what changes nothing that is said; and a topic that was made anew with fewer partitions has no more than those."""
    partitions = min(before.commands_partitions, current.commands_partitions)
    return replace(before, lean_worker=current.lean_worker, commands_partitions=partitions)
