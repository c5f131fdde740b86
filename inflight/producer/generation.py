"""Generations: one idempotent client of Kafka each (sinks/kafka/record_producer.py).

librdkafka repeats a request under the same producer id and sequence number, and the broker keeps one copy, also over a SIGSTOP, a
SIGKILL and a restart of the broker. A record whose `message.timeout.ms` has passed would make room for the next ones under
another epoch, where a second copy of a record passes for a new one. So that time-out is off, and the send loop has its own.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from inflight.producer.message import MessageRecord
from inflight.producer.model import Cause
from inflight.producer.send_loop import Send, SendLoop, SendRefused
from inflight.producer.settings import ProducerSettings
from sinks.kafka.failed_requests import FailedRequest
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client
from sinks.kafka.partition_queue import PartitionQueue
from sinks.kafka.partitioning import partition_of
from sinks.kafka.record_producer import MAX_GROUP_BYTES, MAX_ONE_BY_ONE, NotSent, RecordProducer
from sinks.library_log import LibraryLogger

_ASK_S: Final = 1.0
_BATCH_OVERHEAD_BYTES: Final = 61
_MAX_RECORD: Final = "max.message.bytes"
_OF_THE_PRODUCER: Final = (
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
"""Refusals of the producer id and not of the record."""
_NOT_AUTHORISED: Final = (KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
_NO_TOPIC: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

Report: TypeAlias = Callable[[SendLoop, float], None]
"""Something that has happened: called with the loop and the time, by one thread at a time."""
Post: TypeAlias = Callable[[Report], None]

_log: Final = LibraryLogger(__name__)


class TopicUnknown(KafkaFailed):
    """The topic does not exist, or may not be described."""


class KafkaGeneration:
    """Generation on a RecordProducer. All methods but `connect` are called inside of reports; what happens to records is posted.

    Raises KafkaFailed for a file or value that is of no use.
    """

    def __init__(self, bootstrap_servers: str, settings: ProducerSettings, post: Post) -> None:
        self._servers = bootstrap_servers
        self._settings = settings
        self._post = post
        self._topic = settings.topic
        self._partitions = 0
        self._largest: int | None = None
        self._queues: dict[int, PartitionQueue[Send]] = {}
        self._numbers: Counter[tuple[int, bool]] = Counter()
        self._has_written = False
        # Made before anything is asked: librdkafka asks for a producer id half a second later.
        self._producer = RecordProducer(
            bootstrap_servers=bootstrap_servers,
            options=settings.kafka_options,
            config={
                **connection_config(settings),
                **record_config(settings),
                "linger.ms": 0,
                "batch.size": 65_536,
                "message.timeout.ms": 0,
                "request.timeout.ms": settings.attempt_timeout_ms,
                "retry.backoff.ms": 50,
            },
            stops_at_failure=False,
            on_request_failed=self._request_failed,
        )

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions; known after `connect`."""
        return self._partitions

    @property
    def is_login_refused(self) -> bool:
        return self._producer.errors.is_login_refused

    @property
    def not_authorised(self) -> KafkaError | None:
        """The error when brokers give this backend no producer id. Nothing was written then."""
        fatal = self._producer.fatal_error
        return fatal if fatal is not None and fatal.code() in _NOT_AUTHORISED and not self._has_written else None

    def connect(self) -> None:
        """Learns about the topic. Blocks for about a second without an answer. Raises KafkaFailed, TopicUnknown."""
        # All topics, not this one: a broker may create one that it is asked for.
        self._partitions = self._producer.partition_counts(_ASK_S).get(self._topic, 0)
        if not self._partitions:
            how = " (with routing.enabled = true)" if self._topic == self._settings.publications_topic else ""
            what = f"topic {self._topic} does not exist, or may not be described"
            raise TopicUnknown(f"{what}; create it with `inflight topics`{how}")
        self._largest = _largest_record_bytes(self._servers, self._settings)

    def hand_over(self, send: Send) -> bool:
        message = send.message
        largest = None if self._settings.compression else self._largest
        if largest is not None and (size := _batch_bytes(message)) > largest:
            raise SendRefused(f"the record has {size} bytes: topic {self._topic} takes {largest} ({_MAX_RECORD})")
        if message.key is None:
            if message.partitions != self._partitions:
                raise SendRefused(f"topic {self._topic} has another number of partitions now: {self._partitions}")
            number = message.partition
        else:
            number = partition_of(message.key, self._partitions)
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = PartitionQueue(topic=self._topic, number=number)
        send.queue = queue
        if queue.is_busy:
            queue.held.append(send)
            return True
        return self._write(send, queue, in_group=bool(queue.sent) and queue.is_group)

    def withdraw(self, send: Send) -> bool:
        if send.is_written or send.queue is None:
            return False
        send.queue.held.remove(send)
        return True

    def retire(self) -> list[Send]:
        held = [send for queue in self._queues.values() for send in queue.held]
        for queue in self._queues.values():
            queue.held.clear()
        return held

    def end(self) -> None:
        # It blocks for seconds.
        threading.Thread(target=self._producer.abandon, name="inflight-producer-end", daemon=True).start()

    def _write(self, send: Send, queue: PartitionQueue[Send], *, in_group: bool) -> bool:
        """Raises SendRefused."""
        message = send.message
        try:
            self._producer.send(
                self._topic,
                queue.number,
                key=message.key,
                value=message.value,
                headers=message.all_headers,
                answer=partial(self._answered, send),
                in_group=in_group,
            )
        except NotSent as error:
            if error.error is not None and error.error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise SendRefused(f"the record is larger than Kafka's client takes ({error})") from error
            _log.info("producer_generation_ended", error=str(error))
            return False
        queue.is_group = in_group
        queue.sent[send] = None
        self._numbers[queue.number, in_group] += 1
        send.record = in_group, self._numbers[queue.number, in_group]
        return True

    # --- on the threads of the producer ---------------------------------------------------------------------------------------

    def _answered(self, send: Send, error: KafkaError | None, broker_ms: int | None, offset: int) -> None:
        self._post(partial(self._decided, send, error, offset))

    def _decided(self, send: Send, error: KafkaError | None, offset: int, loop: SendLoop, now_ms: float) -> None:
        queue = send.queue
        assert queue is not None
        del queue.sent[send]
        if queue.held and not queue.sent:
            self._write_next(queue, loop, now_ms)
        if error is None:
            self._has_written = True
            loop.confirmed(send, queue.number, offset, now_ms)
            return
        error = self.not_authorised or error
        code = error.code()
        is_refused = code in _NO_TOPIC or (code > 0 and code not in _OF_THE_PRODUCER)
        text = f"the broker answered {error.name()}" if is_refused else "Kafka's client gave it up"
        # What it gives up by itself may have been written before: its errors do not tell.
        loop.given_up(send, f"{text}: {error.str()}", is_refused=is_refused, is_written=True, now_ms=now_ms)

    def _write_next(self, queue: PartitionQueue[Send], loop: SendLoop, now_ms: float) -> None:
        group = queue.pop_group(min(MAX_GROUP_BYTES, self._largest or MAX_GROUP_BYTES))
        for send in group:
            try:
                if not self._write(send, queue, in_group=len(group) > MAX_ONE_BY_ONE):
                    loop.given_up(send, "Kafka's client has ended", is_refused=False, is_written=False, now_ms=now_ms)
            except SendRefused as refusal:
                loop.given_up(send, str(refusal), is_refused=True, is_written=False, now_ms=now_ms)
        if queue.held and not queue.sent:
            self._write_next(queue, loop, now_ms)

    def _request_failed(self, in_group: bool, failed: FailedRequest) -> None:
        self._post(partial(self._repeated, in_group, failed))

    def _repeated(self, in_group: bool, failed: FailedRequest, loop: SendLoop, now_ms: float) -> None:
        self._has_written = True
        queue = self._queues.get(failed.partition)
        if queue is None or not (failed.is_lost or failed.is_answered):
            return
        records = {(in_group, number) for number in failed.numbers}
        cause = Cause.NETWORK if failed.is_lost else Cause.BROKER
        text = "connection lost before the answer came" if failed.is_lost else f"the broker answered {failed.error!r}"
        for send in list(queue.sent):
            if send.record in records:
                loop.request_failed(send, cause, text, now_ms)


