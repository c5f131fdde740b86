"""Holds the answer to a what-if question, and keeps the newest one in the data directory, where the console finds it."""

from pathlib import Path
from typing import Final

import msgspec

from streaming.what_if.comparison import Comparison

FILE: Final = "what-if.json"


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the job. Times are ms since 1970.

    Attributes:
        since_ms, until_ms, width_ms: The period, and the length of one of its parts.
        batches: Micro-batches in the period.
        records: Records of Kafka that were read.
        is_recorded: The engine had recorded all micro-batches. Otherwise activations were cut by the times of the ledger.
        took_s: Duration of the job.
    """

    comparison: Comparison
    since_ms: int
    until_ms: int
    width_ms: int
    batches: int
    records: int
    is_recorded: bool
    took_s: float


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest answer.

    Attributes:
        policy: The text of the other settings; empty = the present ones.
    """

    asked_ms: int
    policy: str
    answer: WhatIfAnswer


def keep(data_dir: Path, kept: KeptAnswer) -> None:
    """Replaces the answer that is kept, in one step. Raises OSError."""
    temporary = data_dir / f"{FILE}.new"
    temporary.write_bytes(msgspec.json.encode(kept))
    temporary.replace(data_dir / FILE)


def read_kept(data_dir: Path) -> KeptAnswer | None:
    """Returns the answer that is kept; None if there is none, or one that cannot be read."""
    try:
        return msgspec.json.decode((data_dir / FILE).read_bytes(), type=KeptAnswer)
    except (OSError, msgspec.DecodeError):
        return None
