"""Several messages, all or nothing: a Kafka transaction.

The engine reads the messages after the commit, all of them or none, because it reads only what was committed. In a transaction
there are no attempts of ours: librdkafka repeats a request, and whatever goes further than that aborts. Everybody who reads those
partitions waits for an open transaction. So the messages are written at the end of the block, and a throttled client makes the
send raise at once instead of waiting.
"""

import threading
import time
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Producer

from inflight.keywords import checked
from inflight.producer.generation import connection_config, record_config
from inflight.producer.message import MessageRecord, build_content, build_message, build_publication
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import (
    Attempt,
    Cause,
    SendFailed,
    SendFuture,
    SendResult,
    TransactionFailed,
    named,
    too_many_requests,
)
from inflight.producer.settings import ProducerSettings
from inflight.producer.worker import Worker
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client, reason_of
from state.model import ClientId
from state.records.throttle import EVERYBODY

_ABORT_S: Final = 10.0
_LEAST_S: Final = 0.05
_GROUP_LINGER_MS: Final = 2
_NOT_OPEN: Final = "the transaction is not open: use it in a `with` block, once"


class TransactionRunner:
    """Has the transactional client of one `Producer`, made when it is first needed. One transaction runs at a time.

    Its `transactional.id` stays the same, so a new client ends whatever an older one has left open.
    """

    def __init__(self, bootstrap_servers: str, settings: ProducerSettings, worker: Worker, metrics: ProducerMetrics) -> None:
        self.settings = settings
        self.worker = worker
        self.metrics = metrics
        self.turn = threading.Lock()
        self._client: Any = None
        self._errors = ClientErrors()
        config = {
            **(connection := connection_config(settings)),
            **record_config(settings),
            "transactional.id": settings.transactional_id or f"inflight-producer-{uuid4()}",
            "transaction.timeout.ms": settings.transaction_timeout_ms,
            "socket.timeout.ms": min(connection["socket.timeout.ms"], settings.transaction_timeout_ms - 100),
            "linger.ms": _GROUP_LINGER_MS,
            "partitioner": "murmur2_random",  # Kafka's own, as sinks/kafka/partitioning.py
        }
        self._config = client_config(bootstrap_servers, settings.kafka_options, self._errors, config)

    def begin(self, timeout_s: float | None) -> "Transaction":
        seconds = self.settings.transaction_timeout_ms / 1_000 if timeout_s is None else timeout_s
        return Transaction(self, time.monotonic() + seconds)

    def client(self, timeout_s: float) -> Any:
        """Opens or returns the client. Blocks while Kafka does not answer. Raises KafkaFailed."""
        if self._client is None:
            self.worker.learn_throttles()
            client = new_client(Producer, self._config)
            try:
                client.init_transactions(timeout_s)
            except KafkaException as error:
                client.poll(0)
                raise self._errors.failed("the transactional id is not confirmed", error) from error
            self._client = client
        return self._client

    def discard(self) -> None:
        """The client is not usable any more: the next transaction opens another, and Kafka then ends what this one left."""
        client, self._client = self._client, None
        if client is not None:
            client.purge(blocking=False)
            # The last reference goes with the thread: librdkafka closes its connections then, which may take seconds.
            threading.Thread(target=client.poll, args=(0,), name="inflight-transaction-end", daemon=True).start()

    def close(self) -> None:
        """Waits for a running transaction, which needs the Kafka client until its end, and then discards the client."""
        if self.turn.acquire(timeout=_ABORT_S):
            try:
                self.discard()
            finally:
                self.turn.release()


