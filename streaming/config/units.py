"""Reads and writes durations and sizes as people do: `30s`, `1h30m`, `1MiB`, `never`."""

import contextlib
import re
from itertools import pairwise
from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from state.setting import NEVER_MS, SECOND

_MAX_WAITS: Final = 100
_MS_PER_UNIT: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES_PER_UNIT: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_DURATION_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)\s*")
_SIZE: Final = TypeAdapter(ByteSize)


def parse_duration_ms(value: object) -> int:
    """Returns the milliseconds of `30s`, `500ms`, `2h`, `1h30m`, `never`; a bare number is milliseconds, as in EMQX.

    Raises ValueError.
    """
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


def parse_seconds(value: object) -> int:
    """Returns the seconds of a duration that is a whole number of them. Raises ValueError."""
    seconds, rest_ms = divmod(parse_duration_ms(value), SECOND)
    if rest_ms:
        raise ValueError("not a whole number of seconds")
    return seconds


def parse_schedule_ms(value: object) -> int | tuple[int, ...]:
    """Returns the milliseconds of one duration, or of each in a list. Raises ValueError."""
    if not isinstance(value, list | tuple):
        return parse_duration_ms(value)
    waits = []
    for item in value:
        try:
            waits.append(parse_duration_ms(item))
        except ValueError as error:
            raise ValueError(f"{item!r} is {error}") from None
    return tuple(waits)


def check_schedule(schedule: int | tuple[int, ...], within: tuple[float, float]) -> int | tuple[int, ...]:
    """Returns the schedule, if each duration is within the limits, ms, and none is shorter than the one before.

    Raises ValueError.
    """
    waits = schedule if isinstance(schedule, tuple) else (schedule,)
    if not 0 < len(waits) <= _MAX_WAITS:
        raise ValueError(f"a schedule has 1…{_MAX_WAITS} durations, not {len(waits)}")
    for wait_ms in waits:
        if not within[0] <= wait_ms <= within[1]:
            raise ValueError(f"{format_duration(wait_ms)} is out of range")
    for before_ms, wait_ms in pairwise(waits):
        if wait_ms < before_ms:
            before, wait = format_duration(before_ms), format_duration(wait_ms)
            raise ValueError(f"{wait} comes after {before} and is shorter: a schedule does not shrink")
    return schedule


def parse_size_bytes(value: object) -> int:
    """Returns the bytes of `1MiB`, `64KiB`, `10MB`; a bare number is bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) and value.isascii() else ""
    if text.isdigit() or text[-1:].isalpha():  # a fraction has no meaning without a unit
        with contextlib.suppress(ValidationError):
            return _SIZE.validate_python(text)
    raise ValueError("not a size: write for example 256KiB, 1MiB, or a whole number of bytes")


def format_duration(milliseconds: int) -> str:
    """Returns the shortest exact spelling: 30s, 1500ms, 2h, never."""
    return "never" if milliseconds >= NEVER_MS else _shortest(milliseconds, _MS_PER_UNIT)


def format_seconds(seconds: int) -> str:
    """Returns the shortest exact spelling: 30s, 2h, never."""
    return format_duration(seconds * SECOND)


def format_schedule(schedule: int | tuple[int, ...]) -> str | list[str]:
    """Writes one duration, or each of a schedule."""
    return format_duration(schedule) if isinstance(schedule, int) else [format_duration(wait_ms) for wait_ms in schedule]


def format_size(size_bytes: int) -> str:
    """Returns the shortest exact spelling in binary units: 256KiB, 1MiB, 1000B."""
    return _shortest(size_bytes, _BYTES_PER_UNIT)


def _shortest(number: int, units: dict[str, int]) -> str:
    """Writes the number in the largest unit that divides it. units: from the smallest, which is 1."""
    fitting = [name for name, size in units.items() if size == 1 or (number and number % size == 0)]
    return f"{number // units[fitting[-1]]}{fitting[-1]}"
