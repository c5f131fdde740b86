"""What a question may be limited to. Imports nothing heavy: the command line shows these as options."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DEFAULT_MAX_RECORDS: Final = 1_000_000


class Where(StrEnum):
    """AUTO: the archive where there is one, else Kafka."""

    AUTO = "auto"
    DELTA = "delta"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of a source is asked. client_id: only what is kept under this client. since_ms: only what was written later, ms
    since 1970. max_records: of Kafka, the newest; 0 = all.
    """

    client_id: str | None = None
    since_ms: int | None = None
    max_records: int = DEFAULT_MAX_RECORDS


ALL: Final = Bounds(max_records=0)