def connection_config(settings: ProducerSettings) -> Mapping[str, Any]:
    """Settings of every client: how long a connection may take to be made, and a request that is not answered."""
    connect_ms = min(300_000, max(1_000, settings.min_connect_timeout_ms))
    return {
        "socket.connection.setup.timeout.ms": connect_ms,
        "api.version.request.timeout.ms": connect_ms,
        # It ends the setup of a connection, too. After it a request is repeated, on another connection.
        "socket.timeout.ms": min(300_000, max(connect_ms, settings.attempt_timeout_ms)),
    }


def record_config(settings: ProducerSettings) -> Mapping[str, Any]:
    """Settings of every client that writes."""
    # Above everything that the engine accepts, so the limits that count are the ones in ProducerSettings.
    largest = 4 * (settings.max_payload_bytes + settings.max_headers_bytes) + 65_536
    return {"message.max.bytes": min(1_000_000_000, max(1_000_000, largest)), "compression.type": settings.compression or "none"}


def _batch_bytes(message: MessageRecord) -> int:
    """Returns the least that a batch with this record alone has."""
    headers_bytes = sum(len(name.encode()) + len(value) for name, value in message.all_headers)
    return _BATCH_OVERHEAD_BYTES + len(message.key or b"") + len(message.value) + headers_bytes


def _largest_record_bytes(bootstrap_servers: str, settings: ProducerSettings) -> int | None:
    """None = the brokers do not say (DescribeConfigs is not allowed)."""
    config = client_config(bootstrap_servers, settings.kafka_options, ClientErrors(), connection_config(settings))
    admin = new_client(AdminClient, config)  # a name, because a client without a reference ends, and its request with it
    resource = ConfigResource(ResourceType.TOPIC, settings.topic)
    try:
        described = admin.describe_configs([resource], request_timeout=connection_config(settings)["socket.timeout.ms"] / 1_000)
        return int(described[resource].result()[_MAX_RECORD].value)
    except (KafkaException, KeyError):
        return None
