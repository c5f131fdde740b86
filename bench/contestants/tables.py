"""Prints the results: a table of all contestants, and one of the processor time of each."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from bench.contestants.measurements import Figure
from bench.contestants.routing import RoutingExtent


class Run(msgspec.Struct, kw_only=True):
    """The run of a contestant in one turn. figures: by part. error: the reason of an early end."""

    turn: int
    name: str
    title: str
    version: str
    figures: dict[str, Figure] = {}
    error: str = ""


class Results(msgspec.Struct, kw_only=True):
    """The content of the file. is_routing: devices published to each other. finished: False while the run continues."""

    began: str
    cores: int
    devices: int
    burst: int
    seconds: int
    rates: list[int]
    settings: list[str]
    """Settings of Inflight that differ from the defaults."""
    is_routing: bool = False
    runs: list[Run] = []
    finished: bool = False

    def titles(self) -> dict[str, str]:
        """Returns the titles of the contestants, by name."""
        return {run.name: run.title for run in self.runs}

    def figures(self, name: str, part: str) -> list[Figure]:
        """Returns the figure of each turn that has it."""
        return [run.figures[part] for run in self.runs if run.name == name and part in run.figures]


def rows(results: Results) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Yields the rows: title, short title, part, and the keys of its values."""
    if results.is_routing:
        for each in RoutingExtent(fleet=results.devices, seconds=results.seconds).parts():
            yield each.title, each.name, each.name, each.values
        return
    devices, few = f"{results.devices:,}", f"{max(1, results.devices // 5):,}"
    burst, connect = "a burst over {} devices, {}, messages/s", "CONNECT → CONNACK, {} at once, {} sessions, p50, p99, ms"
    yield f"QoS 1, {burst.format(devices, 'cold')}", f"burst, {devices}, cold", "burst_cold", ("messages_per_s",)
    yield f"QoS 1, {burst.format(devices, 'warm')}", f"burst, {devices}, warm", "burst_warm", ("messages_per_s",)
    yield f"QoS 1, {burst.format(few, 'first')}", f"burst, {few}, first", "burst_few_cold", ("messages_per_s",)
    yield f"QoS 1, {burst.format(few, 'second')}", f"burst, {few}, second", "burst_few_warm", ("messages_per_s",)
    yield f"QoS 2, {burst.format(devices, 'warm')}", "burst, QoS 2", "burst_qos2", ("messages_per_s",)
    for rate in results.rates:
        yield f"p50, p99 at {rate:,} messages/s, ms", f"{rate:,} messages/s", f"rate_{rate}", ("p50_ms", "p99_ms")
    yield "QoS 1 publications of devices, acknowledged/s", "publications", "uplink", ("messages_per_s",)
    yield connect.format(devices, "new"), "CONNECT, new", "connect_new", ("p50_ms", "p99_ms")
    yield connect.format(devices, "kept"), "CONNECT, kept", "connect_kept", ("p50_ms", "p99_ms")
    yield f"cores in use with {devices} devices and nothing to do", "nothing to do", "idle", ("cores",)


def show(results: Results, console: Console) -> None:
    """Prints the tables. Several turns are side by side, separated by a semicolon."""
    titles = results.titles()
    subject = "devices to each other" if results.is_routing else f"{results.devices:,} devices"
    table = Table(
        "measured; below it CPU ms a message",
        title=f"{subject}, {results.cores} cores for everything, payloads of 200 bytes",
        show_lines=True,
    )
    for title in titles.values():
        table.add_column(title, justify="right")
    for title, _, part, keys in rows(results):
        table.add_row(title, *(_cell(results.figures(name, part), keys) for name in titles))
    console.print(table)
    for name, title in titles.items():
        console.print(_processor_time(results, name, title))
    console.print("In brackets: of the generator. Busy: all cores, by whomever.")
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
    return sum(figure.cpu_s.values()) / figure.values["seconds"] if key == "cores" else figure.values[key]


def shown(value: float) -> str:
    """Formats a number with two digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _processor_time(results: Results, name: str, title: str) -> Table:
    every = [figure for run in results.runs if run.name == name for figure in run.figures.values()]
    ours = sorted({process for figure in every for process in figure.cpu_s})
    generator = sorted({process for figure in every for process in figure.generator_cpu_s})
    table = Table("CPU seconds", title=title)
    for heading in (*ours, *(f"({process})" for process in generator), "busy, %"):
        table.add_column(heading, justify="right")
    for _, row, part, _ in rows(results):
        figures = [figure for figure in results.figures(name, part) if not figure.note]
        if figures:
            cells = [[f"{figure.cpu_s.get(process, 0):.2f}" for figure in figures] for process in ours]
            cells += [[f"{figure.generator_cpu_s.get(process, 0):.2f}" for figure in figures] for process in generator]
            cells.append([f"{100 * figure.busy:.0f}" for figure in figures])
            table.add_row(row, *("; ".join(cell) for cell in cells))
    return table


def _remarks(results: Results) -> Iterator[str]:
    """Returns notes that explain the figures."""
    for run in results.runs:
        where = f"{run.title}, turn {run.turn}"
        if run.error:
            yield f"{where}: ended early: {run.error}"
        for part, figure in run.figures.items():
            if figure.note:
                yield f"{where}: no {part}: {figure.note}"
            if lost := figure.values.get("lost"):
                yield f"{where}: {part}: {lost:,.0f} messages did not arrive"
            if duplicates := figure.values.get("duplicates"):
                yield f"{where}: {part}: {duplicates:,.0f} messages came once more{'' if results.is_routing else ', with DUP'}"
            if (late_ms := figure.values.get("late_ms", 0)) > 100:
                yield f"{where}: {part}: the generator sent a message {late_ms:,.0f} ms after its time"
