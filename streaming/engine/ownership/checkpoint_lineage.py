"""Checks that a checkpoint still fits the topics: it may be a restored copy, or older than the retention of the topics.

1. Kafka must have what the checkpoint has not read. Otherwise the start is refused (`RecordsGone`): those records are lost to the
   sessions, and continuing would hide that.
2. If an engine was further than the checkpoint, the checkpoint is an older copy. It reads again what came since, and nothing is
   lost. But it restarts the sequence numbers of commands on connections that are still open, with other commands. So its commands
   carry another lineage in their `code` (state/commands.py). A gateway that gets a number again from another lineage ends the
   connection, and the device returns to the session as it is now.
"""

import secrets
from typing import Final

import structlog

from streaming.config.settings import Settings
from streaming.engine.errors import RecordsGone
from streaming.engine.kafka_access import oldest_offsets
from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets, committed_offsets

_FILE: Final = "inflight.history"
_LINEAGE_BYTES: Final = 4
_log: Final = structlog.get_logger(__name__)


def checkpoint_lineage(files: CheckpointFiles, settings: Settings, committed: Offsets) -> str:
    """Returns the lineage of a checkpoint; empty for one that never was an older copy. Call it once at each start.

    committed: the result of `EngineGroup.committed`. Raises RecordsGone, KafkaUnreachable.
    """
    own = committed_offsets(files)
    if own and (gone := _beyond(oldest_offsets(settings, own), own)):
        raise RecordsGone(
            f"Kafka no longer has what the checkpoint {files.path()} has not read: {', '.join(gone)}. The records are gone: the "
            "retention of the topic has passed, or it was made anew. Put back a newer copy of the checkpoint if there is one; "
            "else start with a new engine.checkpoint_location, and accept to lose the sessions and what waits in them "
            "(docs/operations.md, A copy of the checkpoint)"
        )
    if ahead := _beyond(committed, own):
        files.write(_FILE, secrets.token_hex(_LINEAGE_BYTES).encode())
        _log.warning(
            "checkpoint_is_older",
            read_again=ahead,
            action="nothing has to be done: what was delivered since the copy was made may be delivered again",
        )
    return (files.read(_FILE) or b"").decode(errors="replace")


def _beyond(offsets: Offsets, own: Offsets) -> list[str]:
    """Returns, for people, where `offsets` are further than the checkpoint."""
    return [
        f"{topic}-{number} from {own[topic][number]} to {offset}"
        for topic, by_number in offsets.items()
        for number, offset in by_number.items()
        if offset > own.get(topic, {}).get(number, offset)
    ]
