"""Implements `status` and `top`."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from inflight.cli.history import Json
from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from streaming.terminal import console, write_json

if TYPE_CHECKING:
    from inflight.status.findings import Finding
    from inflight.status.measurements import Measurements

MoreMetrics: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--metrics", metavar="NAME=HOST:PORT", help="One more metrics port, e.g. gateway=10.0.0.7:9462. Repeatable."),
]
_RATE_INTERVAL_S = 1.0
_POLL_S = 0.1


def status(
    quick: Annotated[bool, typer.Option("--quick", help="Do not ask the engine for the longest queues.")] = False,
    more_metrics: MoreMetrics = None,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show what runs, what waits, what is wrong and what to do. Exit code 1 if something is critical."""
    from inflight.cli.status.screen import screen
    from inflight.status.findings import Severity, findings
    from inflight.status.measurements import rates
    from inflight.status.observer import Observer

    observer = Observer(load_for_running_system(config, overrides, data_dir), more_metrics or ())
    with console(stderr=True).status("measuring", spinner="dots"):
        now = before = observer.probe_kafka()
        began_s = time.monotonic()
        if not quick:
            observer.read_sessions()
        if before.error is None:
            time.sleep(max(0.0, began_s + _RATE_INTERVAL_S - time.monotonic()))
            now = observer.probe_kafka()
        seen = observer.measure(now)
    found = findings(seen)
    if json:
        _write_json(seen, found)
    else:
        console().print(screen(seen, found, rates(before, now)))
    if any(finding.severity is Severity.CRITICAL for finding in found):
        raise typer.Exit(1)


def top(
    quick: Annotated[bool, typer.Option("--quick", help="Do not ask the engine for the longest queues.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.5, metavar="SECONDS", help="Time between measurements.")] = 2.0,
    sessions_interval: Annotated[
        float, typer.Option("--sessions-interval", min=5, metavar="SECONDS", help="Time between reads of the sessions.")
    ] = 30.0,
    more_metrics: MoreMetrics = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show the screen of `status` live, until Ctrl-C."""
    if not console().is_terminal:
        raise typer.BadParameter("top redraws a terminal, and this is none: use `inflight status`, with --json for programs")
    from rich.live import Live

    from inflight.cli.status.screen import screen
    from inflight.status.findings import findings
    from inflight.status.measurements import rates
    from inflight.status.observer import Observer

    with Observer(load_for_running_system(config, overrides, data_dir), more_metrics or ()) as observer:
        if not quick:
            observer.start_reading_sessions(sessions_interval)
        with Live(auto_refresh=False, screen=True, console=console()) as live, _interrupts() as wait_interrupted:
            before = observer.probe_kafka()
            while not wait_interrupted(interval):
                now = observer.probe_kafka()
                seen = observer.measure(now)
                live.update(screen(seen, findings(seen), rates(before, now)), refresh=True)
                before = now
    raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits for a number of seconds or for Ctrl-C. It returns True once Ctrl-C has come.

    A measurement is not interrupted, because the libraries that it calls may swallow the exception. A second Ctrl-C raises it
    there.
    """
    is_interrupted = False

    def on_signal(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while not is_interrupted and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return is_interrupted

    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield wait
    finally:
        signal.signal(signal.SIGINT, previous)


def _write_json(seen: "Measurements", found: "list[Finding]") -> None:
    import dataclasses

    import msgspec

    document = {
        **{name: value for name, value in dataclasses.asdict(seen).items() if name != "hangs"},
        "hangs": msgspec.to_builtins(seen.hangs),
        "findings": [{"severity": one.severity.name.lower(), "what": one.what, "action": one.action} for one in found],
    }
    write_json([msgspec.to_builtins(document)])
