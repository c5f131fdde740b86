"""Makes the page: one file without references to others, so it can be mailed, archived and opened without a network."""

from collections.abc import Iterable
from html import escape as escape_html
from importlib.resources import files
from string import Template
from typing import Final

from sinks.escaping import escaped
from streaming.history.plots import Plot, legend, svg
from streaming.history.report.measures import Report
from streaming.history.report.plots import depth, flow, latency

_TIME: Final = "%Y-%m-%d %H:%M:%S"
_NOTHING: Final = '<p class="empty">Nothing of the kind in this time.</p>'


def render(report: Report) -> str:
    """Returns the HTML of the report."""
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        since=report.since.strftime(_TIME),
        until=report.until.strftime(_TIME),
        width=_duration(report.width_s),
        facts="\n".join(_fact(name, value) for name, value in _facts(report)),
        flow=_figure(flow(report), sum(report.accepted) + sum(report.delivered)),
        latency=_figure(latency(report), report.overall_p50_ms is not None),
        depth=_figure(depth(report), sum(report.in_window) + sum(report.waiting)),
        dead_letters=_dead_letters(report),
        worst=_worst(report),
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    accepted, delivered, resends = sum(report.accepted), sum(report.delivered), sum(report.resends)
    return [
        ("accepted", f"{accepted:,}"),
        ("delivered", f"{delivered:,}"),
        ("sent again", f"{resends:,}"),
        ("dead letters", f"{sum(report.dead_letters.values()):,}"),
        ("latency p50", _seconds(report.overall_p50_ms)),
        ("latency p99", _seconds(report.overall_p99_ms)),
        ("clients", f"{report.clients:,}"),
    ]


def _fact(name: str, value: str) -> str:
    return f'<div class="fact" data-fact="{_shown(name)}"><dd>{_shown(value)}</dd><dt>{_shown(name)}</dt></div>'


def _shown(text: str) -> str:
    return escape_html(escaped(text))


def _figure(plot: Plot, something: object) -> str:
    return f"{svg(plot)}\n{legend(plot)}" if something else _NOTHING


def _dead_letters(report: Report) -> str:
    """Returns a table whose rows have bars: as long as the most frequent reason, or a part of that."""
    most = max(report.dead_letters.values(), default=0)
    rows = (
        f"<tr><td>{_shown(reason)}</td><td>{count:,}</td>"
        f'<td class="bar"><i style="width: {max(1, round(100 * count / most))}%"></i></td></tr>'
        for reason, count in report.dead_letters.items()
    )
    return _table(("reason", "messages", ""), rows) if most else _NOTHING


def _worst(report: Report) -> str:
    rows = (
        f"<tr><td>{_shown(client.client_id)}</td><td>{client.dead_letters:,}</td><td>{client.resends:,}</td>"
        f"<td>{client.delivered:,}</td><td>{_seconds(client.latency_p99_ms)}</td></tr>"
        for client in report.worst
    )
    titles = ("client", "dead letters", "sent again", "delivered", "latency p99")
    return _table(titles, rows) if report.worst else _NOTHING


def _table(titles: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    return "\n".join((f"<table><thead><tr>{head}</tr></thead>", "<tbody>", *rows, "</tbody></table>"))


def _seconds(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "–"
    return f"{milliseconds / 1_000:.2f} s" if milliseconds < 60_000 else _duration(round(milliseconds / 1_000))


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds} s"
