"""Implements `sessions`: lists live sessions, ends those of offline clients (`purge`), ends quarantines (`restore`, `drop`), and
moves sessions to another number of state partitions (`repartition`)."""

from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from inflight.cli.history import Condition, Json
from inflight.cli.history_source import open_store
from inflight.cli.options import Config, DataDir, Overrides, load, load_for_running_system

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state.events import QuarantineRequest
    from streaming.config.settings import Settings
    from streaming.history.requests import SessionRequest

app = typer.Typer(invoke_without_command=True)

Clients: TypeAlias = Annotated[list[str] | None, typer.Argument(metavar="CLIENT...", help="Client ids.")]
_EXAMPLES: Final = 10
AllQuarantined: TypeAlias = Annotated[
    bool, typer.Option("--all", help="All clients that are quarantined by the engine's checkpoint, instead of CLIENT.")
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
    """List the live sessions, as the engine has stored them: who is connected or quarantined, what is in flight, what waits."""
    if context.invoked_subcommand is not None:
        if (where, data_dir, config, overrides) != (None,) * 4:
            raise typer.BadParameter(f"write the options after {context.invoked_subcommand}")
        return
    from streaming.history.times import time_of_day
    from streaming.terminal import write_json, write_table

    found = _listed(load_for_running_system(config, overrides, data_dir), where, limit)
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


def _listed(settings: "Settings", where: str | None, limit: int) -> list[dict[str, Any]]:
    """Returns the rows. Without an engine that answers here, Spark reads them."""
    from inflight.local.spark_jars import spark_jars
    from streaming.history.live_sessions import LiveSessions
    from streaming.history.session_relation import SESSIONS

    if where is None:
        return LiveSessions(settings, spark_jars).longest(limit=limit)
    with open_store(settings) as store:
        order = "queued DESC, inflight DESC, client_id"
        return list(store.where(SESSIONS, where, order=order, limit=limit))


@app.command()
def purge(
    where: Annotated[str, typer.Option(metavar="SQL", help="A condition on the columns of `inflight sessions`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """End the sessions of offline clients, with receipts, dead letters and wills as at their expiry."""
    from state.events import SessionPurged
    from streaming.history.requests import purgeable_clients
    from streaming.terminal import say

    settings = load_for_running_system(config, overrides, data_dir)
    with open_store(settings) as store:
        clients = list(purgeable_clients(store, where))
    if not clients:
        say("no session of an offline client matches", err=True)
        return
    for client_id in clients[:_EXAMPLES]:
        say(client_id)
    if len(clients) > _EXAMPLES:
        say(f"and {len(clients) - _EXAMPLES:,} more")
    if not yes:
        typer.confirm(f"End {len(clients):,} sessions?", abort=True, err=True)
    count = _send(settings, clients, SessionPurged(), why=where)
    say(f"{count} requested; sessions whose clients have connected meanwhile are kept", err=True)


@app.command()
def restore(
    clients: Clients = None,
    every: AllQuarantined = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Restore the sessions of quarantined clients. Sessions that still fail stay quarantined."""
    from state.events import RestoreRequested

    _send_to_quarantined(RestoreRequested(), clients, every, data_dir, config, overrides)


@app.command()
def drop(
    clients: Clients = None,
    every: AllQuarantined = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """End the sessions of quarantined clients. Their messages end as at session expiry, and the clients can begin new
    sessions."""
    from state.events import DropRequested

    _send_to_quarantined(DropRequested(), clients, every, data_dir, config, overrides)


@app.command()
def repartition(
    state_partitions: Annotated[int, typer.Argument(min=1, max=10_000, metavar="N", help="The new number of state partitions.")],
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Move the sessions of a stopped engine to N state partitions. Nothing is lost, and nothing is sent twice."""
    from inflight.local.spark_jars import spark_jars
    from streaming.engine.ownership.repartition import repartition as repartition_sessions
    from streaming.spark_internals.jvm_launch import under_spark_submit
    from streaming.terminal import say

    settings = load(config, overrides, data_dir)
    repartition_sessions(settings, state_partitions, jars=None if under_spark_submit() else spark_jars())
    say(f"now set engine.state_partitions = {state_partitions}, and start the engine")


def _send_to_quarantined(
    request: "QuarantineRequest",
    clients: list[str] | None,
    every: bool,
    data_dir: "Path | None",
    config: "Path | None",
    overrides: list[str] | None,
) -> None:
    from streaming.terminal import say

    if bool(clients) == every:
        raise typer.BadParameter("choose the clients: CLIENT..., or --all")
    settings = load_for_running_system(config, overrides, data_dir)
    chosen = clients or []
    if every:
        from inflight.local.spark_jars import spark_jars
        from streaming.history.live_sessions import LiveSessions

        chosen = LiveSessions(settings, spark_jars).quarantined()
    count = _send(settings, chosen, request)
    say(f"{count} requested; `inflight sessions --where quarantined` shows the remaining ones", err=True)


def _send(settings: "Settings", clients: "Iterable[str]", request: "SessionRequest", *, why: str = "") -> int:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    from inflight.cli.kafka_contact import require_kafka
    from streaming.config.errors import KafkaUnreachable
    from streaming.history.operator_requests import this_user
    from streaming.history.requests import send_requests

    require_kafka(settings.kafka.bootstrap_servers)
    try:
        producer = KafkaProducer(acks="all", client_id="inflight-sessions", **settings.kafka.client_options())
        try:
            return send_requests(producer, settings.topics, clients, request, by=this_user(), why=why)
        finally:
            producer.close(timeout=5)
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
