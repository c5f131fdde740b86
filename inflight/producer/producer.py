"""`Producer`: sends messages to devices, and publishes to whoever subscribes, with retry, backoff and throttling.

What a backend sees; docs/guides/producer.md explains it.

with Producer("127.0.0.1:9092") as producer:
    result = producer.send("thermostat-7", "commands/target", b"21.5", qos=2)
    print(result.partition, result.offset)
"""

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast, overload

from prometheus_client import REGISTRY, CollectorRegistry

from inflight.keywords import check_keywords, checked
from inflight.producer.capacity import Capacity
from inflight.producer.deliveries import Deliveries, DeliveryFuture
from inflight.producer.message import (
    DeliverAt,
    ExtraHeaders,
    MessageRecord,
    UserProperties,
    build_cancellation,
    build_message,
    build_messages,
    build_publication,
    check_clients,
)
from inflight.producer.metrics import producer_metrics
from inflight.producer.model import Cause, InvalidMessage, SendFailed, SendFuture, SendResult, SomeSendsFailed, named
from inflight.producer.requests import PendingRequest, Requests
from inflight.producer.send_loop import Outcome
from inflight.producer.settings import ProducerSettings
from inflight.producer.transaction import Transaction, TransactionRunner
from inflight.producer.worker import Worker, now_ms
from inflight.readers.uplink import UplinkMessage
from inflight.running_up import kafka_of_running_up
from sinks.kafka.security.librdkafka_client import from_python_names
from state.errors import InflightError
from state.model import ClientId, MessageId

