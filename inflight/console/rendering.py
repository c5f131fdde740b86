"""Templates → answers. Jinja escapes everything that a template is given: ids and topics are chosen by devices and backends."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from inflight.status.formatting import format_age

LIVE_MS: Final = 2_000
"""A page that shows what changes by itself is fetched again after this long."""
_MAX_CELL: Final = 160


class Pages:
    """common: what each template is given beside its own values."""

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
        """again_ms: the browser fetches the page again after this long; 0 = never."""
        shown = {**self._common, "path": request.url.path, "refresh_ms": refresh_ms, **values}
        return HTMLResponse(self._environment.get_template(template).render(shown), status_code)


def cut(value: object, most: int = _MAX_CELL) -> str:
    """One cell of a table: one line, of so many characters at most; nothing for None."""
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count(value: float | None) -> str:
    """`12,345`; a dash for what is not known."""
    return "–" if value is None else f"{value:,.0f}"


def utc(time: datetime | str | None) -> str:
    """`2026-11-21 10:00:00.123`, without a word on its zone, which is UTC. A text is ISO 8601."""
    if time is None:
        return ""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def at_ms(milliseconds: int | None) -> str:
    """The same of milliseconds since 1970."""
    return "" if milliseconds is None else utc(datetime.fromtimestamp(milliseconds / 1_000, UTC))
