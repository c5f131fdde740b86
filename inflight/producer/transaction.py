"""Transactions: several messages, for several clients, that are delivered all or not at all.

Kafka's own transactions, on a producer of their own. The engine reads only what was committed. Inside a transaction there are no
attempts of ours: kafka-python repeats a record within the transaction, and whatever goes further than that aborts it. Throttling
is no wait in here either, because everybody who reads those partitions waits for an open transaction: the send raises at once.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from kafka import KafkaProducer
from kafka.errors import KafkaError

from inflight.producer.generation import abandon_soon, client_config
from inflight.producer.message import MessageRecord, build_message
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Attempt, Cause, SendFailed, SendResult, TransactionFailed, too_many_requests
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleTable
from state.model import ClientId

_ABORT_S: Final = 10.0
_MIN_STEP_S: Final = 0.05
_NOT_OPEN: Final = "the transaction is not open: use it in a `with` block, once"
_T = TypeVar("_T")


class TransactionRunner:
    """The transactional producer of one `Producer`, made when it is first needed; one transaction at a time.

    Its `transactional.id` stays the same, so a new producer ends whatever an older one has left open. before_first: see
    GenerationOpener.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        settings: ProducerSettings,
        throttles: ThrottleTable,
        metrics: ProducerMetrics,
        *,
        before_first: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.throttles = throttles
        self.metrics = metrics
        self.turn = threading.Lock()
        self._before_first = before_first
        self._opening = threading.Lock()
        self._producer: KafkaProducer | None = None
        self._config: dict[str, Any] = {
            **client_config(bootstrap_servers, settings),
            "transactional_id": settings.transactional_id or f"inflight-producer-{uuid4()}",
            "transaction_timeout_ms": settings.transaction_timeout_ms,
            "request_timeout_ms": settings.attempt_timeout_ms,
            # Longer than any transaction may take: the transaction ends first, by commit or by abort.
            "delivery_timeout_ms": 10 * (settings.transaction_timeout_ms + settings.attempt_timeout_ms),
            "max_block_ms": settings.transaction_timeout_ms,
            **settings.kafka_options,
        }

    def begin(self, timeout_s: float | None) -> "Transaction":
        seconds = self.settings.transaction_timeout_ms / 1_000 if timeout_s is None else timeout_s
        return Transaction(self, time.monotonic() + seconds)

    def producer(self) -> KafkaProducer:
        """Open or existing; blocks while Kafka does not answer. Raises KafkaError."""
        with self._opening:  # one that nobody waits for any more may still be at it, and two would fence each other
            if self._producer is None:
                self._before_first()
                producer = KafkaProducer(**self._config)
                try:
                    producer.init_transactions()
                except BaseException:
                    abandon_soon(producer)
                    raise
                self._producer = producer
            return self._producer

    def discard(self) -> None:
        """The producer is not usable any more; the next transaction opens another, and Kafka then ends what this one left."""
        producer, self._producer = self._producer, None
        if producer is not None:
            abandon_soon(producer)

    def close(self) -> None:
        """A transaction that is running keeps its producer until it ends."""
        if self.turn.acquire(timeout=_ABORT_S):
            try:
                self.discard()
            finally:
                self.turn.release()


