"""Durations and sizes as people write them: `30s`, `1h30m`, `1MiB`, `never`."""

import contextlib
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from state.model import NEVER_EXPIRES_S

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
KIB: Final = 1 << 10
MIB: Final = 1 << 20
NEVER_MS: Final = NEVER_EXPIRES_S * 1_000
"""The largest duration, MQTT's own "never"; written `never`."""

_MS_PER_UNIT: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES_PER_UNIT: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_DURATION_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)\s*")
_SIZE: Final = TypeAdapter(ByteSize)


def parse_duration_ms(value: object) -> int:
    """Milliseconds of `30s`, `500ms`, `2h`, `1h30m`, `never`; a bare number is milliseconds, as in EMQX. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text == "never":
            return NEVER_MS
        if _WHOLE_NUMBER.fullmatch(text):
            return int(text)
        parts = _DURATION_PART.findall(text)
        if parts and _DURATION_PART.sub("", text) == "":
            return round(sum(float(number) * _MS_PER_UNIT[unit] for number, unit in parts))
    raise ValueError("not a duration: write for example 30s, 500ms, 2h, 1h30m, never, or a whole number of milliseconds")


def parse_schedule_ms(value: object) -> int | tuple[int, ...]:
    """The same for one duration, or for each in a list. Raises ValueError."""
    if not isinstance(value, list | tuple):
        return parse_duration_ms(value)
    waits = []
    for item in value:
        try:
            waits.append(parse_duration_ms(item))
        except ValueError as error:
            raise ValueError(f"{item!r} is {error}") from None
    return tuple(waits)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a field may hold that takes one duration or a list of them, one for each time; ge, le: each of them, in ms."""

    ge: int
    le: int
    max_len: int = 100

    def check(self, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        """The value, if each duration is within the limits and none is shorter than the one before. Raises ValueError."""
        waits = value if isinstance(value, tuple) else (value,)
        if not 0 < len(waits) <= self.max_len:
            raise ValueError(f"a schedule has 1…{self.max_len} durations, not {len(waits)}")
        for wait_ms in waits:
            if not self.ge <= wait_ms <= self.le:
                raise ValueError(f"{format_duration(wait_ms)} is out of range")
        for before_ms, wait_ms in pairwise(waits):
            if wait_ms < before_ms:
                before, wait = format_duration(before_ms), format_duration(wait_ms)
                raise ValueError(f"{wait} comes after {before} and is shorter: a schedule does not shrink")
        return value


def parse_size_bytes(value: object) -> int:
    """Bytes of `1MiB`, `64KiB`, `10MB`; a bare number is bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) and value.isascii() else ""
    if text.isdigit() or text[-1:].isalpha():  # a fraction has no meaning without a unit
        with contextlib.suppress(ValidationError):
            return _SIZE.validate_python(text)
    raise ValueError("not a size: write for example 256KiB, 1MiB, or a whole number of bytes")


def format_duration(milliseconds: int) -> str:
    """The shortest exact spelling: 30s, 1500ms, 2h, never."""
    return "never" if milliseconds >= NEVER_MS else _shortest(milliseconds, _MS_PER_UNIT)


def format_schedule(schedule: int | tuple[int, ...]) -> str | list[str]:
    """The same for one duration, or for each of a schedule."""
    return format_duration(schedule) if isinstance(schedule, int) else [format_duration(wait_ms) for wait_ms in schedule]


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling in binary units: 256KiB, 1MiB, 1000B."""
    return _shortest(size_bytes, _BYTES_PER_UNIT)


def _shortest(number: int, units: dict[str, int]) -> str:
    """In the largest unit that divides it. units: from the smallest, which is 1."""
    fitting = [name for name, size in units.items() if size == 1 or (number and number % size == 0)]
    return f"{number // units[fitting[-1]]}{fitting[-1]}"
