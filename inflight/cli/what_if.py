"""Implements `inflight what-if`."""

import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.what_if.answer import WhatIfAnswer
    from streaming.what_if.comparison import GroupTally

TABLES: Final = ("session", "profiles", "policies", "exchanges", "permissions")
"""The settings on which the behaviour of a session depends. Another policy may change them."""


def what_if(
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Other settings, as in the configuration: {', '.join(TABLES)}. Default: the same."),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DURATION", help="The period begins so long ago, e.g. 2h or 7d.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DURATION", help="It ends so long ago. Default: now.")] = None,
    warm_up: Annotated[
        str, typer.Option(metavar="DURATION", help="How much of the log before --since rebuilds the sessions.")
    ] = "1h",
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Count these clients apart. Repeatable. Default: the patterns of the profiles."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write a plot as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show what would have become of the messages of a period under other settings, policies or limits."""
    from inflight.local.spark_jars import spark_jars
    from streaming.terminal import say, write_json
    from streaming.what_if.job import Period
    from streaming.what_if.job import what_if as replay

    present = load_for_running_system(config, overrides, data_dir)
    other = present
    if policy is not None:
        _check_tables(policy)
        other = load_for_running_system(config, overrides, data_dir, above=policy)
    now_ms = time.time_ns() // 1_000_000
    period = Period(
        since_ms=None if since is None else now_ms - _duration("--since", since),
        until_ms=None if until is None else now_ms - _duration("--until", until),
        warm_up_ms=_duration("--warm-up", warm_up),
    )
    groups = group or [pattern for pattern, _ in present.session_profiles]
    answer = replay(present, other, period, groups, spark_jars, lambda line: say(line, err=True))
    if plot is not None:
        from streaming.what_if.plot import write_svg

        write_svg(plot, answer)
    if json:
        write_json([_document(answer)])
    else:
        _show(answer)


def _show(answer: "WhatIfAnswer") -> None:
    from streaming.history.times import shown_utc
    from streaming.terminal import counted, say, write_table
    from streaming.what_if.comparison import LeftOut
    from streaming.what_if.plot import bars

    found = answer.comparison
    total = found.total()
    batches = counted(answer.batches, "micro-batch", "micro-batches")
    say(f"from {shown_utc(answer.since_ms)} to {shown_utc(answer.until_ms)} UTC: {batches}", err=True)
    say(
        f"{counted(sum(total.before.values()), 'message')} of {counted(total.clients, 'client')}; "
        f"{answer.records:,} records replayed in {answer.took_s:.1f} s",
        err=True,
    )
    if not answer.is_recorded:
        say("the engine has not recorded all these micro-batches: activations were cut by the times of the ledger", err=True)
    rows = [row for name, tally in found.by_group() for row in _rows(name, tally)]
    write_table(("clients", "messages", "was", "would_be", "difference"), rows)
    say("")
    for line in bars(found):
        say(line)
    say("")
    for change, number in total.changed.items():
        say(f"{counted(number, 'message')}: {change}")
    say(f"{sum(total.changed.values()):,} messages end otherwise; {found.verified:,} outcomes are as in the ledger when replayed")
    for reason, clients in found.left_out.items():
        say(f"{counted(clients, 'client')} left out: {LeftOut[reason.upper()]}")


def _rows(name: str, tally: "GroupTally") -> "Iterator[tuple[object, ...]]":
    for outcome in {**tally.before, **tally.after}:
        was, would_be = tally.before.get(outcome, 0), tally.after.get(outcome, 0)
        yield name, outcome, was, would_be, f"{would_be - was:+d}"
    yield name, "sent again", tally.resent_before, tally.resent_after, f"{tally.resent_after - tally.resent_before:+d}"


def _document(answer: "WhatIfAnswer") -> dict[str, Any]:
    return {
        "since_ms": answer.since_ms,
        "until_ms": answer.until_ms,
        "micro_batches": answer.batches,
        "records": answer.records,
        "micro_batches_recorded": answer.is_recorded,
        "took_s": round(answer.took_s, 1),
        **answer.comparison.as_json(),
    }


def _check_tables(policy: Path) -> None:
    """Raises typer.BadParameter for a key that no session depends on. What cannot be read is found when it is loaded."""
    try:
        found = tomllib.loads(policy.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if unknown := sorted(found.keys() - set(TABLES)):
        raise typer.BadParameter(
            f"--policy {policy}: {unknown[0]} changes nothing that is replayed; allowed: {', '.join(TABLES)}"
        )


def _duration(flag: str, text: str) -> int:
    from streaming.config.units import parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{flag} {text}: {error}") from None
