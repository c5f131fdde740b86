"""Renders templates. Jinja escapes all values: devices and backends choose ids and topics."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from inflight.status.formatting import format_age

LIVE_MS: Final = 2_000
"""Refresh interval of a page with live values."""
_MAX_CELL: Final = 160


class Pages:
    """Renders pages.

    Args:
        common: Values for every template.
    """

    def __init__(self, **common: object) -> None:
        self._environment = Environment(
            loader=PackageLoader("inflight.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"age": format_age, "cut": cut, "count": count, "at_ms": at_ms, "utc": utc}
        self._common = common

    def page(
        self, request: Request, template: str, values: Mapping[str, Any], *, refresh_ms: int = 0, status_code: int = 200
    ) -> HTMLResponse:
        """Returns a rendered page.

        Args:
            refresh_ms: The browser fetches the page again after this time; 0 = never.
        """
        shown = {**self._common, "path": request.url.path, "refresh_ms": refresh_ms, **values}
        return HTMLResponse(self._environment.get_template(template).render(shown), status_code)


def cut(value: object, most: int = _MAX_CELL) -> str:
    """Returns one line for a table cell, cut to `most` characters; empty for None."""
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(value: float | None) -> str:
    """Returns a number such as `12,345`, and a dash for None."""
    return "–" if value is None else f"{value:,.0f}"


def utc(time: datetime | str | None) -> str:
    """Returns `2026-11-21 10:00:00.123`, in UTC without saying so. A text must be ISO 8601."""
    if time is None:
        return ""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def at_ms(milliseconds: int | None) -> str:
    """Returns the same for milliseconds since 1970."""
    return "" if milliseconds is None else utc(datetime.fromtimestamp(milliseconds / 1_000, UTC))
