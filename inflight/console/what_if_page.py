"""Shows the newest answer of `inflight what-if`: who gets what under other settings, and when."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from inflight.console.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, plot
from inflight.console.rendering import Pages
from streaming.history.times import shown_utc
from streaming.what_if.answer import WhatIfAnswer, read_kept
from streaming.what_if.comparison import Comparison, Flow, LeftOut

_REFRESH_MS: Final = 5_000
_MOST_ROWS: Final = 200


class WhatIfRow(NamedTuple):
    """The messages of a group with one outcome, or sent again: how many there were, and how many there would be."""

    group: str
    messages: str
    was: int
    would_be: int


class WhatIfPage:
    """The page of what-if.

    Args:
        data_dir: The engine's data directory, where the command keeps its answer.
    """

    def __init__(self, pages: Pages, data_dir: Path) -> None:
        self._pages = pages
        self._data_dir = data_dir

    def show(self, request: Request) -> Response:
        kept = read_kept(self._data_dir)
        values: dict[str, Any] = {"kept": kept}
        if kept is not None:
            found = kept.answer.comparison
            values |= {
                "rows": list(rows(found))[:_MOST_ROWS],
                "total": found.total(),
                "left_out": {LeftOut[reason.upper()].value: clients for reason, clients in found.left_out.items()},
                "plots": plots(kept.answer),
                "frame": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
            }
        return self._pages.page(request, "what_if.html", values, refresh_ms=_REFRESH_MS)


def rows(found: Comparison) -> Iterator[WhatIfRow]:
    """Yields the rows of the table."""
    for name, tally in found.by_group():
        for outcome in {**tally.before, **tally.after}:
            yield WhatIfRow(name, outcome, tally.before.get(outcome, 0), tally.after.get(outcome, 0))
        yield WhatIfRow(name, "sent again", tally.resent_before, tally.resent_after)


def plots(answer: WhatIfAnswer) -> tuple[Plot, ...]:
    """Returns the messages that arrive and those that are lost over the period, as they were and as they would be."""
    flow = answer.comparison.flow
    parts = range(max(flow, default=0) + 1)

    def points(name: str) -> list[tuple[float, float]]:
        found = [getattr(flow.get(part, Flow()), name) * 1_000 / answer.width_ms for part in parts]
        # The middle of a part, so that the plot shows the first one too.
        return [
            ((answer.since_ms + (part + 0.5) * answer.width_ms) / 1_000, value) for part, value in zip(parts, found, strict=True)
        ]

    until_s = (answer.since_ms + len(parts) * answer.width_ms) / 1_000
    window_s = len(parts) * answer.width_ms / 1_000

    def draw(title: str, kind: str) -> Plot:
        series = ("was", points(f"{kind}_before")), ("would be", points(f"{kind}_after"))
        drawn = plot(title, "a second", series, until_s=until_s, window_s=window_s, max_gap_s=window_s)
        return replace(drawn, from_text=f"{shown_utc(answer.since_ms)} UTC", to_text=f"{shown_utc(answer.until_ms)} UTC")

    return draw("Messages that arrive", "arrived"), draw("Messages that are lost", "lost")
