"""Implements `send`: messages to named clients, by the Producer (docs/guides/producer.md). `publish` has most of its options."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from streaming.terminal import say

if TYPE_CHECKING:
    from streaming.config.settings import Settings


Payload: TypeAlias = Annotated[
    str | None, typer.Option("--payload", help="The payload as text; without it and --file: standard input.")
]
File: TypeAlias = Annotated[Path | None, typer.Option("--file", exists=True, dir_okay=False, help="The payload as a file.")]
Lines: TypeAlias = Annotated[bool, typer.Option("--lines", help="Each line of --file or standard input is a message.")]
Count: TypeAlias = Annotated[
    int, typer.Option("--count", min=1, help="Send the payload this many times, each a message of its own.")
]
QoS: TypeAlias = Annotated[int, typer.Option("--qos", min=0, max=2)]
Expiration: TypeAlias = Annotated[
    str | None, typer.Option("--expiration", metavar="DURATION", help="Time to live, e.g. 30s; a bare number is ms.")
]
DeliverAt: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--deliver-at", metavar="TIME", help="Not before: 2030-01-31T08:00:00Z, ms since 1970, or +30s (ms, s, m, h, d)."
    ),
]
CollapseKey: TypeAlias = Annotated[
    str | None, typer.Option("--collapse-key", metavar="KEY", help="Replaces messages with this key that still wait.")
]
Priority: TypeAlias = Annotated[int | None, typer.Option("--priority", min=0, max=255, help="Higher goes first.")]
Header: TypeAlias = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Any other header. Repeatable.")
]
Attempts: TypeAlias = Annotated[
    int, typer.Option("--attempts", min=1, help="Attempts for each message; more of them outlast longer throttling.")
]
Timeout: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long each message may take; default: 30s, and longer while its client is connected and catches up.",
    ),
]
Kafka: TypeAlias = Annotated[
    str | None,
    typer.Option("--kafka", metavar="HOST:PORT", help="Default: the running `inflight up`, else the configuration."),
]


def send(
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="The MQTT client id. With --client or --clients-file, TOPIC stands here.")
    ],
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The MQTT topic of the message.")] = None,
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="CLIENT", help="One of many clients. Repeatable.")
    ] = None,
    clients_file: Annotated[
        Path | None, typer.Option("--clients-file", exists=True, dir_okay=False, help="Many clients: one id a line.")
    ] = None,
    payload: Payload = None,
    file: File = None,
    lines: Lines = False,
    count: Count = 1,
    qos: QoS = 1,
    retain: Annotated[bool, typer.Option("--retain", help="Set the RETAIN flag.")] = False,
    message_id: Annotated[
        str | None,
        typer.Option(help="A repeated id is one message, for the last ids. Many messages get PREFIX-0, PREFIX-1 and so on."),
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
    """Send a message to a client, or to many; print its message id when Kafka has confirmed it (all in-sync replicas).

    Failures are retried, and throttling is waited for. --lines or --count send many messages, show the progress, and print how
    many were sent. With --client or --clients-file each client gets the message, under the same message id.
    """
    check_payload_options(payload, file, lines=lines, count=count)
    many = lines or count > 1
    named = _clients(client, topic, clients, clients_file)
    if topic is None and many:
        raise typer.BadParameter("--lines and --count send many messages to one client: give one CLIENT and a TOPIC")
    common = {
        "topic": client if topic is None else topic,
        **arguments_of(qos, retain, priority, expiration, header, deliver_at=deliver_at, collapse_key=collapse_key),
    }
    timeout_ms = timeout_of(timeout)
    settings = settings_of(kafka, config, overrides, data_dir)
    payloads = payloads_of(payload, file, lines=lines, count=count)

    from inflight.cli.send_display import send_messages, send_to_clients  # Kafka and rich

    if topic is None:
        message = {**common, "payload": payloads[0], "message_id": message_id}
        say(send_to_clients(settings, named, message, attempts=attempts, timeout_ms=timeout_ms))
        return
    messages = list(numbered(payloads, message_id, {"client_id": client, **common}, many=many))
    say(send_messages(settings, messages, attempts=attempts, timeout_ms=timeout_ms, show_progress=many))


def cancel(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")],
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message id, as `inflight send` prints it.")],
    attempts: Attempts = 3,
    timeout: Timeout = None,
    kafka: Kafka = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Take a message back that was not sent to the client yet. Its receipt then says cancelled.

    The engine decides: what it has sent already is delivered. `inflight trace ID` shows which it was.
    """
    timeout_ms = timeout_of(timeout)
    settings = settings_of(kafka, config, overrides, data_dir)

    from inflight.cli.send_display import cancel_message  # Kafka and rich

    say(cancel_message(settings, client, message_id, attempts=attempts, timeout_ms=timeout_ms))


