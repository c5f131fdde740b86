"""Writes answers for people (tables on standard output) and for programs (one JSON document a line)."""

import base64
import codecs
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_PIPE_WIDTH: Final = 10_000
"""Wide enough that nothing is cut when another program reads the output."""
_CELL: Final = 120
_TIME: Final = 23  # the part of 2026-11-21T10:00:00.123Z that is shown


def write_json(documents: Iterable[Mapping[str, Any]]) -> None:
    """Writes each document on a line of its own."""
    for document in documents:
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Writes a table, with numbers aligned to the right."""
    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    cells = [[shown(value) for value in row] for row in rows]
    values = list(zip(*cells, strict=True)) if cells else [()] * len(columns)
    for name, column in zip(columns, values, strict=True):
        numeric = bool(column) and all(cell.replace(".", "", 1).lstrip("-").isdigit() for cell in column if cell)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def shown(value: object) -> str:
    """Returns the text of a cell. Null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def time_of_day(iso: str | None) -> str:
    """Converts `2026-11-21T10:00:00.123Z` to `2026-11-21 10:00:00.123`."""
    return "" if iso is None else iso.replace("T", " ")[:_TIME].rstrip("Z")


def beginning_of(payload: bytes, most_bytes: int) -> str:
    """Returns the first bytes as text, or in hexadecimal where they are no text."""
    raw, more = payload[:most_bytes], "…" if len(payload) > most_bytes else ""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)  # a character that is cut at the end is left out
    except UnicodeDecodeError:
        text = "\0"
    return f"{text if text.isprintable() else f'0x{raw.hex()}'}{more}"


def payload_of(document: Mapping[str, Any]) -> str:
    """Returns the payload as text, or its bytes in hexadecimal."""
    text = document.get("payload_text")
    if isinstance(text, str) and text.isprintable():
        return text
    raw = base64.b64decode(document.get("payload") or "")
    return f"0x{raw[:24].hex()}{'…' if len(raw) > 24 else ''} ({len(raw)} bytes)"
