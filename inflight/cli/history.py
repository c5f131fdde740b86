"""Implements the commands that query the past: `trace`, `dead-letters`, `replay`, `sql`, `report`. sessions.py has `sessions`.

`add_to` registers them. With `--json` each prints one JSON document a line.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from inflight.cli.history_source import Client, From, MaxRecords, Since, open_source, open_store
from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from streaming.history.sources.source import DEFAULT_MAX_RECORDS, SourceChoice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.config.settings import Settings
    from streaming.history.replay import ReplayCount, ReplayLetter, ReplayOptions

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
Condition: TypeAlias = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="A condition in SQL, e.g. \"reason = 'expired'\".")
]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (trace, dead_letters, replay, sql, report):
        app.command()(command)


def trace(
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="As `inflight send` printed it.")],
    client: Client = None,
    since: Since = None,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    source: From = SourceChoice.AUTO,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show what happened to a message: every transition, dead letter and replay, in order."""
    from inflight.status.client import fate_sentences
    from streaming.history import trace as life
    from streaming.history.times import time_of_day
    from streaming.terminal import say, write_json, write_table

    settings = load_for_running_system(config, overrides, data_dir)
    with open_source(settings, source, client=client, since=since, max_records=max_records) as opened:
        found = life.trace(opened, message_id)
    steps = [step.as_json() for step in found]
    if json:
        write_json(steps)
        return
    columns = ("time", "client_id", "step", "attempt", "packet_id", "outcome", "reason_code", "detail")
    rows = [
        (
            time_of_day(step["time"]),
            step["client_id"],
            step["step"],
            step["attempt"] or None,
            step["packet_id"],
            step["outcome"],
            f"0x{step['reason_code']:02X}" if step["reason_code"] else None,
            step["detail"],
        )
        for step in steps
    ]
    write_table(columns, rows)
    say("")
    for sentence in fate_sentences(settings, found):
        say(sentence)


