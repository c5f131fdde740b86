"""Decides which versions of Inflight can continue a checkpoint, by the format of our data in it (docs/decisions/0024).

The format is one number for the sessions, the quarantines, the state rows and our own small files. It is raised when an older
version would misread one of them, or would do harm by dropping a field that it does not know. All later versions read it.

1. A checkpoint of a higher format is refused before anything of it is used. Otherwise an older version would quarantine each
   client that has a record.
2. The format is recorded before the first micro-batch. Older versions refuse from then on, and not before.
3. A checkpoint without a record has format 1.

| format | what an older version would do harm by forgetting |
|---|---|
| 2 | routing: marks of messages that a session has had, and messages that wait for their CONNECT |
| 3 | messages that wait for their `deliver-at` |
| 4 | generations of recreated topics: positions would come again |
| 5 | deadlines come as records, and state rows have no time-out of Spark: an older version would call nobody |
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from streaming.engine.errors import NewerCheckpoint
from streaming.spark_internals.checkpoint import CheckpointFiles
from streaming.spark_internals.state_schema import drop_time_outs

CHECKPOINT_FORMAT: Final = 5
_FILE: Final = "inflight.format"


class _FormatRecord(msgspec.Struct):
    """Never changes, except for new fields with a default.

    Attributes:
        inflight: The version that raised the format, for people.
    """

    format: int
    inflight: str = "?"


def check_format(files: CheckpointFiles) -> None:
    """Raises NewerCheckpoint for a format that this version cannot read."""
    recorded = _recorded(files)
    if recorded is not None and recorded.format > CHECKPOINT_FORMAT:
        raise NewerCheckpoint(
            f"the checkpoint {files.path()} was written by Inflight {recorded.inflight} and has format {recorded.format}; this "
            f"is Inflight {_own_version()}, which reads up to format {CHECKPOINT_FORMAT}. Nothing was changed: start Inflight "
            f"{recorded.inflight} or newer, or put back the copy from before the update (docs/operate/upgrade.md, The way back)"
        )


def record_format(files: CheckpointFiles) -> None:
    """Records the present format, so that versions which cannot read it refuse, and changes what it changes.

    Call `check_format` before. A kill between the two steps changes nothing: Spark of an older version refuses the new schema.
    """
    recorded = _recorded(files)
    if recorded is None or recorded.format < CHECKPOINT_FORMAT:
        drop_time_outs(files)
        files.write(_FILE, msgspec.json.encode(_FormatRecord(CHECKPOINT_FORMAT, _own_version())))


def _recorded(files: CheckpointFiles) -> _FormatRecord | None:
    return files.decoded(_FILE, msgspec.json.Decoder(_FormatRecord).decode, otherwise="taken for an old one")


def _own_version() -> str:
    try:
        return version("inflight")
    except PackageNotFoundError:  # the sources were put on the path by hand
        return "of unknown version"
