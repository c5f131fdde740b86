"""Implements `presence`: which clients are connected, and which sessions wait for their clients (docs/guides/presence.md)."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from inflight.cli.history import Json
from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system

if TYPE_CHECKING:
    from inflight.presence import ClientPresence
    from streaming.config.settings import Settings


def presence(
    clients: Annotated[list[str] | None, typer.Argument(metavar="CLIENT...", help="Client ids; default: all.")] = None,
    online: Annotated[bool, typer.Option("--online", help="Only those that are connected.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only those whose sessions wait for them.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show which clients are connected, where and since when, and why the others are not."""
    from streaming.terminal import say, write_json, write_table

    if online and offline:
        raise typer.BadParameter("give --online or --offline, or neither for both")
    known = _read(load_for_running_system(config, overrides, data_dir))
    found = [known[client_id] for client_id in (clients or sorted(known)) if client_id in known]
    if online or offline:
        found = [client for client in found if client.is_online is online]
    missing = [client_id for client_id in clients or () if client_id not in known]
    if json:
        write_json(map(_document, found))
    elif found:
        columns = ("client_id", "status", "since", "gateway", "protocol", "session_ends", "reason")
        write_table(columns, map(_row, found))
    if missing:
        say(f"no session: {', '.join(missing)}", err=True)
    elif not found:
        kind = "is online" if online else "is offline with a session" if offline else "is connected or has a session"
        say(f"no client {kind}", err=True)


def _read(settings: "Settings") -> "dict[str, ClientPresence]":
    from inflight.cli.kafka_contact import require_kafka
    from inflight.cli.logs import configure_logging
    from inflight.presence import Presence
    from sinks.kafka.librdkafka import KafkaFailed
    from streaming.config.errors import KafkaUnreachable

    configure_logging()  # to standard error: standard output is for clients
    servers = settings.kafka.bootstrap_servers
    require_kafka(servers)
    try:
        with Presence(servers, topic=settings.topics.presence, kafka_options=settings.kafka.librdkafka_options()) as presence:
            return presence.read()
    except KafkaFailed as error:
        raise KafkaUnreachable.of(servers, error) from error


def _row(client: "ClientPresence") -> tuple[object, ...]:
    from streaming.history.times import shown_utc

    since, ends = shown_utc(client.since_ms), shown_utc(client.expires_ms)
    return (client.client_id, client.status, since, client.gateway, client.protocol or None, ends, client.reason or None)


def _document(client: "ClientPresence") -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(client)
    return document
