"""The command `sessions`: lists the live sessions; `sessions purge` ends those of absent clients, `sessions restore` and
`sessions drop` end the quarantine of clients, and `sessions repartition` divides them into another number of state partitions.
"""

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from inflight.cli.history import Condition, Json
from inflight.cli.options import Config, DataDir, Overrides, load, load_beside

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state.events import QuarantineRequest
    from streaming.config.settings import Settings
    from streaming.history.requests import Request

app = typer.Typer(invoke_without_command=True)

Clients: TypeAlias = Annotated[list[str] | None, typer.Argument(metavar="CLIENT...", help="Client ids.")]
_EXAMPLES: Final = 10
Every: TypeAlias = Annotated[
    bool, typer.Option("--all", help="All that are quarantined now, by the engine's checkpoint, in place of CLIENT.")
]


@app.callback()
def sessions(
    context: typer.Context,
    where: Condition = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the longest queues first.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """The live sessions, read from the engine's checkpoint: who is connected or quarantined, what is in flight, what waits."""
    if context.invoked_subcommand is not None:
        if (where, data_dir, config, overrides) != (None,) * 4:
            raise typer.BadParameter(f"write the options behind {context.invoked_subcommand}")
        return
    from inflight.local.spark_jars import spark_jars
    from streaming.history.output import time_of_day, write_json, write_table
    from streaming.history.session import HistorySession

    with HistorySession(load(config, overrides, data_dir), spark_jars(), brief=True) as history:
        rows = history.where(history.sessions(), where).orderBy("queued", "inflight", "client_id", ascending=[False, False, True])
        found = history.documents(rows.limit(limit))
        if json:
            write_json(found)
            return
        columns = (
            "client_id",
            "connected",
            "inflight",
            "queued",
            "queued_bytes",
            "oldest_unacked",
            "next_deadline",
            "state_bytes",
            "quarantined",
        )
        table = [
            [time_of_day(session[name]) if name in ("oldest_unacked", "next_deadline") else session[name] for name in columns]
            for session in found
        ]
        write_table(columns, table)


@app.command()
def purge(
    where: Annotated[str, typer.Option(metavar="SQL", help="Which ones: a condition on the columns of `inflight sessions`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """End the sessions of clients that are away, with receipts, dead letters and wills as when they expire."""
    from inflight.local.spark_jars import spark_jars
    from state.events import SessionPurged
    from streaming.history.requests import purgeable_clients
    from streaming.history.session import HistorySession

    settings = load_beside(config, overrides, data_dir)
    with HistorySession(settings, spark_jars(), brief=True) as history:
        clients = list(purgeable_clients(history, where))
    if not clients:
        typer.echo("there is no such session of a client that is away", err=True)
        return
    for client_id in clients[:_EXAMPLES]:
        typer.echo(client_id)
    if len(clients) > _EXAMPLES:
        typer.echo(f"and {len(clients) - _EXAMPLES:,} more")
    if not yes:
        typer.confirm(f"End {len(clients):,} sessions?", abort=True, err=True)
    count = _send(settings, clients, SessionPurged())
    typer.echo(f"{count} asked for; those whose clients are connected by then go on", err=True)


@app.command()
def restore(
    clients: Clients = None,
    every: Every = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Give quarantined clients their sessions back. Those whose sessions still fail stay quarantined."""
    from state.events import RestoreRequested

    _ask(RestoreRequested(), clients, every, data_dir, config, overrides)


@app.command()
def drop(
    clients: Clients = None,
    every: Every = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """End the sessions of quarantined clients. What waits in them leaves as when sessions expire, and they can begin new ones."""
    from state.events import DropRequested

    _ask(DropRequested(), clients, every, data_dir, config, overrides)


@app.command()
def repartition(
    state_partitions: Annotated[int, typer.Argument(min=1, max=10_000, metavar="N", help="How many there shall be.")],
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Divide the sessions of a stopped engine into N state partitions. Nothing is lost, and nothing is sent twice."""
    from inflight.local.spark_jars import spark_jars
    from streaming.engine.lifecycle.repartition import repartition as divide
    from streaming.engine.spark_session import under_spark_submit

    settings = load(config, overrides, data_dir)
    divide(settings, state_partitions, jars=None if under_spark_submit() else spark_jars())
    typer.echo(f"now set engine.state_partitions = {state_partitions}, and start the engine")


def _ask(
    request: "QuarantineRequest",
    clients: list[str] | None,
    every: bool,
    data_dir: "Path | None",
    config: "Path | None",
    overrides: list[str] | None,
) -> None:
    if bool(clients) == every:
        raise typer.BadParameter("say which: CLIENT..., or --all")
    settings = load_beside(config, overrides, data_dir)
    chosen = clients or []
    if every:
        from inflight.local.spark_jars import spark_jars
        from streaming.history.requests import quarantined_clients
        from streaming.history.session import HistorySession

        with HistorySession(settings, spark_jars(), brief=True) as history:
            chosen = quarantined_clients(history)
    count = _send(settings, chosen, request)
    typer.echo(f"{count} asked for; `inflight sessions --where quarantined` shows who is left", err=True)


def _send(settings: "Settings", clients: "Iterable[str]", request: "Request") -> int:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    from streaming.config.errors import KafkaUnreachable
    from streaming.history.requests import send_requests

    try:
        producer = KafkaProducer(acks="all", client_id="inflight-sessions", **settings.kafka.client_options())
        try:
            return send_requests(producer, settings.topics.events, clients, request)
        finally:
            producer.close(timeout=5)
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
