"""Writes times of Kafka's records as text. A record may name any time: kafka-python gives 64 bits of milliseconds."""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_YEARS: Final = 400
_CYCLE_MS: Final = 146_097 * 86_400_000
"""The Gregorian calendar repeats after this time."""


def iso_utc(milliseconds: int) -> str:
    """Returns `2026-11-21T10:00:00.123Z`, and `+292278994-08-17T07:12:55.807Z` for a year that has not four digits.

    Args:
        milliseconds: Since 1970, negative before.
    """
    cycles, rest = divmod(milliseconds, _CYCLE_MS)
    moment = _EPOCH + timedelta(milliseconds=rest)
    year = moment.year + cycles * _CYCLE_YEARS
    named = f"{year:04}" if 0 <= year <= 9_999 else f"{year:+05}"
    return f"{named}{moment:-%m-%dT%H:%M:%S}.{moment.microsecond // 1_000:03}Z"


def time_of_day(iso: str | None) -> str:
    """Converts `2026-11-21T10:00:00.123Z` to `2026-11-21 10:00:00.123`; empty for None."""
    return "" if iso is None else iso.replace("T", " ").removesuffix("Z")


def shown_utc(milliseconds: int | None) -> str:
    """Returns the same for milliseconds since 1970."""
    return "" if milliseconds is None else time_of_day(iso_utc(milliseconds))
