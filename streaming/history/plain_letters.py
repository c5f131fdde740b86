"""Lists dead letters and plans their replay without Spark, for questions that need no SQL.

Each function returns None where only Spark can answer: the tables of the archive, or more than one process should read or hold.
The documents are those of streaming/history/dead_letters.py and streaming/history/replay.py.
"""

import base64
from collections.abc import Callable
from heapq import nlargest
from typing import Any, Final

from streaming.archive.tables import LEDGER
from streaming.history.errors import NothingFound
from streaming.history.replay import ReplayOptions, with_skip
from streaming.history.sources.source import Row, Source
from streaming.history.times import iso_utc

Document = dict[str, Any]

_MAX_HELD_BYTES: Final = 64 << 20
"""Payloads that a replay holds in memory until they are sent in order."""


def listed(
    source: Source, *, limit: int, matches: Callable[[Row], bool] | None = None, payload_bytes: int | None = None
) -> list[Document] | None:
    """Returns the newest dead letters first, at most `limit`.

    Args:
        matches: Tells which ones; None = all.
        payload_bytes: Cuts each payload; None = all of it.
    """
    rows = source.plain_letters()
    if rows is None:
        return None
    newest = nlargest(limit, filter(matches, rows), key=lambda row: (row["died_ms"], row["kafka_offset"]))
    return [_document(row, payload_bytes) for row in newest]


def one(source: Source, dead_letter_id: str) -> Document | None:
    """Returns the dead letter whose id begins so, its headers as text where they are text. Raises NothingFound."""
    rows = source.plain_letters()
    if rows is None:
        return None
    found = [row for row in rows if row["dead_letter_id"].startswith(dead_letter_id)]
    return with_text_headers(_document(only(found, dead_letter_id)))


def candidates(source: Source, options: ReplayOptions, matches: Callable[[Row], bool] | None = None) -> list[Document] | None:
    """Returns the dead letters that match, oldest first, with `skip`: None = to be sent. `options.where` is Spark's."""
    rows, replayed = source.plain_letters(), source.plain_replays()
    if rows is None or replayed is None:
        return None
    held, size_bytes = [], 0
    newest: dict[tuple[str, str], tuple[int, int, str]] = {}
    for row in rows:
        size_bytes += len(row["payload"])
        if size_bytes > _MAX_HELD_BYTES:
            return None
        held.append(row)
        place = row["died_ms"], row["kafka_offset"], row["dead_letter_id"]
        of = row["client_id"], row["message_id"]
        newest[of] = max(place, newest.get(of, place))
    ledger_since_ms = source.complete_since_ms(LEDGER.name)
    held.sort(key=lambda row: (row["died_ms"], row["kafka_partition"], row["kafka_offset"]))
    return [
        with_skip(
            _document(row),
            options,
            ledger_since_ms,
            is_newest=newest[row["client_id"], row["message_id"]][2] == row["dead_letter_id"],
            was_replayed=row["dead_letter_id"] in replayed,
        )
        for row in filter(matches, held)
    ]


def only(found: list[Row], dead_letter_id: str) -> Row:
    """Returns the one that was found. Raises NothingFound for none or several."""
    if not found:
        raise NothingFound(f"there is no dead letter {dead_letter_id!r}: `inflight dead-letters` lists them with their ids")
    if len(found) > 1:
        raise NothingFound(f"several dead letters begin with {dead_letter_id!r}: give more of the id")
    return found[0]


def with_text_headers(letter: Document) -> Document:
    """Returns the document with headers as text where they are text."""
    return letter | {"headers": [{"key": header["key"], "value": _as_text(header["value"])} for header in letter["headers"]]}


def _document(row: Row, payload_bytes: int | None = None) -> Document:
    """Returns the row as Spark writes it as JSON: times as text, bytes as base64, a payload in UTF-8 as text too."""
    found: Document = {}
    for name, value in row.items():
        match name:
            case "time":
                found[name] = iso_utc(value)
            case "payload":
                payload: bytes = value[:payload_bytes]
                found |= {name: base64.b64encode(payload).decode(), "payload_text": _text_or_none(payload)}
            case "headers":
                found[name] = [{"key": key, "value": _base64(data)} for key, data in value or ()]
            case _:
                found[name] = value
    return found | {"date": iso_utc(row["died_ms"]).partition("T")[0]}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _text_or_none(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _as_text(encoded: str | None) -> str:
    """Converts bytes in base64 to text, or to `base64:…` where they are no UTF-8."""
    try:
        return base64.b64decode(encoded or "").decode()
    except UnicodeDecodeError:
        return f"base64:{encoded}"
