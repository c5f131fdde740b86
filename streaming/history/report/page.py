"""Makes the page: one file without references to others, so it can be mailed, archived and opened without a network."""

from html import escape as escape_html
from importlib.resources import files
from string import Template
from typing import Final

from sinks.escaping import escaped
from streaming.history.report.measures import Report
from streaming.history.report.plots import plot

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
        flow=_plot("flow", report, sum(report.accepted) + sum(report.delivered)),
        latency=_plot("latency", report, report.overall_p50_ms is not None),
        depth=_plot("depth", report, sum(report.in_window) + sum(report.waiting)),
        dead_letters=_plot("dead_letters", report, sum(report.dead_letters.values())),
        worst=_plot("worst", report, len(report.worst)),
        worst_rows="\n".join(
            f"<tr><td>{_shown(client.client_id)}</td><td>{client.dead_letters:,}</td><td>{client.resends:,}</td>"
            f"<td>{client.delivered:,}</td><td>{_seconds(client.latency_p99_ms)}</td></tr>"
            for client in report.worst
        ),
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


def _plot(name: str, report: Report, something: object) -> str:
    return plot(name, report) if something else _NOTHING


def _seconds(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "–"
    return f"{milliseconds / 1_000:.2f} s" if milliseconds < 60_000 else _duration(round(milliseconds / 1_000))


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds} s"