_ROOM_CHECK_MS: Final = 1_000.0


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
        check_keywords("Producer", options, [field.name for field in fields(ProducerSettings)])
        settings = replace(settings or ProducerSettings(), **options)
        self._settings = settings = replace(settings, kafka_options=from_python_names(settings.kafka_options))
        self._metrics = producer_metrics(registry)
        self._capacity = Capacity(messages=settings.max_pending_messages, size_bytes=settings.max_pending_bytes)
        self._servers = bootstrap_servers
        self._worker = Worker(bootstrap_servers, settings, self._metrics)
        self._publications: Worker | None = None
        """Has a client of Kafka of its own, so it is made when something is published."""
        self._deliveries = Deliveries(
            settings.receipts_topic, bootstrap_servers, settings.kafka_options, most=settings.max_pending_deliveries
        )
        self._requests = Requests(settings.uplink_topic, bootstrap_servers, settings.kafka_options)
        self._transactions = TransactionRunner(bootstrap_servers, settings, self._worker, self._metrics)
        self._closing = threading.Lock()
        self._closed = False
        self._worker.start()

    @checked()
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
        deliver_at: DeliverAt | None = None,
        collapse_key: bytes | str | None = None,
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
        deliver_at: not before this time: a datetime with a time zone, a timedelta from now, or milliseconds since 1970.
        collapse_key: 1…256 bytes; it replaces messages with the same key that still wait for the client.
        priority: 0…255, higher first. response_topic … user_properties: MQTT 5 properties.
        cc, bcc: more routing keys for its dead letter. dead_letter_exchange, dead_letter_routing_key: where that goes.
        headers: more Kafka headers, kept for the dead letter. timeout_s: deadline of the whole send; default `deadline_ms`, and
        the time in addition in which it waits for a client that is connected and behind (at most `catch_up_timeout_ms`).

        Raises InvalidMessage (nothing was sent), SendFailed (with every attempt), ProducerClosed.
        """
        arguments = locals()
        del arguments["self"]
        return self.send_async(**arguments).result()

    @checked(send)
    def send_async(
        self, client_id: ClientId, topic: str, payload: bytes | str, *, timeout_s: float | None = None, **options: Any
    ) -> "Future[SendResult]":
        """Sends one message without waiting: arguments of `send`. The future always ends, with a SendResult or with SendFailed.

        Blocks while `max_pending_messages` or `max_pending_bytes` are under way. So a loop over any number of messages goes as
        fast as the devices take them. Callbacks of the future run on a thread that settles other sends, too: keep them short.
        Raises InvalidMessage, ProducerClosed.
        """
        self._check_open()
        message = build_message(client_id, topic, payload, settings=self._settings, **options)
        return self._begin(self._worker, message, timeout_s)

    @checked()
    def cancel(self, client_id: ClientId, message_id: MessageId, *, timeout_s: float | None = None) -> SendResult:
        """Takes a message back that was not sent to the client yet, and waits until all in-sync replicas of Kafka have that.

        The receipt of the message says `cancelled` if it was in time. Otherwise the message is delivered, and the ledger has
        `cancel_refused`. A throttled client is no reason to wait.

        message_id: of the message. timeout_s: as in `send`; the result has an id of its own.

        Raises InvalidMessage (nothing was sent), SendFailed, ProducerClosed.
        """
        return self.cancel_async(client_id, message_id, timeout_s=timeout_s).result()

    @checked()
    def cancel_async(self, client_id: ClientId, message_id: MessageId, *, timeout_s: float | None = None) -> "Future[SendResult]":
        """Takes a message back without waiting: arguments of `cancel`, and otherwise as `send_async`."""
        self._check_open()
        return self._begin(self._worker, build_cancellation(client_id, message_id, settings=self._settings), timeout_s)

    @checked()
    def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        key: bytes | str | None = None,
        qos: int = 1,
        retain: bool = False,
        message_id: MessageId | None = None,
        expiration_ms: int | None = None,
        deliver_at: DeliverAt | None = None,
        collapse_key: bytes | str | None = None,
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
        """Publishes to every client that subscribes to the topic, and waits until all in-sync replicas of Kafka have it.

        key: publications with the same key keep their order; default: the topic. qos: the highest with which a client gets it.
        retain: later subscribers get it, too, until the next one with this topic; an empty payload removes it.
        The other arguments are those of `send`, and hold for each client that gets the message.

        A matcher finds the clients (`routing.enabled`). Raises InvalidMessage (nothing was sent), SendFailed, ProducerClosed.
        """
        arguments = locals()
        del arguments["self"]
        return self.publish_async(**arguments).result()

    @checked(publish)
    def publish_async(
        self, topic: str, payload: bytes | str, *, timeout_s: float | None = None, **options: Any
    ) -> "Future[SendResult]":
        """Publishes without waiting: arguments of `publish`, and otherwise as `send_async`."""
        self._check_open()
        message = build_publication(topic, payload, settings=self._settings, **options)
        return self._begin(self._publishing(), message, timeout_s)

    @overload
    def send_many(self, messages: Iterable[Mapping[str, Any]], *, timeout_s: float | None = None) -> list[SendResult]: ...

    @overload
    def send_many(
        self,
        messages: Iterable[ClientId],
        topic: str,
        payload: bytes | str,
        *,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[SendResult]: ...

    @checked(send)
    def send_many(
        self,
        messages: Iterable[Mapping[str, Any]] | Iterable[ClientId],
        topic: str | None = None,
        payload: bytes | str | None = None,
        *,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[SendResult]:
        """Sends one message to many clients, or many messages, and waits for all. Results are in the same order.

        `send_many(client_ids, topic, payload, …)` has the further arguments of `send`. The payload is in Kafka once for up to
        500 clients; each has a message of its own, under the same message id. A client named twice is an InvalidMessage.

        `send_many(messages)`: each element has the arguments of `send` by name. An InvalidMessage is an outcome, too, and stops
        nothing.

        timeout_s: of each message. Raises SomeSendsFailed, which has the outcome of every message, when one or more failed.
        """
        outcomes: Sequence[SendResult | SendFailed | InvalidMessage]
        if topic is not None and payload is not None:
            outcomes = self._send_to(cast(Iterable[ClientId], messages), topic, payload, timeout_s, options)
        else:
            outcomes = self._send_each(cast(Iterable[Mapping[str, Any]], messages), timeout_s)
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(outcomes):
            raise SomeSendsFailed(outcomes)
        return results

    def _send_each(
        self, messages: Iterable[Mapping[str, Any]], timeout_s: float | None
    ) -> list[SendResult | SendFailed | InvalidMessage]:
        futures: list[Future[SendResult] | InvalidMessage] = []
        for arguments in messages:
            try:
                futures.append(self.send_async(**{"timeout_s": timeout_s, **arguments}))
            except InvalidMessage as refusal:
                futures.append(refusal)
        return [_outcome(future) for future in futures]

    def _send_to(
        self,
        client_ids: Iterable[ClientId],
        topic: str,
        payload: bytes | str,
        timeout_s: float | None,
        options: Mapping[str, Any],
    ) -> list[Outcome]:
        """1. the number of partitions is known, or was waited for; 2. as few records as possible; 3. all have an outcome."""
        self._check_open()
        clients = check_clients(client_ids, self._settings)
        begun_ms = now_ms()
        wait_ms = min(self._allowed_ms(timeout_s), self._settings.attempt_timeout_ms)
        partitions = self._worker.partitions(wait_ms / 1_000)  # step 1
        outcomes: dict[ClientId, Outcome] = {}
        changed = threading.Condition()
        messages = build_messages(clients, topic, payload, settings=self._settings, partitions=partitions, **options)
        for message in messages:  # step 2
            self._begin_group(message, begun_ms, timeout_s, outcomes, changed)
        with changed:
            changed.wait_for(lambda: len(outcomes) == len(clients))  # step 3
        return [outcomes[client_id] for client_id in clients]

    def _begin_group(
        self,
        message: MessageRecord,
        begun_ms: float,
        timeout_s: float | None,
        outcomes: dict[ClientId, Outcome],
        changed: threading.Condition,
    ) -> None:
        """Begins the sends of a record. Each puts its outcome into `outcomes`, which the caller waits for."""
        clients = message.recipients or (message.client_id,)
        left = len(clients)

        def settle(client_id: ClientId, outcome: Outcome) -> None:
            nonlocal left
            self._metrics.pending.dec()
            with changed:
                outcomes[client_id] = outcome
                left -= 1
                if left:
                    return
                changed.notify()
            self._capacity.release(message.size_bytes)

        deadline_ms = self._reserve(message, begun_ms, timeout_s)
        if deadline_ms is None:
            with changed:
                for client_id in clients:
                    self._metrics.failed(Cause.TIME_OUT)
                    outcomes[client_id] = _too_many(client_id, message.message_id, self._settings)
            return
        self._metrics.pending.inc(len(clients))
        is_patient = timeout_s is None
        if message.recipients:
            settles = {client_id: partial(settle, client_id) for client_id in clients}
            self._worker.submit_many(message, deadline_ms, settles, is_patient=is_patient)
        else:
            self._worker.submit(message, deadline_ms, partial(settle, message.client_id), is_patient=is_patient)

    def _begin(self, worker: Worker, message: MessageRecord, timeout_s: float | None) -> "Future[SendResult]":
        future = SendFuture(named(message.client_id, message.message_id))
        future.set_running_or_notify_cancel()  # what is under way cannot be taken back
        deadline_ms = self._reserve(message, now_ms(), timeout_s)
        if deadline_ms is None:
            self._metrics.failed(Cause.TIME_OUT)
            future.set_exception(_too_many(message.client_id, message.message_id, self._settings))
            return future
        self._metrics.pending.inc()

        def settle(outcome: Outcome) -> None:
            self._capacity.release(message.size_bytes)
            self._metrics.pending.dec()
            if isinstance(outcome, SendFailed):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        worker.submit(message, deadline_ms, settle, is_patient=timeout_s is None)
        return future

    def _reserve(self, message: MessageRecord, begun_ms: float, timeout_s: float | None) -> float | None:
        """Waits for room among the unconfirmed messages. Returns the deadline of the send; None if there was no room in time.

        Without timeout_s the deadline moves while the room is wanted for clients that are connected and behind.

        Args:
            begun_ms: When the send began, on the clock `now_ms`.
        """
        allowed_ms = self._allowed_ms(timeout_s)
        deadline_ms = begun_ms + allowed_ms
        # A callback of a future must not wait, because its thread completes other futures, too.
        wait_ms = 0.0 if self._is_settling_here() else max(0.0, deadline_ms - now_ms())
        while not self._capacity.reserve(message.size_bytes, min(wait_ms, _ROOM_CHECK_MS) / 1_000):
            now = now_ms()
            if timeout_s is None and self._is_anybody_behind():
                deadline_ms = min(now, begun_ms + self._settings.catch_up_timeout_ms) + allowed_ms
            if not wait_ms or now >= deadline_ms:
                return None
            wait_ms = deadline_ms - now
        return deadline_ms

    def _publishing(self) -> Worker:
        with self._closing:
            self._check_open()
            if self._publications is None:
                settings = replace(self._settings, topic=self._settings.publications_topic)
                self._publications = Worker(self._servers, settings, self._metrics, beside=self._worker)
                self._publications.start()
            return self._publications

    def _check_open(self) -> None:
        if self._closed:
            raise ProducerClosed("the producer is closed: make a new one")

    def _allowed_ms(self, timeout_s: float | None) -> float:
        return self._settings.deadline_ms if timeout_s is None else timeout_s * 1_000

    def _is_anybody_behind(self) -> bool:
        publications = self._publications
        return self._worker.is_anybody_behind or (publications is not None and publications.is_anybody_behind)

    def _is_settling_here(self) -> bool:
        publications = self._publications
        return self._worker.is_settling_here or (publications is not None and publications.is_settling_here)

    @checked()
    def transaction(self, *, timeout_s: float | None = None) -> Transaction:
        """Sends all or nothing: `with producer.transaction() as transaction: transaction.send(…)` commits at the end of the
        block.

        An exception in the block, a throttled client or a failed send aborts it, and nothing of it is delivered. One transaction
        of a producer runs at a time; another thread waits for it. timeout_s: from here to the confirmed commit; default
        `transaction_timeout_ms`. Raises TransactionFailed, and whatever the block raises.
        """
        self._check_open()
        return self._transactions.begin(timeout_s)

    @checked(send)
    def deliver(
        self, client_id: ClientId, topic: str, payload: bytes | str, *, timeout_s: float | None = None, **options: Any
    ) -> DeliveryFuture:
        """Sends one message as `send` does, with its arguments, and returns the future of its outcome.

        It waits until Kafka has the message. Then `message_id` of the future is enough to find the outcome again, after a restart
        too: `delivery`. The first call begins to read `inflight.receipts`, and waits for Kafka.

        Raises InvalidMessage, SendFailed, ProducerClosed; KafkaFailed if the receipts cannot be read (nothing was sent).
        """
        sent, delivery = self._begin_delivery(client_id, topic, payload, timeout_s, options)
        sent.result()
        return delivery

    @checked(send)
    def deliver_async(
        self, client_id: ClientId, topic: str, payload: bytes | str, *, timeout_s: float | None = None, **options: Any
    ) -> DeliveryFuture:
        """Sends as `send_async` does, without waiting. The future raises SendFailed if Kafka does not get the message."""
        return self._begin_delivery(client_id, topic, payload, timeout_s, options)[1]

    @checked()
    def delivery(self, client_id: ClientId, message_id: MessageId, *, within_s: float = 86_400.0) -> DeliveryFuture:
        """Returns the future of a message that was sent before, by any process. It sends nothing.

        within_s: The receipts of the last so many seconds are searched for it, in one partition of `inflight.receipts` and in the
        background. Then the future waits for a new one. A message that was never sent has no receipt, so its future never ends.
        If it is not certain that the message was sent, send it again under its id first: a repeated id is delivered once.

        Raises ProducerClosed; KafkaFailed if the receipts cannot be read.
        """
        self._check_open()
        return self._deliveries.search(client_id, message_id, within_s=within_s)

    @checked(send)
    def request(
        self,
        client_id: ClientId,
        topic: str,
        payload: bytes | str,
        *,
        timeout_s: float = 30.0,
        response_topic: str | None = None,
        id_in_topic: bool = False,
        **options: Any,
    ) -> UplinkMessage:
        """Sends a message that asks the device for an answer, and returns the answer: a publication of the device.

        A device of MQTT 5 answers to the Response Topic of the message with its Correlation Data. A device of MQTT 3.1.1 sees
        neither: with id_in_topic the message goes to `TOPIC/request/ID`, and the device answers on `TOPIC/response/ID`.

        timeout_s: For all of it; the message expires after this time, unless `expiration_ms` says otherwise.
        response_topic: Default: `TOPIC/response`. The device needs the right to publish to it. options: arguments of `send`.

        The first call begins to read `inflight.uplink` and `inflight.receipts`, and waits for Kafka.
        Raises RequestFailed when the message died, or nobody answered in time; and what `deliver` raises.
        """
        request = self._requests.begin(client_id, topic, response_topic=response_topic, id_in_topic=id_in_topic)
        try:
            self._send_request(request, payload, timeout_s, options)
            try:
                return request.response.result(timeout_s)
            except NotInTime:
                raise request.late(timeout_s) from None
        finally:
            self._requests.end(request)

    def _begin_delivery(
        self, client_id: ClientId, topic: str, payload: bytes | str, timeout_s: float | None, options: Mapping[str, Any]
    ) -> "tuple[Future[SendResult], DeliveryFuture]":
        """1. receipts are read; 2. this one is expected; 3. the message is sent. So its receipt is not missed."""
        self._check_open()
        self._deliveries.start()  # step 1
        message_id = options.get("message_id") or str(uuid.uuid4())
        delivery = self._deliveries.expect(client_id, message_id)  # step 2

        def end_unsent(sent: "Future[SendResult]") -> None:
            if (error := sent.exception()) is not None:
                self._deliveries.forget(delivery, error)

        try:
            sent = self.send_async(
                client_id, topic, payload, timeout_s=timeout_s, **{**options, "message_id": message_id}
            )  # step 3
        except InflightError as error:
            self._deliveries.forget(delivery, error)
            raise
        sent.add_done_callback(end_unsent)
        return sent, delivery

    def _send_request(self, request: PendingRequest, payload: bytes | str, timeout_s: float, options: Mapping[str, Any]) -> None:
        self._check_open()
        self._requests.start()
        to_send = {
            "expiration_ms": int(timeout_s * 1_000),
            **options,
            "response_topic": request.topics.response_topic,
            "correlation_data": request.request_id.encode(),
        }
        _, delivery = self._begin_delivery(request.client_id, request.topics.topic, payload, timeout_s, to_send)
        request.follow(delivery)

    @property
    def has_room(self) -> bool:
        """Returns True if a send would not wait for room now, whatever its size (max_pending_messages, max_pending_bytes)."""
        return self._capacity.has_room(self._settings.max_record_bytes)

    @property
    def reads_receipts(self) -> bool:
        """Returns True if `deliver` and `delivery` do not wait for a reader to start."""
        return self._deliveries.is_started

    @property
    def reads_responses(self) -> bool:
        """Returns True if `request` does not wait for its readers to start."""
        return self._deliveries.is_started and self._requests.is_started

    def throttled(self, client_id: ClientId) -> str | None:
        """Says why this client is throttled now, as far as is known; None = it is not."""
        throttle = self._worker.throttles.of(client_id)
        return None if throttle is None else throttle.reason or "throttled"

    @checked()
    def close(self, timeout_s: float = 10.0) -> None:
        """Waits up to timeout_s for what is under way. Every future has ended when this returns. May be called twice."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._transactions.close()
            deadline_ms = now_ms() + timeout_s * 1_000
            if self._publications is not None:
                self._publications.close(timeout_s)
            self._worker.close(max(0.0, deadline_ms - now_ms()) / 1_000)
            self._deliveries.close()
            self._requests.close()

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


def _too_many(client_id: ClientId, message_id: MessageId, settings: ProducerSettings) -> SendFailed:
    return SendFailed(
        f"no room among the unconfirmed messages before its deadline ({settings.max_pending_messages} messages, "
        f"{settings.max_pending_bytes} bytes: max_pending_messages, max_pending_bytes)",
        client_id=client_id,
        message_id=message_id,
        cause=Cause.TIME_OUT,
    )
