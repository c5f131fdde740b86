"""Defines the headers that say when a message is delivered, and what replaces or cancels it (docs/guides/scheduling.md).

| header | meaning |
|---|---|
| `deliver-at` | not before this time: RFC 3339, ms since 1970, or `+30s` after the record's timestamp; at most 365 days ahead |
| `collapse-key` | 1…256 bytes: the message replaces those with the same key that wait for the client |
| `cancel-message-id` | instead of `mqtt-topic`: the record is no message, and takes the named one of the client back |

Messages keep the first two among their `headers`, and `deliver-at` there as milliseconds since 1970.
"""

import re
from typing import Final

from state.model import Message
from state.setting import DAY, HOUR, MINUTE, SECOND

DELIVER_AT: Final = "deliver-at"
COLLAPSE_KEY: Final = "collapse-key"
CANCEL: Final = "cancel-message-id"

MAX_DELAY_MS: Final = 365 * DAY
MAX_COLLAPSE_KEY_BYTES: Final = 256

_UNITS: Final = {b"ms": 1, b"s": SECOND, b"m": MINUTE, b"h": HOUR, b"d": DAY}
_RELATIVE: Final = re.compile(rb"\+(\d{1,12})(ms|s|m|h|d)")
_EPOCH: Final = re.compile(rb"\d{12,14}")
"""From 1973 on. Shorter numbers are seconds by mistake."""
_RFC_3339: Final = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))")
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ALLOWED: Final = "2030-01-31T08:00:00Z, milliseconds since 1970, or +30s (ms, s, m, h, d) are allowed"


def due_at_ms(raw: bytes, accepted_ms: int) -> int:
    """Returns the time in a `deliver-at` header.

    Args:
        accepted_ms: Time of the record, from which a relative value counts.

    Raises:
        ValueError: The value is not allowed. The text says what is.
    """
    if relative := _RELATIVE.fullmatch(raw):
        due_ms = accepted_ms + int(relative[1]) * _UNITS[relative[2]]
    elif _EPOCH.fullmatch(raw):
        due_ms = int(raw)
    else:
        found = _time_ms(raw)
        if found is None:
            raise ValueError(f"header {DELIVER_AT} is {raw[:40].decode(errors='replace')!r}: {_ALLOWED}")
        due_ms = found
    if due_ms > accepted_ms + MAX_DELAY_MS:
        raise ValueError(f"header {DELIVER_AT} is {rfc_3339(due_ms)}: at most {MAX_DELAY_MS // DAY} days ahead are allowed")
    return due_ms


def deliver_at_ms(message: Message) -> int | None:
    """Returns the time before which the message is not delivered; None = it has no such time."""
    value = _value(message, DELIVER_AT)
    return None if value is None else int(value)


def collapse_key(message: Message) -> bytes | None:
    """Returns the collapse key of the message; None = it has none."""
    return _value(message, COLLAPSE_KEY)


def rfc_3339(time_ms: int) -> str:
    """Returns a time as text, in UTC. The year is 1970 or later."""
    days, of_day_ms = divmod(time_ms, DAY)
    era, day = divmod(days + 719_468, 146_097)  # eras of 400 years that begin on a 1st of March
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year, month = era * 400 + year + (month >= 10), month + 3 if month < 10 else month - 9
    seconds, ms = divmod(of_day_ms, SECOND)
    clock = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{year:04}-{month:02}-{day + 1:02}T{clock}" + (f".{ms:03}Z" if ms else "Z")


def _value(message: Message, name: str) -> bytes | None:
    """Returns the last value of this name, as Kafka clients do."""
    return next((value for known, value in reversed(message.headers) if known == name), None)


def _time_ms(raw: bytes) -> int | None:
    """Returns the time of an RFC 3339 text; None if it is none, or if there is no such day or hour."""
    found = _RFC_3339.fullmatch(raw)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[group]) for group in range(1, 7))
    offset_hours, offset_minutes = int(found[9] or 0), int(found[10] or 0)
    if not (1 <= month <= 12 and 1 <= day <= _days_of(year, month)):
        return None
    if hour > 23 or minute > 59 or second > 59 or offset_hours > 23 or offset_minutes > 59:
        return None
    ms = int((found[7] or b"0").ljust(3, b"0")[:3])
    offset_ms = (offset_hours * HOUR + offset_minutes * MINUTE) * (-1 if found[8] == b"-" else 1)
    return _days_since_1970(year, month, day) * DAY + hour * HOUR + minute * MINUTE + second * SECOND + ms - offset_ms


def _days_of(year: int, month: int) -> int:
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 28 if month == 2 and not is_leap else _MONTH_DAYS[month - 1]


def _days_since_1970(year: int, month: int, day: int) -> int:
    since_march, year = (month - 3, year) if month > 2 else (month + 9, year - 1)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * since_march + 2) // 5 + day - 719_469
