"""The command `send`: one message to one client, by the public contract of `inflight.messages`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.options import Config, DataDir, Overrides, load_beside


def send(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The MQTT topic that the device shall see.")],
    payload: Annotated[str | None, typer.Option(help="The payload as text; without it and --file: standard input.")] = None,
    file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="The payload as a file.")] = None,
    qos: Annotated[int, typer.Option(min=0, max=2)] = 1,
    retain: Annotated[bool, typer.Option("--retain", help="Set the RETAIN flag.")] = False,
    message_id: Annotated[str | None, typer.Option(help="A repetition of it within the deduplication window is one message.")] = None,
    expiration: Annotated[str | None, typer.Option(metavar="DURATION", help="Time to live, e.g. 30s; a bare number is ms.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=255, help="Higher goes first.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any other header. Repeatable.")] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Default: the running `inflight up`, else the configuration.")
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Send a message to a client; prints its message id when Kafka has confirmed it (all in-sync replicas)."""
    from streaming.units import parse_duration_ms

    if payload is not None and file is not None:
        raise typer.BadParameter("give --payload or --file, not both")
    headers = [("mqtt-topic", topic.encode()), ("mqtt-qos", b"%d" % qos)]
    if retain:
        headers.append(("mqtt-retain", b"true"))
    if message_id is not None:
        headers.append(("message-id", message_id.encode()))
    if expiration is not None:
        try:
            headers.append(("expiration", b"%d" % parse_duration_ms(expiration)))
        except ValueError as error:
            raise typer.BadParameter(f"--expiration is {error}") from None
    if priority is not None:
        headers.append(("priority", b"%d" % priority))
    for text in header or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"--header {text}: write NAME=VALUE")
        headers.append((name, value.encode()))

    settings = load_beside(config, [*(overrides or ()), *([] if kafka is None else [f"kafka.bootstrap_servers={kafka}"])], data_dir)
    if payload is not None:
        content = payload.encode()
    elif file is not None:
        content = file.read_bytes()
    else:
        content = sys.stdin.buffer.read()
    position = _append(settings.kafka.client_options(), settings.topics.messages, client, content, headers)
    typer.echo(message_id or position)


def _append(options: dict[str, object], topic: str, client: str, content: bytes, headers: list[tuple[str, bytes]]) -> str:
    """The record's position, `topic-partition-offset`, which is its message id when it has no other. Raises KafkaUnreachable."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    from streaming.errors import KafkaUnreachable

    try:
        producer = KafkaProducer(acks="all", enable_idempotence=True, client_id="inflight-send", **options)
        try:
            written = producer.send(topic, key=client.encode(), value=content, headers=headers).get(timeout=60)
        finally:
            producer.close(timeout=5)
    except KafkaError as error:
        raise KafkaUnreachable(
            f"the message was not confirmed: {type(error).__name__}: {error}. Kafka at {options['bootstrap_servers']} and its topic {topic} "
            "have to be there: is `inflight up` running, or --kafka right? Send it again with the same --message-id to avoid a repetition."
        ) from error
    return f"{written.topic}-{written.partition}-{written.offset}"
