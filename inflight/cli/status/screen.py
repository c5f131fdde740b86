"""Renders the screen of `inflight status` and `inflight top` from measurements."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from inflight.status.findings import Finding, Severity
from inflight.status.measurements import KafkaStatus, Measurements, SessionTotals, format_age
from inflight.status.running import ProcessState, running
from streaming.terminal import plain

_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_COLOURS: Final = {
    ProcessState.WORKS: "green",
    ProcessState.WAITS: "green",
    ProcessState.NOT_READY: "yellow",
    ProcessState.AWAY: "red",
}


def screen(seen: Measurements, found: Sequence[Finding], rates: Mapping[str, float]) -> RenderableType:
    """Returns the screen.

    Args:
        rates: Records per second, by topic.
    """
    parts: list[RenderableType] = [_verdict(found)]
    parts += [_processes(seen), _topics(seen.kafka, rates)]
    if seen.sessions is not None:
        parts += [_sessions(seen.sessions)]
        if seen.sessions.worst:
            parts += [_worst(seen.sessions)]
    return Group(*parts)


def _verdict(found: Sequence[Finding]) -> RenderableType:
    if not found:
        return plain("nothing is wrong that can be seen from here", "green")
    text = plain("")
    for finding in found:
        text.append(plain(f"{finding.severity.name.lower()}: {finding.what}\n", _STYLES[finding.severity]))
        text.append(plain(f"    → {finding.action}\n"))
    text.rstrip()
    return text


def _processes(seen: Measurements) -> Table:
    table = _table("process", "state", "details", title="Processes")
    for process in running(seen):
        table.add_row(plain(process.name), plain(process.state, _COLOURS[process.state]), plain(process.summary))
    return table


def _topics(kafka: KafkaStatus, rates: Mapping[str, float]) -> Table:
    table = _table("topic", "records", "a second", "waiting", title="Topics", numbers=3)
    for topic in kafka.topics:
        counts = [count for count in (topic.waiting, topic.unrouted) if count is not None]
        waiting = f"{sum(counts):,}" if counts else ""
        rate = f"{rates[topic.name]:,.0f}" if topic.name in rates else ""
        table.add_row(topic.name, f"{topic.end:,}", rate, waiting)
    return table


def _sessions(seen: SessionTotals) -> Table:
    title = f"Sessions, by the {seen.source} of {format_age(seen.age_s)} ago"
    table = _table("sessions", "connected", "in flight", "queued", "oldest unacknowledged", title=title, numbers=5)
    oldest = "" if seen.oldest_s is None else format_age(seen.oldest_s)
    table.add_row(*(f"{count:,}" for count in (seen.sessions, seen.connected, seen.inflight, seen.queued)), oldest)
    return table


def _worst(seen: SessionTotals) -> Table:
    table = _table("client", "connected", "in flight", "queued", "bytes", "oldest", title="Longest queues", numbers=4)
    for client in seen.worst:
        table.add_row(
            plain(client.client_id),
            "yes" if client.connected else "no",
            f"{client.inflight:,}",
            f"{client.queued:,}",
            f"{client.queued_bytes:,}",
            "" if client.oldest_s is None else format_age(client.oldest_s),
        )
    return table


def _table(*columns: str, title: str, numbers: int = 0) -> Table:
    """Returns an empty table.

    Args:
        numbers: Number of right-aligned columns at the end.
    """
    table = Table(title=plain(title, "bold"), title_justify="left", header_style="dim", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index >= len(columns) - numbers else "left", overflow="fold")
    return table
