"""Implements `publish` (docs/guides/producer.md) and `subscriptions`: for messages that name a topic and no client."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inflight.cli.history import Json
from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from inflight.cli.sending import (
    Attempts,
    CollapseKey,
    Count,
    DeliverAt,
    Expiration,
    File,
    Header,
    Kafka,
    Lines,
    Payload,
    Priority,
    QoS,
    Timeout,
    arguments_of,
    check_payload_options,
    numbered,
    payloads_of,
    settings_of,
    timeout_of,
)
from state.errors import InflightError
from streaming.terminal import counted, say, write_json, write_table

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.history.subscriptions import Subscriber

_PATIENCE_S: Final = 15.0
_MOST_SESSIONS: Final = 100_000


class RoutingOff(InflightError):
    """Nobody routes."""


def publish(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The MQTT topic; its subscribers get the message.")],
    payload: Payload = None,
    file: File = None,
    lines: Lines = False,
    count: Count = 1,
    key: Annotated[str | None, typer.Option(help="Publications with the same key keep their order; default: the topic.")] = None,
    qos: QoS = 1,
    retain: Annotated[
        bool, typer.Option("--retain", help="Later subscribers get it, too; an empty payload removes what is retained.")
    ] = False,
    message_id: Annotated[
        str | None,
        typer.Option(help="A client drops a repeated id. Many messages get PREFIX-0, PREFIX-1 and so on."),
    ] = None,
    expiration: Expiration = None,
    deliver_at: DeliverAt = None,
    collapse_key: CollapseKey = None,
    priority: Priority = None,
    header: Header = None,
    attempts: Attempts = 3,
    timeout: Timeout = None,
    kafka: Kafka = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Publish a message to all subscribers of a topic; print its message id when Kafka has confirmed it.

    `inflight subscriptions --topic` shows who will get it, `inflight trace ID` who got it.
    """
    check_payload_options(payload, file, lines=lines, count=count)
    common = {
        "topic": topic,
        "key": key,
        **arguments_of(qos, retain, priority, expiration, header, deliver_at=deliver_at, collapse_key=collapse_key),
    }
    timeout_ms = timeout_of(timeout)
    settings = settings_of(kafka, config, overrides, data_dir)
    _check_routing(settings, "so nobody would get the message (`inflight send` names clients)")
    payloads = payloads_of(payload, file, lines=lines, count=count)

    from inflight.cli.send_display import send_messages  # Kafka and rich

    many = lines or count > 1
    messages = list(numbered(payloads, message_id, common, many=many))
    say(send_messages(settings, messages, attempts=attempts, timeout_ms=timeout_ms, show_progress=many, are_published=True))


def subscriptions(
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Who would get a message of this topic now.")] = None,
    client: Annotated[str | None, typer.Option(metavar="CLIENT", help="What this client subscribes to.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show who subscribes to a topic, or the subscriptions of a client, as the matchers know them."""
    from sinks.mqtt_topics import is_topic_name

    if (topic is None) == (client is None):
        raise typer.BadParameter("give --topic TOPIC or --client CLIENT")
    if topic is not None and not is_topic_name(topic):
        raise typer.BadParameter(f"--topic {topic}: a topic name is allowed: not empty, without # and +")
    settings = load_for_running_system(config, overrides, data_dir)
    _check_routing(settings, "so gateways write no subscriptions (`inflight client CLIENT` counts those of a session)")
    found = _with_connections(settings, _found(settings, topic, client))
    if json:
        write_json(one.as_json() for one in found)
        return
    columns = ("client_id", "filter", "qos", "group", "online", "identifier", "options")
    write_table(columns, map(_row, found))
    say(_summary(found, topic, client), err=True)


def _found(settings: "Settings", topic: str | None, client: str | None) -> "list[Subscriber]":
    from streaming.history.subscriptions import read_subscriptions, subscribers_of, subscriptions_of

    table = read_subscriptions(settings, lambda done, total: None, client_id=client)
    if client is not None:
        return list(subscriptions_of(table, client))
    return subscribers_of(table, topic or "")


def _with_connections(settings: "Settings", found: "list[Subscriber]") -> "list[Subscriber]":
    """Returns the same with what the engine says of the clients' connections, if one answers here."""
    from inflight.local.spark_jars import spark_jars
    from streaming.engine.answers.asking import EngineBusy
    from streaming.history.live_sessions import LiveSessions

    if not found:
        return found
    clients = {one.client_id for one in found}
    prefix = clients.pop() if len(clients) == 1 else ""
    try:
        answer = LiveSessions(settings, spark_jars).ask("sessions", timeout_s=_PATIENCE_S, limit=_MOST_SESSIONS, prefix=prefix)
    except EngineBusy:
        return found
    sessions: Iterable[dict[str, Any]] = () if answer is None else answer["sessions"]
    connected = {session["client_id"]: bool(session["connected"]) for session in sessions}
    return [replace(one, is_online=connected.get(one.client_id)) for one in found]


def _row(one: "Subscriber") -> tuple[object, ...]:
    options = [name for name, is_set in (("no local", one.no_local), ("retain as published", one.retain_as_published)) if is_set]
    online = None if one.is_online is None else "yes" if one.is_online else "no"
    return (one.client_id, one.topic_filter, one.qos, one.group or None, online, one.identifier, ", ".join(options) or None)


def _summary(found: "list[Subscriber]", topic: str | None, client: str | None) -> str:
    if client is not None:
        return f"{client} has {counted(len(found), 'subscription')}"
    clients = len({one.client_id for one in found if not one.group})
    groups = len({(one.group, one.topic_filter) for one in found if one.group})
    members = f", and one member of each of {counted(groups, 'shared subscription')}" if groups else ""
    return f"{counted(clients, 'client')} would get a message of {topic}{members}"


def _check_routing(settings: "Settings", consequence: str) -> None:
    """Raises RoutingOff."""
    if not settings.routing.enabled:
        raise RoutingOff(
            f"nobody routes: routing.enabled is false, {consequence}. Set routing.enabled = true, and start engine and gateways "
            "again. If those of another machine route, give this command their --config, or --set routing.enabled=true."
        )
