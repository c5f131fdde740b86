"""Implements `send`: messages to one client, by the Producer (docs/producer.md)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from streaming.terminal import say


def send(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The MQTT topic of the message.")],
    payload: Annotated[str | None, typer.Option(help="The payload as text; without it and --file: standard input.")] = None,
    file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="The payload as a file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of --file or standard input is a message.")] = False,
    count: Annotated[int, typer.Option(min=1, help="Send the payload this many times, each a message of its own.")] = 1,
    qos: Annotated[int, typer.Option(min=0, max=2)] = 1,
    retain: Annotated[bool, typer.Option("--retain", help="Set the RETAIN flag.")] = False,
    message_id: Annotated[
        str | None,
        typer.Option(help="A repeated id within the deduplication window is one message. Of many messages: their prefix."),
    ] = None,
    expiration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time to live, e.g. 30s; a bare number is ms.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=255, help="Higher goes first.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any other header. Repeatable.")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each message; more of them outlast longer throttling.")] = 3,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long each message may take.")] = "30s",
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Default: the running `inflight up`, else the configuration.")
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Send a message to a client; print its message id when Kafka has confirmed it (all in-sync replicas).

    Failures are retried, and throttling is waited for. --lines or --count send many messages, show the progress, and print how
    many were sent.
    """
    if payload is not None and file is not None:
        raise typer.BadParameter("give --payload or --file, not both")
    if lines and (payload is not None or count > 1):
        raise typer.BadParameter("--lines takes the messages from --file or standard input: give no --payload and no --count")
    common = {
        "client_id": client,
        "topic": topic,
        "qos": qos,
        "retain": retain,
        "priority": priority,
        **({} if expiration is None else {"expiration_ms": _duration_ms("--expiration", expiration)}),
        **_from_headers(header or ()),
    }
    timeout_ms = _duration_ms("--timeout", timeout)
    settings = load_for_running_system(
        config, [*(overrides or ()), *([] if kafka is None else [f"kafka.bootstrap_servers={kafka}"])], data_dir
    )
    if payload is not None:
        content = payload.encode()
    elif file is not None:
        content = file.read_bytes()
    else:
        content = sys.stdin.buffer.read()
    payloads = content.splitlines() if lines else [content] * count

    from inflight.cli.send_display import send_messages  # Kafka and rich

    many = lines or count > 1
    messages = list(_numbered(payloads, message_id, common, many=many))
    output = send_messages(settings, messages, attempts=attempts, timeout_ms=timeout_ms, show_progress=many)
    say(output)


def _numbered(payloads: list[bytes], message_id: str | None, common: dict[str, Any], *, many: bool) -> Iterator[dict[str, Any]]:
    for number, payload in enumerate(payloads, 1):
        given = message_id if message_id is None or not many else f"{message_id}-{number}"
        yield {**common, "payload": payload, "message_id": given}


def _duration_ms(option: str, text: str) -> int:
    from streaming.config.units import parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is {error}") from None


def _from_headers(texts: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Returns --header NAME=VALUE as arguments of the Producer, which has one for each header of the contract."""
    from state.records import messages as contract
    from state.records.properties import PROPERTIES, USER_PROPERTIES, PropertyKind

    properties = {row.header: row for row in PROPERTIES}
    arguments: dict[str, Any] = {}
    others: list[tuple[str, str]] = []
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"--header {text}: write NAME=VALUE")
        if name in (contract.DEAD_LETTER_EXCHANGE, contract.DEAD_LETTER_ROUTING_KEY):
            arguments[name.removeprefix("x-").replace("-", "_")] = value
        elif name in (contract.CC, contract.BCC):
            arguments[name.lower()] = _json(name, value)
        elif name.startswith(USER_PROPERTIES.header):
            pairs.append((name.removeprefix(USER_PROPERTIES.header), value))
        elif (row := properties.get(name)) is not None:
            is_text = row.kind in (PropertyKind.TEXT, PropertyKind.TOPIC_NAME)
            arguments[row.field] = value if is_text else value.encode() if row.kind is PropertyKind.BINARY else _json(name, value)
        else:
            others.append((name, value))
    return arguments | {"headers": others, USER_PROPERTIES.field: pairs}


def _json(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise typer.BadParameter(f"--header {name}={value}: the value is not JSON") from None
