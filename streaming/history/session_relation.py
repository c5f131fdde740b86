"""Makes a relation of the live sessions, whose rows come as JSON (streaming/engine/session_rows.py)."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from sinks.delta.spec import ColumnSpec
from streaming.history.relations import schema_of

SESSIONS: Final = "sessions"
SESSION_COLUMNS: Final = tuple(
    ColumnSpec(name=name, sql_type=sql_type, comment=comment)
    for name, sql_type, comment in (
        ("client_id", "STRING", "whose session"),
        ("connected", "BOOLEAN", "whether a gateway or bridge holds a connection"),
        ("inflight", "INT", "messages that were sent and are not acknowledged"),
        ("queued", "INT", "messages that wait in the queue"),
        ("queued_bytes", "BIGINT", "size of the messages in the queue"),
        ("oldest_unacked", "TIMESTAMP", "when the oldest message of the window was first sent, UTC; null = none"),
        ("next_deadline", "TIMESTAMP", "when the session must be called next, UTC; null = never"),
        ("state_bytes", "INT", "size of the session in the checkpoint"),
        ("partition_id", "INT", "the state partition"),
        ("quarantined", "BOOLEAN", "whether its session cannot be used"),
    )
)
_TIMES: Final = tuple(column.name for column in SESSION_COLUMNS if column.sql_type == "TIMESTAMP")


def sessions_table(documents: Iterable[dict[str, Any]]) -> pa.Table:
    """Returns the sessions as an Arrow table, by their columns."""
    rows = [document | {name: _moment(document[name]) for name in _TIMES} for document in documents]
    return pa.Table.from_pylist(rows, schema=schema_of(SESSION_COLUMNS))


def sessions_dataset(directory: Path) -> Any:
    """Returns the sessions that Spark has written, as an Arrow dataset."""
    from pyarrow import dataset

    return dataset.dataset(str(directory), format="parquet", schema=schema_of(SESSION_COLUMNS), exclude_invalid_files=True)


def _moment(iso: str | None) -> datetime | None:
    """Returns the time; None for a deadline in a year that has more than four digits, which is never."""
    try:
        return None if iso is None else datetime.fromisoformat(iso)
    except ValueError:
        return None
