"""Recognises a checkpoint that is an older copy, put back after an engine had gone on.

It reads again what came since, and nothing is lost. But it restarts the sequence numbers of commands on connections that are
still open, with other commands. So its commands carry another lineage in their `code` (state/commands.py). A gateway that gets a
number again from another lineage ends the connection, and the device returns to the session as it is now.
"""

import secrets
from typing import Final

import structlog

from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets, committed_offsets

_FILE: Final = "inflight.history"
_LINEAGE_BYTES: Final = 4
_log: Final = structlog.get_logger(__name__)


def checkpoint_lineage(files: CheckpointFiles, committed: Offsets) -> str:
    """Returns the lineage of a checkpoint; empty for one that never was an older copy. Call it once at each start.

    Args:
        committed: The result of `EngineGroup.committed`.
    """
    own = committed_offsets(files)
    if ahead := _beyond(committed, own):
        renew_lineage(files)
        _log.warning(
            "checkpoint_is_older",
            read_again=ahead,
            action="nothing has to be done: what was delivered since the copy was made may be delivered again",
        )
    return (files.read(_FILE) or b"").decode(errors="replace")


def renew_lineage(files: CheckpointFiles) -> None:
    files.write(_FILE, new_lineage().encode())


def new_lineage() -> str:
    return secrets.token_hex(_LINEAGE_BYTES)


def _beyond(offsets: Offsets, own: Offsets) -> list[str]:
    """Returns, for people, where `offsets` are further than the checkpoint."""
    return [
        f"{topic}-{number} from {own[topic][number]} to {offset}"
        for topic, by_number in offsets.items()
        for number, offset in by_number.items()
        if offset > own.get(topic, {}).get(number, offset)
    ]
