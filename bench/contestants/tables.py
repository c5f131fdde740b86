"""Prints the results: a table of all contestants, comparisons with one of them, and the processor time of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from bench.contestants.entrants import INFLIGHT, RABBITMQ
from bench.contestants.hour import Hour
from bench.contestants.measurements import START, Figure
from bench.contestants.routing import RoutingExtent

_MOST_BUSY = 0.1
_CPU = "cpu_ms"
"""The processor time of one message, which is in every figure that counts messages."""
_KEYS = {
    "messages_per_s": "messages/s",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "max_ms": "slowest, ms",
    "p50_s": "p50, s",
    "max_s": "last, s",
    "start_s": "s",
    "lost": "lost",
    "cores": "cores",
    _CPU: "CPU ms a message",
}


class Run(msgspec.Struct, kw_only=True):
    """The run of a contestant in one turn. figures: by part. error: the reason of an early end.

    settings: of a variant, beyond those of all. busy_before: the share of the usable cores in use just before the start.
    """

    turn: int
    name: str
    title: str
    version: str
    settings: list[str] = []
    is_variant: bool = False
    busy_before: float = 0.0
    figures: dict[str, Figure] = {}
    error: str = ""


class Results(msgspec.Struct, kw_only=True):
    """The content of the file. is_routing: devices published to each other. finished: False while the run continues.

    cores: that everything may use.
    """

    began: str
    cores: int
    devices: int
    burst: int
    seconds: int
    rates: list[int]
    settings: list[str]
    """Settings of Inflight that differ from the defaults."""
    is_routing: bool = False
    hour: Hour = Hour.PLAIN
    runs: list[Run] = []
    finished: bool = False

    def titles(self) -> dict[str, str]:
        """Returns the titles of the contestants, by name."""
        return {run.name: run.title for run in self.runs}

    def figures(self, name: str, part: str) -> list[Figure]:
        """Returns the figure of each turn that has it."""
        return [run.figures[part] for run in self.runs if run.name == name and part in run.figures]


@dataclass(frozen=True, slots=True)
class Row:
    """A measured part in the tables. keys: of its values."""

    title: str
    short: str
    part: str
    keys: Sequence[str]


def rows(results: Results) -> list[Row]:
    """Returns the rows that have a figure."""
    measured = {part for run in results.runs for part in run.figures}
    return [row for row in _all_rows(results) if row.part in measured]


def _all_rows(results: Results) -> Iterator[Row]:
    yield Row("start with new data until a device can connect, s", "start", START, ("start_s",))
    if results.is_routing:
        for each in RoutingExtent(fleet=results.devices, seconds=results.seconds, burst=results.burst).parts():
            yield Row(each.title, each.name, each.name, each.values)
        return
    devices, few = f"{results.devices:,}", f"{max(1, results.devices // 5):,}"
    burst, connect = "a burst over {} devices, {}, messages/s", "CONNECT → CONNACK, {} at once, {} sessions, p50, p99, ms"
    back = "SIGKILL{} until a message sent meanwhile is at a device, p50, last, s"
    yield Row(connect.format(devices, "new"), "CONNECT, new", "connect_new", ("p50_ms", "p99_ms"))
    yield Row(connect.format(devices, "kept"), "CONNECT, kept", "connect_kept", ("p50_ms", "p99_ms"))
    yield Row(back.format(""), "SIGKILL", "kill_alone", ("p50_s", "max_s"))
    yield Row(back.format(" beside a standby"), "SIGKILL, standby", "kill_standby", ("p50_s", "max_s"))
    for rate in results.rates:
        yield Row(f"p50, p99 at {rate:,} messages/s, ms", f"{rate:,} messages/s", f"rate_{rate}", ("p50_ms", "p99_ms"))
    yield Row(f"cores in use with {devices} devices and nothing to do", "nothing to do", "idle", ("cores",))
    for number, which in ((devices, ""), (few, "_few")):
        for state in ("cold", "warm"):
            title = f"QoS 1, {burst.format(number, state)}"
            yield Row(title, f"burst, {number}, {state}", f"burst{which}_{state}", ("messages_per_s",))
    yield Row(f"QoS 2, {burst.format(devices, 'warm')}", "burst, QoS 2", "burst_qos2", ("messages_per_s",))
    yield Row("QoS 1 publications of devices, acknowledged/s", "publications", "uplink", ("messages_per_s",))


def show(results: Results, console: Console) -> None:
    """Prints the tables. Several turns are side by side, separated by a semicolon."""
    titles = results.titles()
    hour = f"; {results.hour.words}" if results.hour.words else ""
    subject = "devices to each other" if results.is_routing else f"{results.devices:,} devices"
    table = Table(
        "measured; below it CPU ms a message",
        title=f"{subject}, {results.cores} core{'s' if results.cores > 1 else ''} for everything, payloads of 200 bytes{hour}",
        show_lines=True,
    )
    for title in titles.values():
        table.add_column(title, justify="right")
    for row in rows(results):
        table.add_row(row.title, *(_cell(results.figures(name, row.part), row.keys) for name in titles))
    console.print(table)
    if RABBITMQ in titles:
        _compare(results, RABBITMQ, [name for name in titles if name != RABBITMQ], "as a multiple of {}", times, console)
    variants = [run.name for run in results.runs if run.is_variant and run.turn == 1]
    base = INFLIGHT if INFLIGHT in titles else next(iter(variants), "")
    _compare(results, base, [name for name in variants if name != base], "difference from {}", per_cent, console)
    for name, title in titles.items():
        if (table := _processor_time(results, name, title)).row_count:
            console.print(table)
    console.print("In brackets: of the generator. Wall: until the last message. Busy: the usable cores, by whomever.")
    for sentence in _remarks(results):
        console.print(sentence, markup=False)


def _cell(figures: Iterable[Figure], keys: Sequence[str]) -> str:
    values, costs = [], []
    for figure in figures:
        if figure.note:
            return "—"
        values.append(", ".join(shown(_value(figure, key)) for key in keys))
        if figure.messages:
            costs.append(f"{figure.cpu_ms_per_message:.2f}")
    return "\n".join("; ".join(line) for line in (values, costs) if line)


def _value(figure: Figure, key: str) -> float:
    return figure.cpu_ms_per_message if key == _CPU else figure.values[key]


def _compare(
    results: Results, base: str, others: Sequence[str], what: str, shown_as: Callable[[float], str], console: Console
) -> None:
    """Prints each figure of the others relative to the same turn of `base`: the median, and the range of several turns."""
    if not others:
        return
    titles = results.titles()
    table = Table("figure", title=f"{what.format(titles[base])}{f'; {results.hour.words}' if results.hour.words else ''}")
    for name in (base, *others):
        table.add_column(titles[name], justify="right")
    for row in rows(results):
        for key in (*row.keys, _CPU):
            known = [_value(figure, key) for figure in results.figures(base, row.part) if not figure.note]
            if not any(known):
                continue
            cells = [_relative(ratios(results, base, name, row.part, key), shown_as) for name in others]
            table.add_row(f"{row.short}: {_KEYS[key]}", shown(median(known)), *cells)
    console.print(table)


def ratios(results: Results, base: str, name: str, part: str, key: str) -> list[float]:
    """Returns value ÷ value of `base`, for each turn that has both."""

    def by_turn(of: str) -> dict[int, float]:
        figures = {run.turn: run.figures[part] for run in results.runs if run.name == of and part in run.figures}
        return {turn: _value(figure, key) for turn, figure in figures.items() if not figure.note}

    own, other = by_turn(name), by_turn(base)
    return [own[turn] / other[turn] for turn in own if other.get(turn)]


def _relative(found: list[float], shown_as: Callable[[float], str]) -> str:
    if not found:
        return "—"
    middle = shown_as(median(found))
    return middle if len(found) == 1 else f"{middle} ({shown_as(min(found))} … {shown_as(max(found))})"


def times(ratio: float) -> str:
    return f"{shown(ratio)} ×"


def per_cent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def shown(value: float) -> str:
    """Formats a number with two digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _processor_time(results: Results, name: str, title: str) -> Table:
    every = [figure for run in results.runs if run.name == name for figure in run.figures.values()]
    ours = sorted({process for figure in every for process in figure.cpu_s})
    generator = sorted({process for figure in every for process in figure.generator_cpu_s})
    table = Table("CPU seconds", title=title)
    for heading in (*ours, *(f"({process})" for process in generator), "wall, s", "busy, %"):
        table.add_column(heading, justify="right")
    for row in rows(results):
        figures = [figure for figure in results.figures(name, row.part) if figure.cpu_s]
        if figures:
            cells = [[f"{figure.cpu_s.get(process, 0):.2f}" for figure in figures] for process in ours]
            cells += [[f"{figure.generator_cpu_s.get(process, 0):.2f}" for figure in figures] for process in generator]
            cells.append([f"{figure.wall_s:.1f}" for figure in figures])
            cells.append([f"{100 * figure.busy:.0f}" for figure in figures])
            table.add_row(row.short, *("; ".join(cell) for cell in cells))
    return table


