"""Sends messages with the Producer and shows the progress, for `inflight send` and `inflight publish`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inflight import Cause, InvalidMessage, Producer, ProducerSettings, SendFailed, SendResult, SomeSendsFailed
from inflight.cli.kafka_contact import say_if_kafka_is_away
from inflight.cli.logs import configure_logging
from state.errors import InflightError
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.terminal import console

_SHOWN_FAILURES: Final = 3
_ATTEMPTS_SHARE: Final = 3
_TIMEOUT_MS: Final = 30_000
_LEAST_TIMEOUT_MS: Final = 100


class SomeNotSent(InflightError):
    """Some messages were not sent although Kafka answers."""


def send_messages(
    settings: Settings,
    messages: Sequence[Mapping[str, Any]],
    *,
    attempts: int,
    timeout_ms: int | None,
    show_progress: bool,
    are_published: bool = False,
) -> str:
    """Sends or publishes all messages.

    Args:
        messages: Arguments of `Producer.send`, or of `Producer.publish`, for each message.
        timeout_ms: How long each may take; None = 30 s, without the time in which its client is connected and behind.

    Returns:
        The text to print: the id of a single message, or a summary.

    Raises:
        InvalidMessage: A single message is invalid.
        KafkaUnreachable: Nothing was sent.
        SomeNotSent: Some messages were not sent.
    """
    outcomes: list[SendResult | SendFailed | InvalidMessage] = []
    with (
        _producer(settings, attempts=attempts, timeout_ms=timeout_ms) as producer,
        _progress(show_progress, len(messages)) as count_outcome,
    ):
        begin = partial(producer.publish_async if are_published else producer.send_async, timeout_s=_seconds(timeout_ms))
        for outcome in _outcomes(begin, messages):
            outcomes.append(outcome)
            count_outcome(outcome)
    _check(outcomes, settings)
    if not show_progress and isinstance(outcomes[0], SendResult):
        return outcomes[0].message_id
    return _summary(outcomes)


def send_to_clients(
    settings: Settings, clients: Sequence[str], message: Mapping[str, Any], *, attempts: int, timeout_ms: int | None
) -> str:
    """Sends a message to all clients.

    Args:
        message: Further arguments of `Producer.send_many`.

    Returns, Raises:
        As `send_messages`.
    """
    with _producer(settings, attempts=attempts, timeout_ms=timeout_ms) as producer:
        try:
            return producer.send_many(clients, **message, timeout_s=_seconds(timeout_ms))[0].message_id
        except SomeSendsFailed as failure:
            _check(failure.outcomes, settings)
            raise


def cancel_message(settings: Settings, client_id: str, message_id: str, *, attempts: int, timeout_ms: int | None) -> str:
    """Asks the engine to take a message back. Returns the text to print. Raises as `send_messages` for a single message."""
    with _producer(settings, attempts=attempts, timeout_ms=timeout_ms) as producer:
        try:
            producer.cancel(client_id, message_id, timeout_s=_seconds(timeout_ms))
        except SendFailed as failure:
            _check([failure], settings)
    return f"asked the session of {client_id} to take {message_id} back: inflight trace {message_id} shows what became of it"


def _check(outcomes: Sequence[SendResult | SendFailed | InvalidMessage], settings: Settings) -> None:
    """Raises what `send_messages` raises."""
    failures = [outcome for outcome in outcomes if not isinstance(outcome, SendResult)]
    if not failures:
        return
    first = failures[0]
    if len(failures) < len(outcomes):
        texts = "\n".join(str(failure) for failure in failures[:_SHOWN_FAILURES])
        raise SomeNotSent(f"{_summary(outcomes)}\n{texts}")
    if isinstance(first, InvalidMessage):
        raise first
    if first.cause is Cause.THROTTLED:
        raise SomeNotSent(f"{first}\nTo wait longer, use --attempts 100 --timeout 10m.")
    hint = "check that `inflight up` runs or that --kafka is right, and that the topic exists"
    raise KafkaUnreachable(f"{first}\n{settings.kafka.bootstrap_servers}: {hint}")


def producer_settings(settings: Settings) -> ProducerSettings:
    """Returns Producer settings for this installation: its topics, limits and Kafka login."""
    return ProducerSettings(
        topic=settings.topics.messages,
        publications_topic=settings.topics.publications,
        throttle_topic=settings.topics.throttle,
        receipts_topic=settings.topics.receipts,
        uplink_topic=settings.topics.uplink,
        max_payload_bytes=settings.engine.max_payload_bytes,
        max_headers_bytes=settings.engine.max_headers_bytes,
        max_routing_keys=settings.engine.max_routing_keys,
        max_client_id_bytes=settings.gateway.max_client_id_bytes,
        kafka_options=settings.kafka.librdkafka_options(),
    )


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else max(_LEAST_TIMEOUT_MS, timeout_ms) / 1_000


def _producer(settings: Settings, *, attempts: int, timeout_ms: int | None) -> Producer:
    allowed_ms = _TIMEOUT_MS if timeout_ms is None else timeout_ms
    configure_logging()  # to standard error: standard output is for message ids
    say_if_kafka_is_away(settings.kafka.bootstrap_servers, patience_ms=allowed_ms)
    return Producer(
        settings.kafka.bootstrap_servers,
        settings=producer_settings(settings),
        max_attempts=attempts,
        attempt_timeout_ms=max(1_000, allowed_ms // _ATTEMPTS_SHARE),
        deadline_ms=max(_LEAST_TIMEOUT_MS, allowed_ms),
    )


def _outcomes(
    begin: Callable[..., Future[SendResult]], messages: Sequence[Mapping[str, Any]]
) -> Iterator[SendResult | SendFailed | InvalidMessage]:
    """Yields the outcomes in the order of the messages, as soon as known. At most a thousand messages are sent at a time."""
    for start in range(0, len(messages), 1_000):
        futures: list[Future[SendResult] | InvalidMessage] = []
        for message in messages[start : start + 1_000]:
            try:
                futures.append(begin(**message))
            except InvalidMessage as refusal:
                futures.append(refusal)
        for future in futures:
            if isinstance(future, InvalidMessage):
                yield future
                continue
            error = future.exception()
            if error is None:
                yield future.result()
            elif isinstance(error, SendFailed):
                yield error
            else:
                raise error


@contextmanager
def _progress(shown: bool, total: int) -> Iterator[Any]:
    """Shows the progress on standard error, so that programs can read standard output."""
    counts = {"retried": 0, "failed": 0}

    def count(outcome: SendResult | SendFailed | InvalidMessage) -> None:
        if not isinstance(outcome, SendResult):
            counts["failed"] += 1
        elif len(outcome.attempts) > 1:
            counts["retried"] += 1

    if not shown:
        yield count
        return
    columns = (
        TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[remarks]}")
    )  # fmt: skip
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task("sending", total=total, remarks="")

        def show(outcome: SendResult | SendFailed | InvalidMessage) -> None:
            count(outcome)
            progress.update(task, advance=1, remarks=" ".join(f"{number} {name}" for name, number in counts.items() if number))

        yield show


def _summary(outcomes: Sequence[SendResult | SendFailed | InvalidMessage]) -> str:
    sent = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
    retried = sum(len(outcome.attempts) > 1 for outcome in sent)
    unknown = sum(isinstance(outcome, SendFailed) and outcome.may_be_sent for outcome in outcomes)
    parts = [f"{len(sent)} of {len(outcomes)} messages sent"]
    parts += [f"{retried} of them after a retry"] * bool(retried)
    parts += [f"{unknown} may have been sent"] * bool(unknown)
    return ", ".join(parts)
