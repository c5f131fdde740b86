"""Which versions of Inflight can go on with a checkpoint: the format of what we keep in it (docs/decisions/0024).

The format is one number for the sessions, the quarantines, the state rows and our own small files. It is raised when an older
version would misread one of them, or would do harm by forgetting a field that it does not know. All later versions read it.

1. A checkpoint of a higher format is refused before anything of it is used. Without that an older version would quarantine each
   client that is heard of.
2. The format is recorded before the first micro-batch. From then on, and not before, older versions refuse.
3. A checkpoint without a record has format 1.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec
import structlog

from streaming.engine.errors import NewerCheckpoint
from streaming.spark_internals.checkpoint_files import CheckpointFiles

CHECKPOINT_FORMAT: Final = 1
_FIRST: Final = 1
_FILE: Final = "inflight.format"
_log: Final = structlog.get_logger(__name__)


class _Record(msgspec.Struct):
    """Never changes, but for new fields with a default. inflight: the version that raised the format, for people."""

    format: int
    inflight: str = "?"


def check_format(files: CheckpointFiles) -> None:
    """Raises NewerCheckpoint. files: of the checkpoint."""
    recorded = _recorded(files)
    if recorded.format > CHECKPOINT_FORMAT:
        raise NewerCheckpoint(
            f"the checkpoint {files.path()} was written by Inflight {recorded.inflight} and has format {recorded.format}; this "
            f"is Inflight {_own_version()}, which reads up to format {CHECKPOINT_FORMAT}. Nothing was changed: start Inflight "
            f"{recorded.inflight} or newer, or put back the copy of the checkpoint from before (docs/operations.md, The way back)"
        )


def record_format(files: CheckpointFiles) -> None:
    """From now on only versions that read the present format go on with the checkpoint. After `check_format`."""
    if _FILE not in files.names() or _recorded(files).format < CHECKPOINT_FORMAT:
        files.write(_FILE, msgspec.json.encode(_Record(CHECKPOINT_FORMAT, _own_version())))


def _recorded(files: CheckpointFiles) -> _Record:
    if _FILE not in files.names():
        return _Record(_FIRST)
    try:
        return msgspec.json.decode(files.read(_FILE), type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a machine that lost power may have left half of it
        _log.warning("checkpoint_format_unreadable", file=files.path(_FILE), error=str(error), action="taken for an old one")
        return _Record(0)


def _own_version() -> str:
    try:
        return version("inflight")
    except PackageNotFoundError:  # the sources were put on the path by hand
        return "of unknown version"
