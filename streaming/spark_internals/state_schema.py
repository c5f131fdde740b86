"""Changes the recorded schema of the sessions' state for an operator without Spark's time-outs.

Tried with PySpark 4.2.0, whose file has version v2: the version, the schema of the key and that of the value, each as JSON in
pieces (`java.io.DataOutput`). With time-outs a stored value has two fields: the state row and the time of the time-out. Without
them it has the first one alone. A row finds its fields by their distance from its beginning, and the state row is the first field
of both. So stored rows stay as they are: read with the new schema they have the same state row, and some unused bytes.

A file of another version is left alone; Spark then refuses the query and says why.
"""

import json
import struct
from typing import Any, Final

import structlog

from streaming.spark_internals.checkpoint import CheckpointFiles

_FOLDER: Final = "state/0/0/_metadata"
_FILE: Final = "schema"
_VERSION: Final = "v2"
_TIME_OUT: Final = "timeoutTimestamp"
_PIECE: Final = 65_535
"""The longest string of `java.io.DataOutput`, in bytes."""
_log: Final = structlog.get_logger(__name__)


def drop_time_outs(files: CheckpointFiles) -> None:
    """Takes the time-out out of the schema of a checkpoint's state, if it is there. Call it while no query runs."""
    files = files.within(_FOLDER)
    data = files.read(_FILE)
    if data is None:
        return
    try:
        version, key, value = _decoded(data)
        if version != _VERSION:
            raise ValueError(f"version {version}, not {_VERSION}")
        fields: list[dict[str, Any]] = json.loads(value)["fields"]
        kept = [field for field in fields if field["name"] != _TIME_OUT]
    except (ValueError, KeyError, TypeError, struct.error) as error:
        _log.warning("state_schema_unknown", file=files.path(_FILE), error=repr(error), action="Spark decides about it")
        return
    if len(kept) < len(fields):
        files.write(_FILE, _encoded(version, key, json.dumps({"type": "struct", "fields": kept}, separators=(",", ":"))))
        _log.info("state_without_time_outs", file=files.path(_FILE))


def _decoded(data: bytes) -> tuple[str, str, str]:
    """Returns the version, and the schemas of key and value. Raises ValueError, struct.error."""
    version, rest = _string(data)
    texts = []
    for _ in range(2):
        (pieces,), rest = struct.unpack_from(">i", rest), rest[4:]
        text = ""
        for _ in range(pieces):
            piece, rest = _string(rest)
            text += piece
        texts.append(text)
    if rest:
        raise ValueError(f"{len(rest)} bytes follow the schema")
    return version, *texts  # type: ignore[return-value]


def _string(data: bytes) -> tuple[str, bytes]:
    (length,) = struct.unpack_from(">H", data)
    if len(data) < 2 + length:
        raise ValueError("the file ends within a string")
    return data[2 : 2 + length].decode(), data[2 + length :]


def _encoded(version: str, *texts: str) -> bytes:
    found = _utf(version.encode())
    for text in texts:
        data = text.encode()
        pieces = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]
        found += struct.pack(">i", len(pieces)) + b"".join(map(_utf, pieces))
    return found


def _utf(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data