class Transaction:
    """Use it in a `with`, once. See `Producer.transaction`."""

    def __init__(self, runner: TransactionRunner, deadline_s: float) -> None:
        self._runner = runner
        self._deadline_s = deadline_s
        self._client: Any = None
        self._sends: list[tuple[str, MessageRecord, float, Future[SendResult]]] = []

    @checked(build_content)
    def send(self, client_id: ClientId, topic: str, payload: bytes | str, **options: Any) -> "Future[SendResult]":
        """Adds a message; arguments of `Producer.send` without timeout_s. The future ends with the transaction.

        Raises InvalidMessage; SendFailed (530) at once for a throttled client: leave the block, wait, and run it again.
        """
        settings = self._runner.settings
        return self._add(settings.topic, build_message(client_id, topic, payload, settings=settings, **options), client_id)

    @checked(build_content)
    def publish(self, topic: str, payload: bytes | str, **options: Any) -> "Future[SendResult]":
        """Adds a publication; arguments of `Producer.publish` without timeout_s. As `send`, throttled only if all clients are."""
        settings = self._runner.settings
        message = build_publication(topic, payload, settings=settings, **options)
        return self._add(settings.publications_topic, message, EVERYBODY)

    def _add(self, kafka_topic: str, message: MessageRecord, throttled_as: str) -> "Future[SendResult]":
        if self._client is None:
            raise TransactionFailed(_NOT_OPEN)
        runner = self._runner
        throttle = runner.worker.throttles.of(throttled_as)
        if throttle is not None:
            runner.metrics.failed(Cause.THROTTLED)
            raise SendFailed(
                "its client is throttled, and a transaction does not wait",
                client_id=message.client_id,
                message_id=message.message_id,
                attempts=(Attempt(round(time.time() * 1_000), 0, Cause.THROTTLED, too_many_requests(throttle.reason)),),
                cause=Cause.THROTTLED,
            )
        future = SendFuture(named(message.client_id, message.message_id))
        future.set_running_or_notify_cancel()
        self._sends.append((kafka_topic, message, time.time(), future))
        return future

    def __enter__(self) -> Self:
        runner = self._runner
        if not runner.turn.acquire(timeout=self._left_s()):
            raise TransactionFailed("another transaction of this producer ran until the deadline")
        try:
            self._client = runner.client(self._left_s())
        except BaseException as error:
            runner.turn.release()
            if isinstance(error, KafkaFailed):
                raise TransactionFailed(f"it could not be opened ({error})") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        client, self._client = self._client, None
        if client is None:
            raise TransactionFailed(_NOT_OPEN)
        try:
            if error is not None:
                self._fail("aborted", TransactionFailed(f"aborted because of {type(error).__name__}: {error}"))
            else:
                self._commit(client)
        finally:
            self._runner.turn.release()

    def _commit(self, client: Any) -> None:
        """1. every record is confirmed; 2. the commit is; 3. the futures learn of it."""
        reports: dict[int, Any] = {}
        try:
            self._write(client, reports)  # step 1
        except (KafkaException, BufferError) as error:
            failure = TransactionFailed(f"aborted because a message was not confirmed ({reason_of(error)})")
            self._abort(client)
            self._fail("aborted", failure)
            raise failure from error
        try:
            client.commit_transaction(self._left_s())  # step 2
        except KafkaException as error:
            self._commit_failed(client, error)
        self._runner.metrics.transactions.labels("committed").inc()
        for number, (_, message, started_s, future) in enumerate(self._sends):  # step 3
            self._runner.metrics.sends.inc()
            attempt = Attempt(round(started_s * 1_000), round((time.time() - started_s) * 1_000))
            report = reports[number]
            future.set_result(SendResult(message.message_id, report.topic(), report.partition(), report.offset(), (attempt,)))

    def _write(self, client: Any, reports: dict[int, Any]) -> None:
        """Writes all records, and keeps the reports of those that are confirmed. Raises KafkaException, also at the deadline."""
        errors = [KafkaError(KafkaError._TIMED_OUT)]

        def keep(number: int, error: KafkaError | None, report: Any) -> None:
            if error is None:
                reports[number] = report
            else:
                errors.append(error)

        client.begin_transaction()
        for number, (topic, message, _, _) in enumerate(self._sends):
            client.produce(topic, message.value, message.key, on_delivery=partial(keep, number), headers=message.headers)
        client.flush(self._left_s())
        if len(reports) < len(self._sends):
            raise KafkaException(errors[-1])

    def _commit_failed(self, client: Any, error: KafkaException) -> None:
        """Raises TransactionFailed."""
        cause = error.args[0]
        if cause.txn_requires_abort():
            failure = TransactionFailed(f"aborted because the commit was refused ({cause.str()})")
            self._abort(client)
            self._fail("aborted", failure)
        else:
            failure = TransactionFailed(f"the commit was not confirmed ({cause.str()})", may_be_committed=True)
            self._runner.discard()
            self._fail("in_doubt", failure)
        raise failure from error

    def _abort(self, client: Any) -> None:
        """A client that cannot even abort is thrown away: the coordinator aborts instead, at once or by time-out."""
        try:
            client.abort_transaction(max(1.0, min(_ABORT_S, self._left_s())))
        except KafkaException:
            self._runner.discard()

    def _fail(self, outcome: str, failure: TransactionFailed) -> None:
        self._runner.metrics.transactions.labels(outcome).inc()
        for *_, future in self._sends:
            future.set_exception(failure)

    def _left_s(self) -> float:
        return max(_LEAST_S, self._deadline_s - time.monotonic())
