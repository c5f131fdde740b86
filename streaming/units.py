"""Durations and sizes as people write them: `30s`, `1h30m`, `1MiB`, `never`."""

import re
from typing import Final

from state.model import NEVER_EXPIRES_S

NEVER_MS: Final = NEVER_EXPIRES_S * 1_000
"""The largest duration, MQTT's own "never"; written `never`."""

_MS_PER_UNIT: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES_PER_UNIT: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_DURATION_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)\s*")
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]+)")


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


def parse_size_bytes(value: object) -> int:
    """Bytes of `1MiB`, `64KiB`, `10MB`; a bare number is bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if _WHOLE_NUMBER.fullmatch(text):
            return int(text)
        match = _SIZE.fullmatch(text)
        if match and match[2] in _BYTES_PER_UNIT:
            return round(float(match[1]) * _BYTES_PER_UNIT[match[2]])
    raise ValueError("not a size: write for example 256KiB, 1MiB, or a whole number of bytes")


def format_duration(milliseconds: int) -> str:
    """The shortest exact spelling: 30s, 1500ms, 2h, never."""
    if milliseconds >= NEVER_MS:
        return "never"
    unit = next((unit for unit, size in reversed(_MS_PER_UNIT.items()) if milliseconds and milliseconds % size == 0), "ms")
    return f"{milliseconds // _MS_PER_UNIT[unit]}{unit}"


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling in binary units: 256KiB, 1MiB, 1000B."""
    binary = ("GiB", "MiB", "KiB")
    unit = next((unit for unit in binary if size_bytes and size_bytes % _BYTES_PER_UNIT[unit] == 0), "B")
    return f"{size_bytes // _BYTES_PER_UNIT[unit]}{unit}"
