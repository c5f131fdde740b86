"""`Producer`: sends messages to devices, with retry, backoff and throttling. What a backend sees; docs/producer.md explains it.

with Producer("127.0.0.1:9092") as producer:
    result = producer.send("thermostat-7", "commands/target", b"21.5", qos=2)
    print(result.partition, result.offset)
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from prometheus_client import REGISTRY, CollectorRegistry

from inflight.producer.capacity import Capacity
from inflight.producer.message import ExtraHeaders, MessageRecord, UserProperties, build_message
from inflight.producer.metrics import producer_metrics
from inflight.producer.model import Cause, InvalidMessage, SendFailed, SendResult, SomeSendsFailed
from inflight.producer.send_loop import Outcome
from inflight.producer.settings import ProducerSettings
from inflight.producer.transaction import Transaction, TransactionRunner
from inflight.producer.worker import Worker, now_ms
from inflight.running_up import kafka_of_running_up
from sinks.kafka.security.librdkafka_client import from_python_names
from state.errors import InflightError
from state.model import ClientId, MessageId


class ProducerClosed(InflightError):
    """`send` after `close`. Make a new Producer."""


class Producer:
    """Sends messages into Inflight. Thread-safe; make one for a process and keep it. Close it, or use it as a context manager.

    bootstrap_servers: `host:port`, several separated by commas; None = that of the `inflight up` that runs on `var/inflight` in
    the working directory, or on $INFLIGHT__ENGINE__DATA_DIR. settings: a ProducerSettings; single ones may be given as keyword
    arguments (`max_attempts=5`). registry: where the metrics go.

    The constructor does not wait for Kafka. Sends do, within their deadline. Raises NoRunningSystem without an address if nothing
    runs.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        settings: ProducerSettings | None = None,
        registry: CollectorRegistry = REGISTRY,
        **options: Any,
    ) -> None:
        bootstrap_servers = bootstrap_servers or kafka_of_running_up()
        settings = replace(settings or ProducerSettings(), **options)
        self._settings = settings = replace(settings, kafka_options=from_python_names(settings.kafka_options))
        self._metrics = producer_metrics(registry)
        self._capacity = Capacity(messages=settings.max_pending_messages, size_bytes=settings.max_pending_bytes)
        self._worker = Worker(bootstrap_servers, settings, self._metrics)
        self._transactions = TransactionRunner(bootstrap_servers, settings, self._worker, self._metrics)
        self._closing = threading.Lock()
        self._closed = False
        self._worker.start()

    def send(
        self,
        client_id: ClientId,
        topic: str,
        payload: bytes | str,
        *,
        qos: int = 1,
        retain: bool = False,
        message_id: MessageId | None = None,
        expiration_ms: int | None = None,
        priority: int | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        content_type: str | None = None,
        payload_format: int | None = None,
        user_properties: UserProperties = (),
        cc: Iterable[str] = (),
        bcc: Iterable[str] = (),
        dead_letter_exchange: str | None = None,
        dead_letter_routing_key: str | None = None,
        headers: ExtraHeaders = (),
        timeout_s: float | None = None,
    ) -> SendResult:
        """Sends one message, and waits until all in-sync replicas of Kafka have it.

        client_id: the MQTT client that gets it. topic: the MQTT topic name that it sees. payload: bytes, or text sent as UTF-8.
        message_id: yours, so that sending again is still one message; default: a new UUID, returned in the result.
        expiration_ms: dead-lettered if it has not been sent to the device within this; 0 = only if it can be sent at once.
        priority: 0…255, higher first. response_topic … user_properties: MQTT 5 properties.
        cc, bcc: more routing keys for its dead letter. dead_letter_exchange, dead_letter_routing_key: where that goes.
        headers: more Kafka headers, kept for the dead letter. timeout_s: deadline of the whole send; default `deadline_ms`.

        Raises InvalidMessage (nothing was sent), SendFailed (with every attempt), ProducerClosed.
        """
        arguments = locals()
        del arguments["self"]
        return self.send_async(**arguments).result()

    def send_async(
        self, client_id: ClientId, topic: str, payload: bytes | str, *, timeout_s: float | None = None, **options: Any
    ) -> "Future[SendResult]":
        """Sends one message without waiting: arguments of `send`. The future always ends, with a SendResult or with SendFailed.

        Blocks while `max_pending_messages` are under way (within the deadline). Callbacks of the future run on a
        thread that settles other sends, too: keep them short. Raises InvalidMessage, ProducerClosed.
        """
        if self._closed:
            raise ProducerClosed("the producer is closed: make a new one")
        message = build_message(client_id, topic, payload, settings=self._settings, **options)
        allowed_ms = self._settings.deadline_ms if timeout_s is None else timeout_s * 1_000
        deadline_ms = now_ms() + allowed_ms
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()  # what is under way cannot be taken back
        # A callback of a future must not wait, because its thread completes other futures, too.
        patience_s = 0.0 if self._worker.is_settling_here else allowed_ms / 1_000
        if not self._capacity.reserve(message.size_bytes, patience_s):
            self._metrics.failed(Cause.TIME_OUT)
            future.set_exception(_too_many(message, self._settings))
            return future
        self._metrics.pending.inc()

        def settle(outcome: Outcome) -> None:
            self._capacity.release(message.size_bytes)
            self._metrics.pending.dec()
            if isinstance(outcome, SendFailed):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._worker.submit(message, deadline_ms, settle)
        return future

    def send_many(self, messages: Iterable[Mapping[str, Any]], *, timeout_s: float | None = None) -> list[SendResult]:
        """Sends many messages, and waits for all: each element has the arguments of `send` by name. Results are in the same
        order.

        timeout_s: of each message. Raises SomeSendsFailed, which has the outcome of every message, when one or more failed; an
        InvalidMessage is such an outcome too and stops nothing.
        """
        futures: list[Future[SendResult] | InvalidMessage] = []
        for arguments in messages:
            try:
                futures.append(self.send_async(**{"timeout_s": timeout_s, **arguments}))
            except InvalidMessage as refusal:
                futures.append(refusal)
        outcomes = [_outcome(future) for future in futures]
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(outcomes):
            raise SomeSendsFailed(outcomes)
        return results

    def transaction(self, *, timeout_s: float | None = None) -> Transaction:
        """Sends all or nothing: `with producer.transaction() as transaction: transaction.send(…)` commits at the end of the
        block.

        An exception in the block, a throttled client or a failed send aborts it, and nothing of it is delivered. One transaction
        of a producer runs at a time; another thread waits for it. timeout_s: from here to the confirmed commit; default
        `transaction_timeout_ms`. Raises TransactionFailed, and whatever the block raises.
        """
        if self._closed:
            raise ProducerClosed("the producer is closed: make a new one")
        return self._transactions.begin(timeout_s)

    def throttled(self, client_id: ClientId) -> str | None:
        """Says why this client is throttled now, as far as is known; None = it is not."""
        throttle = self._worker.throttles.of(client_id)
        return None if throttle is None else throttle.reason or "throttled"

    def close(self, timeout_s: float = 10.0) -> None:
        """Waits up to timeout_s for what is under way. Every future has ended when this returns. May be called twice."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._transactions.close()
            self._worker.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _outcome(future: "Future[SendResult] | InvalidMessage") -> SendResult | SendFailed | InvalidMessage:
    if isinstance(future, InvalidMessage):
        return future
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, SendFailed):
        return error
    raise error


def _too_many(message: MessageRecord, settings: ProducerSettings) -> SendFailed:
    return SendFailed(
        f"no room among the unconfirmed messages before its deadline ({settings.max_pending_messages} messages, "
        f"{settings.max_pending_bytes} bytes: max_pending_messages, max_pending_bytes)",
        client_id=message.client_id,
        message_id=message.message_id,
        cause=Cause.TIME_OUT,
    )