def _clients(client: str, topic: str | None, clients: list[str] | None, clients_file: Path | None) -> list[str]:
    """Returns the clients; without --client and --clients-file the only one is CLIENT."""
    if clients is None and clients_file is None:
        if topic is None:
            raise typer.BadParameter("give CLIENT and TOPIC, or TOPIC and --client or --clients-file")
        return [client]
    if topic is not None:
        raise typer.BadParameter("with --client or --clients-file give only TOPIC")
    try:
        lines = [] if clients_file is None else clients_file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"--clients-file {clients_file} is not UTF-8: {error.reason} at byte {error.start}") from None
    named = [*(clients or ()), *(line for line in lines if line)]
    if not named:
        raise typer.BadParameter(f"--clients-file {clients_file} names no client: write one id a line")
    return named


def check_payload_options(payload: str | None, file: Path | None, *, lines: bool, count: int) -> None:
    if payload is not None and file is not None:
        raise typer.BadParameter("give --payload or --file, not both")
    if lines and (payload is not None or count > 1):
        raise typer.BadParameter("--lines takes the messages from --file or standard input: give no --payload and no --count")


def arguments_of(
    qos: int,
    retain: bool,
    priority: int | None,
    expiration: str | None,
    header: list[str] | None,
    *,
    deliver_at: str | None,
    collapse_key: str | None,
) -> dict[str, Any]:
    """Returns options as arguments of the Producer."""
    return {
        "qos": qos,
        "retain": retain,
        "priority": priority,
        "deliver_at": deliver_at,
        "collapse_key": collapse_key,
        **({} if expiration is None else {"expiration_ms": duration_ms("--expiration", expiration)}),
        **_from_headers(header or ()),
    }


def settings_of(kafka: str | None, config: Path | None, overrides: list[str] | None, data_dir: Path | None) -> "Settings":
    """Returns the settings of the running system, with the Kafka of --kafka."""
    theirs = [] if kafka is None else [f"kafka.bootstrap_servers={kafka}"]
    return load_for_running_system(config, [*(overrides or ()), *theirs], data_dir)


def payloads_of(payload: str | None, file: Path | None, *, lines: bool, count: int) -> list[bytes]:
    """Returns the payload of each message, from the options or standard input."""
    if payload is not None:
        content = payload.encode()
    elif file is not None:
        content = file.read_bytes()
    else:
        content = sys.stdin.buffer.read()
    return content.splitlines() if lines else [content] * count


def numbered(payloads: list[bytes], message_id: str | None, common: dict[str, Any], *, many: bool) -> Iterator[dict[str, Any]]:
    """Yields the arguments of each message."""
    for number, payload in enumerate(payloads, 1):
        given = message_id if message_id is None or not many else f"{message_id}-{number}"
        yield {**common, "payload": payload, "message_id": given}


def timeout_of(timeout: str | None) -> int | None:
    """Returns --timeout in milliseconds; None = it is not given."""
    return None if timeout is None else duration_ms("--timeout", timeout)


def duration_ms(option: str, text: str) -> int:
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
