"""Writes to the terminal, or into a pipe: lines, tables, JSON. All text is escaped on the way (sinks/escaping.py).

Other modules do not print (tests/unit/test_structure.py). On a terminal tables fold long cells and cut them. Into a pipe each row
is one line, and nothing is cut.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinks.escaping import escaped, escaped_json

_CELL: Final = 120
"""The longest cell on a terminal, and the widest column that is aligned in a pipe, in characters."""
_GAP: Final = "  "
_PIPE_WIDTH: Final = 1_000_000


def is_terminal() -> bool:
    """Returns False if a program or a file gets standard output."""
    return sys.stdout.isatty()


def say(text: str, *, err: bool = False) -> None:
    """Writes a line, or several, to standard output or standard error."""
    _write(sys.stderr if err else sys.stdout, escaped(f"{text}\n", keep="\n"))


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Returns a console that reads neither markup nor emoji codes in what it prints: `plant:key:7` is a client id.

    Into a pipe it folds nothing.
    """
    made = Console(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def plain(value: object, style: str = "") -> Text:
    """Returns text from outside for a cell or a line of rich."""
    return Text(escaped(str(value), keep="\n"), style)


def write_json(documents: Iterable[Mapping[str, Any]]) -> None:
    """Writes each document on a line of its own."""
    for document in documents:
        _write(sys.stdout, escaped_json(json.dumps(document, ensure_ascii=False)) + "\n")


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, keeps_names: bool = False) -> None:
    """Writes a table, with numbers aligned to the right.

    Args:
        keeps_names: Columns have names that are typed again, as in SQL. Otherwise `_` is a space.
    """
    names = [name if keeps_names else name.replace("_", " ") for name in columns]
    cells = [[shown(value) for value in row] for row in rows]
    numeric = [
        any(column) and all(cell.replace(".", "", 1).lstrip("-").isdigit() for cell in column if cell)
        for column in (zip(*cells, strict=True) if cells else [()] * len(names))
    ]
    if not is_terminal():
        _write(sys.stdout, "".join(f"{line}\n" for line in _lines([names, *cells], numeric)))
        return
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name, is_number in zip(names, numeric, strict=True):
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell if len(cell) <= _CELL else f"{cell[: _CELL - 1]}…") for cell in row))
    console().print(table)


def counted(number: float, one: str, several: str = "") -> str:
    """Returns a number with its noun: `1 client`, `2,000 clients`.

    Args:
        several: The plural; default: `one` with an s.
    """
    return f"{number:,.0f} {one if number == 1 else several or f'{one}s'}"


def shown(value: object) -> str:
    """Returns the text of a cell, whole and on one line. Null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value)
    return escaped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _lines(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> Iterable[str]:
    """Yields aligned lines. A cell that is wider than its column moves the rest of its line."""
    widths = [min(_CELL, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numeric, strict=True)
        )
        yield _GAP.join(cells).rstrip()


def _write(out: TextIO, text: str) -> None:
    """Writes text that is already escaped."""
    out.write(text)
    out.flush()
