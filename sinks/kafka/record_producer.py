"""Appends records with idempotent clients of librdkafka, which confirm a record when all in-sync replicas have it.

There are two clients: one for records that are sent one by one, one for groups. An idempotent client sends no more of a partition
while five of its records are on their way. If it has more to send, it does not sleep until then: it takes a whole processor,
which the broker that it waits for may need. So it never has more to send than it sends at once:
1. At most `MAX_ONE_BY_ONE` records of a partition are on their way, or one group.
2. A group is one request: its client waits `_GROUP_LINGER_MS` for all of it, where the other one would send the first records at
   once.

A thread of each client waits for confirmations, and calls back on it. A producer that stops at the first failure gives up
everything with the first record that is given up: what came after that record must not get into the log without it. No record
that is undecided then, or at the end, is written any more, except for what is on its way to a broker already.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer

from sinks.kafka.failed_requests import FailedRequest, request_log
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client
from sinks.library_log import LibraryLogger

_log: Final = LibraryLogger(__name__)
_POLL_S: Final = 0.2
_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 1.0
_END_S: Final = 10.0

MAX_ONE_BY_ONE: Final = 5
MAX_GROUP_RECORDS: Final = 200
MAX_GROUP_BYTES: Final = 500_000
_GROUP_LINGER_MS: Final = 2
_GROUP_BATCH_BYTES: Final = 1_000_000
"""A group has less, with headers."""

Answer = Callable[[KafkaError | None, int | None, int], None]
"""Called once, on the producer's thread: with None, or why the record was given up; with the time that the broker has given it
(LogAppendTime, milliseconds since 1970), None = the record has ours; and with its offset, negative = unknown."""


class NotSent(Exception):
    """The producer has not accepted a record.

    Attributes:
        error: The error of librdkafka; None = the producer has given up a record before.
    """

    def __init__(self, error: KafkaError | None, text: str) -> None:
        super().__init__(text)
        self.error = error


class RecordProducer:
    """Appends records through the two clients.

    Args:
        config: More of librdkafka's settings.
        stops_at_failure: True = it gives everything up with the first record that is given up.
        on_request_failed: Gets each request that failed, and True for a group's, on a thread of the producer.

    Attributes:
        has_given_up: True when it accepts no records any more; another producer is needed then.
        errors: Errors of its connections.
        fatal_error: The reason when librdkafka has given everything up.

    Raises:
        KafkaFailed: A file or value of the options is of no use.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        options: Mapping[str, Any],
        config: Mapping[str, Any],
        stops_at_failure: bool = True,
        on_request_failed: Callable[[bool, FailedRequest], None] | None = None,
    ) -> None:
        self.errors = ClientErrors()
        self.fatal_error: KafkaError | None = None
        self._stops_at_failure = stops_at_failure
        theirs = client_config(bootstrap_servers, options, self.errors, config)
        self.has_given_up = False

        def client(more: Mapping[str, Any], in_group: bool) -> _Client:
            watched = {} if on_request_failed is None else request_log(partial(on_request_failed, in_group))
            return _Client({**theirs, **watched, **more}, self._failed)

        self._one_by_one = client({}, False)
        try:
            self._groups = client({"linger.ms": _GROUP_LINGER_MS, "batch.size": _GROUP_BATCH_BYTES}, True)
        except BaseException:
            self._one_by_one.end()
            raise

    def partition_counts(self, timeout_s: float = _CONNECT_S) -> dict[str, int]:
        """Returns the number of each topic that may be described. Blocks. Raises KafkaFailed when no broker answers."""
        return {name: len(topic.partitions) for name, topic in self._metadata(timeout_s=timeout_s).items() if topic.error is None}

    def partition_count(self, topic: str) -> int:
        """Returns the number of one topic; 0 = it does not exist, or may not be described. Blocks.

        Raises KafkaFailed when no broker answers.
        """
        described = self._metadata(topic).get(topic)
        return 0 if described is None or described.error is not None else len(described.partitions)

    def _metadata(self, *topic: str, timeout_s: float = _CONNECT_S) -> Mapping[str, Any]:
        try:
            topics: Mapping[str, Any] = self._one_by_one.client.list_topics(*topic, timeout=timeout_s).topics
        except KafkaException as error:
            raise self.errors.failed("no broker answers", error) from error
        return topics

    def send(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None,
        answer: Answer,
        in_group: bool = False,
    ) -> None:
        """Sends a record without waiting. Raises NotSent.

        Args:
            in_group: True if the others of its group follow at once. Single records may overtake them.
        """
        if self.has_given_up:
            raise NotSent(None, "this producer has given a record up")
        try:
            (self._groups if in_group else self._one_by_one).client.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=partial(self._delivered, answer),
                headers=headers or [],
            )
        except KafkaException as error:
            reason = error.args[0]
            if reason.fatal() or reason.code() == KafkaError._FATAL:
                self._give_up()
            raise NotSent(reason, reason.str()) from error
        except BufferError as error:
            raise NotSent(None, str(error)) from error

    def _delivered(self, answer: Answer, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._stops_at_failure and not self.has_given_up:
            self._give_up()
        kind, time_ms = message.timestamp()
        answer(error, time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None, message.offset())

    def _failed(self, error: KafkaError) -> None:
        self.fatal_error = error
        self.errors(error)

    def _give_up(self) -> None:
        self.has_given_up = True
        for each in self._one_by_one, self._groups:
            each.client.purge(blocking=False)

    def close(self) -> None:
        """Ends a producer whose records are decided. Blocks for about two seconds."""
        for each in self._one_by_one, self._groups:
            each.client.flush(_CLOSE_S)
        self.abandon()

    def abandon(self) -> None:
        """Ends a producer at once, and gives up what is undecided. Blocks for seconds at most."""
        self.has_given_up = True
        for each in self._one_by_one, self._groups:
            each.end()


class _Client:
    """A client of librdkafka, and the thread that waits for its confirmations."""

    def __init__(self, config: Mapping[str, Any], on_fatal: Callable[[KafkaError], None]) -> None:
        self._on_fatal = on_fatal
        self.client: Any = new_client(Producer, {**config, "enable.idempotence": True, "acks": "all"})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(self.client,), name="inflight-confirmations", daemon=True)
        self._thread.start()

    def _serve(self, client: Any) -> None:
        while not self._ending.is_set():
            try:
                client.poll(_POLL_S)
            except KafkaException as error:  # confluent-kafka raises a fatal error instead of calling `error_cb`
                self._on_fatal(error.args[0])
            except Exception as error:  # noqa: BLE001 - a bug of ours in a callback must not end all confirmations
                _log.error("confirmation_failed", exc_info=error, action="please report this")

    def end(self) -> None:
        """Gives up what is undecided. Blocks for seconds at most."""
        if self._ending.is_set():
            return
        self.client.purge()
        deadline = time.monotonic() + _END_S
        while len(self.client) and time.monotonic() < deadline:
            self.client.poll(_POLL_S)
        self._ending.set()
        self._thread.join(_END_S)
        self.client = _EndedClient()  # the last reference: librdkafka closes its connections


class _EndedClient:
    """Stands for a client that is gone."""

    def list_topics(self, *args: object, **more: object) -> Any:
        raise KafkaFailed("this producer has ended")