def dead_letters(
    where: Condition = None,
    show: Annotated[
        str | None,
        typer.Option("--show", metavar="ID", help="Show all of one dead letter; the beginning of its id is enough."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest first.")] = 50,
    client: Client = None,
    since: Since = None,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    source: From = SourceChoice.AUTO,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """List or filter messages that could not be delivered, with the reasons, or show one."""
    from streaming.history.dead_letters import DeadLetters
    from streaming.history.output import payload_of
    from streaming.history.times import time_of_day
    from streaming.terminal import is_terminal, write_json, write_table

    settings = load_for_running_system(config, overrides, data_dir)
    with open_store(settings, source, client=client, since=since, max_records=max_records) as store:
        letters = DeadLetters(store)
        if show is not None:
            letter = letters.one(show)
            if json:
                write_json([letter])
                return
            headers = [(f"header {header['key']}", header["value"]) for header in letter.pop("headers")]
            letter["payload"] = payload_of(letter, whole=not is_terminal())
            letter.pop("payload_text")
            write_table(("field", "value"), [*letter.items(), *headers])
            return
        found = letters.listed(where=where, limit=limit)
        if json:
            write_json(found)
            return
        columns = ("time", "id", "client_id", "message_id", "reason", "deaths", "topic", "payload", "detail")
        rows = [
            (
                time_of_day(letter["time"]),
                letter["dead_letter_id"][:12] if is_terminal() else letter["dead_letter_id"],
                *(letter[name] for name in ("client_id", "message_id", "reason", "deaths", "topic")),
                payload_of(letter, whole=not is_terminal()),
                letter["detail"],
            )
            for letter in found
        ]
        write_table(columns, rows)


def replay(
    where: Condition = None,
    every: Annotated[bool, typer.Option("--all", help="All dead letters, if neither --where nor --client is given.")] = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="CLIENT", help="Send to this client instead of the one whose queue it died in.")
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="At most this many a second, e.g. 200/s or 30/m.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be sent, and why others would not.")] = False,
    max_replays: Annotated[int, typer.Option(min=1, help="Skip a message that was replayed and died this often.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Include dead letters that were replayed before.")] = False,
    client: Client = None,
    since: Since = None,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    source: From = SourceChoice.AUTO,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Send dead letters again, under their message ids and with their histories.

    Only the newest dead letter of each message is sent, and only once, so that the command can be repeated after a failure.
    """
    from streaming.history import replay as replaying
    from streaming.history.dead_letters import DeadLetters
    from streaming.history.operator_requests import this_user
    from streaming.terminal import say, write_json, write_table

    if where is None and client is None and not every:
        raise typer.BadParameter("choose the dead letters: --where SQL, --client CLIENT, or --all")
    settings = load_for_running_system(config, overrides, data_dir)
    options = replaying.ReplayOptions(
        where=where,
        to=to,
        rate=None if rate is None else replaying.parse_rate(rate),
        max_replays=max_replays,
        again=again,
        by=this_user(),
    )
    count = replaying.ReplayCount()
    with open_store(settings, source, client=client, since=since, max_records=max_records) as store:
        found = replaying.letters(DeadLetters(store).candidates(options), options, count)
        if dry_run:
            planned = [(letter.message.message_id, letter.client_id, letter.dead_letter_id) for letter in found]
            if json:
                write_json(
                    {"message_id": message, "client_id": client, "dead_letter_id": letter} for message, client, letter in planned
                )
            else:
                write_table(("message_id", "to", "dead_letter_id"), planned)
        else:
            _send(settings, options, found, count)
    for why, number in count.skipped.items():
        say(f"{number} not sent: {why}", err=True)
    verb = "would be sent" if dry_run else "sent again"
    say(f"{count.matched - sum(count.skipped.values()) if dry_run else count.sent} of {count.matched} {verb}", err=True)
    if json and not dry_run:
        write_json(
            [{"matched": count.matched, "sent": count.sent, "skipped": {why.name.lower(): n for why, n in count.skipped.items()}}]
        )


def _send(settings: "Settings", options: "ReplayOptions", found: "Iterator[ReplayLetter]", count: "ReplayCount") -> None:
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from inflight.cli.kafka_contact import require_kafka
    from streaming.history.replay import send_again
    from streaming.terminal import console

    require_kafka(settings.kafka.bootstrap_servers)
    out = console(stderr=True)
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=out, disable=not out.is_terminal) as bar:
        task = bar.add_task("reading the dead letters", total=None)

        def show(now: "ReplayCount") -> None:
            bar.update(task, description=f"{now.sent} sent again, {sum(now.skipped.values())} not")

        send_again(settings, options, found, count, show)


def sql(
    question: Annotated[str, typer.Argument(metavar="SQL", help="Tables: ledger, dead_letters, uplink, receipts, sessions.")],
    limit: Annotated[int, typer.Option(min=1, help="At most this many rows.")] = 1_000,
    since: Since = None,
    max_records: MaxRecords = DEFAULT_MAX_RECORDS,
    source: From = SourceChoice.AUTO,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Query the tables and the live sessions with SQL, e.g. "SELECT outcome, count(*) FROM receipts GROUP BY outcome"."""
    from itertools import islice

    from streaming.history.documents import documents, plain
    from streaming.history.questions import checked_question
    from streaming.terminal import write_json, write_table

    checked_question(question)  # before anything is opened
    settings = load_for_running_system(config, overrides, data_dir)
    with open_store(settings, source, since=since, max_records=max_records) as store:
        answer = store.ask(question)
        if json:
            write_json(islice(documents(answer), limit))
        else:
            rows = [[plain(value) for value in row] for row in islice(answer.rows, limit)]
            write_table(answer.columns, rows, keeps_names=True)


def report(
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The page.")] = Path("inflight-report.html"),
    hours: Annotated[float, typer.Option(min=0.01, help="How far back.")] = 24.0,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Write a page with plots: deliveries and resends, latency, depth of windows and queues, dead letters, worst clients."""
    from streaming.history.report import LOOKBACK_HOURS, write_report
    from streaming.terminal import say

    settings = load_for_running_system(config, overrides, data_dir)
    with open_store(settings, since=f"{round((hours + LOOKBACK_HOURS) * 3_600)}s") as store:
        path = write_report(store, output, hours=hours)
    say(str(path))
    if show:
        typer.launch(path.as_uri())
