"""Defines the options of commands that query the past, and opens the source that they read."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from streaming.history.sources.source import DEFAULT_MAX_RECORDS, SourceChoice, SourceLimits

if TYPE_CHECKING:
    from rich.progress import Progress

    from streaming.config.settings import Settings
    from streaming.history.sources.source import Source
    from streaming.history.store import Store

From: TypeAlias = Annotated[
    SourceChoice,
    typer.Option("--source", help="auto: the tables of the archive, if there are any, and the newer records of Kafka."),
]
Client: TypeAlias = Annotated[
    str | None,
    typer.Option("--client", metavar="CLIENT", help="Only this client: reads one partition of each Kafka topic."),
]
Since: TypeAlias = Annotated[
    str | None, typer.Option("--since", metavar="DURATION", help="Skip what is older, for example 2h or 7d.")
]
MaxRecords: TypeAlias = Annotated[
    int, typer.Option("--max-records", min=0, help="Read at most this many records of Kafka, the newest; 0 = all.")
]


@contextmanager
def open_source(
    settings: "Settings", where: SourceChoice, *, client: str | None, since: str | None, max_records: int
) -> Iterator["Source"]:
    """Yields the source. At the end of the block it writes to standard error what was read and how far back."""
    from streaming.history.sources.merged import source_of
    from streaming.terminal import say

    bounds = _limits(client, since, max_records)
    with _ReadingBar() as bar:
        source = source_of(settings, where, bounds, on_progress=bar.show)
        yield source
    for line in source.described():
        say(line, err=True)


@contextmanager
def open_store(
    settings: "Settings",
    where: SourceChoice = SourceChoice.AUTO,
    *,
    client: str | None = None,
    since: str | None = None,
    max_records: int = DEFAULT_MAX_RECORDS,
) -> Iterator["Store"]:
    """Yields the store. At the end of the block it writes to standard error what was read and how far back."""
    from inflight.local.spark_jars import spark_jars
    from streaming.history.live_sessions import LiveSessions
    from streaming.history.store import Store
    from streaming.terminal import say

    bounds, sessions = _limits(client, since, max_records), LiveSessions(settings, spark_jars).every
    with _ReadingBar() as bar, Store(settings, sessions, choice=where, limits=bounds, on_progress=bar.show) as store:
        yield store
    for line in store.described():
        say(line, err=True)


def _limits(client: str | None, since: str | None, max_records: int) -> SourceLimits:
    from streaming.config.units import parse_duration_ms

    try:
        since_ms = None if since is None else int(time.time() * 1_000) - parse_duration_ms(since)
    except ValueError as error:
        raise typer.BadParameter(f"--since {since}: {error}") from None
    return SourceLimits(client_id=client, since_ms=since_ms, max_records=max_records)


class _ReadingBar:
    """A progress bar on a terminal, shown from the first `show` until everything is read or the block ends."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def show(self, done: int, total: int) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            from streaming.terminal import console

            out = console(stderr=True)
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
            self._bar.add_task("reading Kafka", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self._bar.stop()

    def __enter__(self) -> "_ReadingBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
