"""Whether a checkpoint still fits the topics: it may be a copy that was put back, or have lain for longer than the retention.

1. What the checkpoint has not read has to be in Kafka. Else a start is refused (`RecordsGone`): those records are lost to its
   sessions, and going on would hide that.
2. If an engine was further than the checkpoint, this is an older copy. It reads again what came since, and nothing is lost. But
   it begins the sequence numbers of commands anew at connections that are still open, with other commands. So its commands carry
   another history, in their `code` (state/commands.py): a gateway that gets a number again from another history ends the
   connection, and the device comes back to the session as it is now.
"""

import secrets
from typing import Final

import structlog

from streaming.config.settings import Settings
from streaming.engine.errors import RecordsGone
from streaming.engine.ownership.checkpoint import Offsets, next_offsets
from streaming.engine.ownership.log_ends import oldest_offsets
from streaming.spark_internals.checkpoint_files import CheckpointFiles

_FILE: Final = "inflight.history"
_HISTORY_BYTES: Final = 4
_log: Final = structlog.get_logger(__name__)


def history_of(files: CheckpointFiles, settings: Settings, committed: Offsets) -> str:
    """The history of the checkpoint, empty for one that never was an older copy. To be asked for once at each start.

    files: of the checkpoint. committed: of `EngineGroup.committed`. Raises RecordsGone, KafkaUnreachable.
    """
    own = next_offsets(files)
    if own and (gone := _beyond(oldest_offsets(settings, own), own)):
        raise RecordsGone(
            f"Kafka no longer has what the checkpoint {files.path()} has not read: {', '.join(gone)}. The records are gone: the "
            "retention of the topic has passed, or it was made anew. Put back a newer copy of the checkpoint if there is one; "
            "else start with a new engine.checkpoint_location, and accept to lose the sessions and what waits in them "
            "(docs/operations.md, A copy of the checkpoint)"
        )
    if ahead := _beyond(committed, own):
        files.write(_FILE, secrets.token_hex(_HISTORY_BYTES).encode())
        _log.warning(
            "checkpoint_is_older",
            read_again=ahead,
            action="nothing has to be done: what was delivered since the copy was made may be delivered again",
        )
    return files.read(_FILE).decode(errors="replace") if _FILE in files.names() else ""


def _beyond(offsets: Offsets, own: Offsets) -> list[str]:
    """Where they are further than the checkpoint, for people."""
    return [
        f"{topic}-{number} from {own[topic][number]} to {offset}"
        for topic, by_number in offsets.items()
        for number, offset in by_number.items()
        if offset > own.get(topic, {}).get(number, offset)
    ]
