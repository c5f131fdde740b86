"""Makes JSON of the values of answers: times in ISO 8601, binary as base64."""

import base64
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from streaming.history.database import SqlAnswer

_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def documents(answer: SqlAnswer) -> Iterator[dict[str, Any]]:
    """Yields each row as a document. A name that comes twice has its number added, from the second on."""
    names: list[str] = []
    for name in answer.columns:
        earlier = answer.columns[: len(names)].count(name)
        names.append(f"{name}_{earlier + 1}" if earlier else name)
    for row in answer.rows:
        yield {name: plain(value) for name, value in zip(names, row, strict=True)}


def plain(value: Any) -> Any:
    """Returns the value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return _iso(value)
        case date() | time():
            return value.isoformat()
        case timedelta() | UUID():
            return str(value)
        case dict():
            return {str(plain(name)): plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return str(value)


def _iso(moment: datetime) -> str:
    """Returns `2026-11-21T10:00:00.123Z`; without Z for a time without a zone."""
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds" if moment.microsecond % 1_000 == 0 else "microseconds")
    return text if moment.tzinfo is None else f"{text}Z"
