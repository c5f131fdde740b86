"""Renders templates. Jinja escapes all values, after sinks/escaping.py: devices and backends choose ids and topics."""

import re
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from inflight.status.measurements import format_age
from sinks.escaping import escaped
from streaming.history.plots import legend, svg
from streaming.history.times import shown_utc, time_of_day

LIVE_MS: Final = 2_000
"""Refresh interval of a page with live values."""
_MAX_CELL: Final = 160
MAX_WORD: Final = 24
"""Characters of an id that stay on one line of the narrowest screen."""
_PIECES: Final = re.compile(rf"[^\W_]{{1,{MAX_WORD}}}[\W_]{{0,8}}|[\W_]{{1,8}}")
"""A word with the punctuation after it."""


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
            finalize=_printable,
        )
        self._environment.filters |= {
            "age": format_age,
            "cut": cut,
            "count": count,
            "at_ms": shown_utc,
            "utc": time_of_day,
            "exact": exact,
            "id": whole_words,
            "svg": lambda plot: Markup(svg(plot)),  # noqa: S704  # nosec B704 - escaped there
            "legend": lambda plot: Markup(legend(plot)),  # noqa: S704  # nosec B704
        }
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
    text = "" if value is None else escaped(str(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def whole_words(text: str) -> Markup:
    """Returns an id or a topic that a browser breaks only after a whole word, or after `MAX_WORD` characters of one; a short id
    stays on one line."""
    if len(text) <= MAX_WORD:
        return Markup('<span class="word">{}</span>').format(text)
    return Markup("<wbr>").join(_PIECES.findall(text))


def count(value: float | None) -> str:
    """Returns a number such as `12,345`, and a dash for None."""
    return "–" if value is None else f"{value:,.0f}"


def exact(value: object) -> Markup:
    """Returns a value for a field that a browser sends back: only HTML is escaped in it."""
    return escape(value)


def _printable(value: object) -> object:
    """Escapes the text of every expression of a template, except lines and what is HTML already."""
    return value if isinstance(value, Markup) else escaped(str(value), keep="\n")