class Transaction:
    """Use it in a `with`, once. See `Producer.transaction`."""

    def __init__(self, runner: TransactionRunner, deadline: float) -> None:
        self._runner = runner
        self._deadline = deadline
        self._producer: KafkaProducer | None = None
        self._sends: list[tuple[MessageRecord, Any, float, Future[SendResult]]] = []

    def send(self, client_id: ClientId, topic: str, payload: bytes | str, **options: Any) -> "Future[SendResult]":
        """Add a message; arguments of `Producer.send` without timeout_s. The future ends with the transaction.

        Raises InvalidMessage; SendFailed (530) at once for a throttled client: leave the block, wait, and run it again.
        """
        producer = self._producer
        if producer is None:
            raise TransactionFailed(_NOT_OPEN)
        runner = self._runner
        message = build_message(client_id, topic, payload, settings=runner.settings, **options)
        throttle = runner.throttles.of(client_id)
        if throttle is not None:
            runner.metrics.failed(Cause.THROTTLED)
            raise SendFailed(
                "its client is throttled, and a transaction does not wait",
                client_id=client_id,
                message_id=message.message_id,
                attempts=(Attempt(round(time.time() * 1_000), 0, Cause.THROTTLED, too_many_requests(throttle.reason)),),
                cause=Cause.THROTTLED,
            )
        record = {"value": message.value, "key": message.key, "headers": message.headers}
        handed_over = _bounded(lambda: producer.send(runner.settings.topic, **record), self._left_s())
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        self._sends.append((message, handed_over, time.time(), future))
        return future

    def __enter__(self) -> Self:
        runner = self._runner
        if not runner.turn.acquire(timeout=max(0.0, self._left_s())):
            raise TransactionFailed("another transaction of this producer ran until the deadline")
        try:
            producer = _bounded(runner.producer, self._left_s())
            producer.begin_transaction()
        except (KafkaError, TimeoutError) as error:
            runner.discard()
            runner.turn.release()
            raise TransactionFailed(f"it could not be opened ({_text(error)})") from error
        except BaseException:
            runner.turn.release()
            raise
        self._producer = producer
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            raise TransactionFailed(_NOT_OPEN)
        try:
            if error is None:
                self._commit(producer)
            else:
                self._abort(producer, TransactionFailed(f"aborted because of {_text(error)}"))
        finally:
            self._runner.turn.release()

    def _commit(self, producer: KafkaProducer) -> None:
        """1. every record is confirmed; 2. the commit is; 3. the futures learn of it."""
        try:
            confirmed = [handed_over.get(timeout=max(_MIN_STEP_S, self._left_s())) for _, handed_over, _, _ in self._sends]  # 1
        except KafkaError as error:
            failure = TransactionFailed(f"aborted because a message was not confirmed ({_text(error)})")
            self._abort(producer, failure)
            raise failure from error
        try:
            _bounded(producer.commit_transaction, self._left_s())  # 2
        except (KafkaError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            reason = "the commit was not answered in time" if late else f"the commit failed ({_text(error)})"
            failure = TransactionFailed(reason, may_be_committed=True)
            self._runner.discard()
            self._fail("in_doubt", failure)
            raise failure from error
        self._runner.metrics.transactions.labels("committed").inc()
        for (message, _, started, future), record in zip(self._sends, confirmed, strict=True):  # 3
            self._runner.metrics.sends.inc()
            attempt = Attempt(round(started * 1_000), round((time.time() - started) * 1_000))
            future.set_result(SendResult(message.message_id, record.topic, record.partition, record.offset, (attempt,)))

    def _abort(self, producer: KafkaProducer, failure: TransactionFailed) -> None:
        """A producer that cannot even abort is thrown away: the coordinator aborts in its place, at once or by time-out."""
        try:
            _bounded(producer.abort_transaction, _ABORT_S if not self._sends else max(1.0, min(_ABORT_S, self._left_s())))
        except (KafkaError, TimeoutError):
            self._runner.discard()
        self._fail("aborted", failure)

    def _fail(self, outcome: str, failure: TransactionFailed) -> None:
        self._runner.metrics.transactions.labels(outcome).inc()
        for _, _, _, future in self._sends:
            future.set_exception(failure)

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()


def _bounded(work: Callable[[], _T], timeout_s: float) -> _T:
    """The result of `work`, which blocks for as long as it likes, or TimeoutError; it is then left to itself.

    kafka-python's commit and abort have no time-out of their own.
    """
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            done.set_exception(error)

    threading.Thread(target=run, name="inflight-transaction", daemon=True).start()
    return done.result(max(_MIN_STEP_S, timeout_s))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