def _remarks(results: Results) -> Iterator[str]:
    """Returns notes that explain the figures."""
    for run in results.runs:
        where = f"{run.title}, turn {run.turn}"
        if run.error:
            yield f"{where}: incomplete: {run.error}"
        if run.settings:
            yield f"{where}: {', '.join(run.settings)}"
        if run.busy_before > _MOST_BUSY and results.hour is not Hour.BUSY:
            yield f"{where}: others used {100 * run.busy_before:.0f} % of the machine just before the start"
        for part, figure in run.figures.items():
            if figure.note:
                yield f"{where}: no {part}: {figure.note}"
            if figure.is_disturbed:
                yield f"{where}: {part}: the host of this machine gave {100 * figure.stolen:.1f} % of its time to others"
            if figure.attempts > 1:
                yield f"{where}: {part}: the least disturbed of {figure.attempts} measurements"
            if lost := figure.values.get("lost"):
                yield f"{where}: {part}: {lost:,.0f} messages did not arrive"
            if duplicates := figure.values.get("duplicates"):
                yield f"{where}: {part}: {duplicates:,.0f} messages came once more"
            if (late_ms := figure.values.get("late_ms", 0)) > 100:
                yield f"{where}: {part}: the generator sent a message {late_ms:,.0f} ms after its time"
