"""Watches the produce requests of one kafka-python producer: which records were written, refused, or lost.

kafka-python tells the sender of a record only the end of the story. Why an attempt failed, and whether a record that was given up
may be in the log, stands in the requests (docs/decisions/0006-producer-on-public-api.md). So kafka-python gets a client of ours
(its setting `kafka_client`), which sees each request pass. Records are found by decoding the batches of a request, and only when
something failed: otherwise a request costs two dictionary operations.

Everything here runs on the network thread of that producer.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from kafka.errors import (
    BrokerResponseError,
    DuplicateSequenceNumberError,
    InvalidMetadataError,
    InvalidProducerEpochError,
    KafkaTimeoutError,
    NodeNotReadyError,
    NotEnoughReplicasAfterAppendError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
    RetriableError,
    UnknownProducerIdError,
    for_code,
)
from kafka.net.compat import KafkaNetClient
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecords

from inflight.producer.model import Cause
from state.records.messages import MESSAGE_ID

_OF_THE_PRODUCER: Final = OutOfOrderSequenceNumberError | UnknownProducerIdError | InvalidProducerEpochError
"""Refusals of the producer id and not of the record: under another id it is fine."""
_IN_LOG_ANYWAY: Final = (NotEnoughReplicasAfterAppendError, RequestTimedOutError)
"""Answers that do not say "no": the leader has the record, and too few replicas have confirmed it."""


class RecordKey(NamedTuple):
    """What identifies a record among those under way: the client id and the message id."""

    key: bytes
    message_id: bytes


class FailedTry(NamedTuple):
    """One record of a produce request that failed. answered: the broker said no. permanent: and it always will.

    began_ms: when the request was written, on the clock of time.monotonic.
    """

    record: RecordKey
    cause: Cause
    error: str
    began_ms: float
    answered: bool
    permanent: bool


class _Place(NamedTuple):
    """Of a record in a produce request. number: in its batch, from 0."""

    topic: str
    partition: int
    number: int


Answer: TypeAlias = Callable[[tuple[int, int] | None], None]
"""Partition and offset of a record that Kafka has confirmed; None = it has not, and `on_failed_try` was told why."""


class _Written:
    """A request on the wire; decoded only when somebody asks. followers: who is told of the answer, by record."""

    def __init__(self, request: ProduceRequest) -> None:
        self._request = request
        self.began_ms = time.monotonic() * 1_000
        self.followers: dict[RecordKey, Answer] = {}

    @cached_property
    def records(self) -> dict[RecordKey, _Place]:
        return dict(_records(self._request))


class RequestWatch:
    """on_failed_try: called for every record of every request that failed."""

    def __init__(self, on_failed_try: Callable[[FailedTry], None]) -> None:
        self._on_failed_try = on_failed_try
        self._unanswered: dict[int, _Written] = {}

    def client(self, **config: Any) -> KafkaNetClient:
        """What kafka-python calls to make its network client."""
        return _WatchedClient(self, **config)

    def follow(self, record: RecordKey, answer: Answer) -> bool:
        """For a record that kafka-python has given up. True: it is on the wire, and `answer` is called with what becomes of it.

        A connection that ends without an answer counts as one, so that it always comes.
        """
        for written in self._unanswered.values():
            if record in written.records:
                written.followers[record] = answer
                return True
        return False

    def written(self, request: ProduceRequest, answer: Any) -> None:
        """answer: the future of the response."""
        self._unanswered[id(request)] = written = _Written(request)
        answer.add_both(self._answered, id(request), written)

    def _answered(self, request: int, written: _Written, outcome: Any) -> None:
        self._unanswered.pop(request, None)
        if isinstance(outcome, BaseException):
            self._lost(written, outcome)
            _tell_followers(written, {})
            return
        refused = {
            (topic.name, partition.index): (for_code(partition.error_code), partition.error_message)
            for topic in outcome.responses
            for partition in topic.partition_responses
            if partition.error_code
        }
        if refused:
            self._refused(written, refused)
        if written.followers:
            offsets = {
                (topic.name, partition.index): partition.base_offset
                for topic in outcome.responses
                for partition in topic.partition_responses
                if not partition.error_code
            }
            _tell_followers(written, offsets)

    def _lost(self, written: _Written, error: BaseException) -> None:
        if isinstance(error, NodeNotReadyError):
            return  # it was never written
        timed_out = isinstance(error, KafkaTimeoutError | RequestTimedOutError)
        cause = Cause.TIME_OUT if timed_out else Cause.NETWORK
        text = "not answered in time" if timed_out else f"connection lost ({type(error).__name__}: {error})"
        for record in written.records:
            self._on_failed_try(FailedTry(record, cause, text, written.began_ms, answered=False, permanent=False))

    def _refused(self, written: _Written, refused: dict[tuple[str, int], tuple[type[BrokerResponseError], str | None]]) -> None:
        for record, place in written.records.items():
            kind, message = refused.get((place.topic, place.partition), (None, None))
            # A copy that is in the log already is no failure; a broker that no longer leads is asked around by kafka-python.
            if kind is None or issubclass(kind, DuplicateSequenceNumberError | InvalidMetadataError):
                continue
            text = f"the broker answered {kind.__name__}" + (f": {message}" if message else "")
            answered = not issubclass(kind, _IN_LOG_ANYWAY)
            permanent = answered and not issubclass(kind, RetriableError | _OF_THE_PRODUCER)
            cause = Cause.REJECTED if permanent else Cause.BROKER
            self._on_failed_try(FailedTry(record, cause, text, written.began_ms, answered=answered, permanent=permanent))


class _WatchedClient(KafkaNetClient):  # type: ignore[misc]
    def __init__(self, watch: RequestWatch, **config: Any) -> None:
        super().__init__(**config)
        self._watch = watch

    def send(self, node_id: Any, request: Any, **options: Any) -> Any:
        answer = super().send(node_id, request, **options)
        if isinstance(request, ProduceRequest):
            self._watch.written(request, answer)
        return answer


def _tell_followers(written: _Written, base_offsets: dict[tuple[str, int], int]) -> None:
    """base_offsets: of the partitions that have taken their records."""
    for record, answer in written.followers.items():
        topic, partition, number = written.records[record]
        base = base_offsets.get((topic, partition))
        answer(None if base is None else (partition, base + number))


def _records(request: ProduceRequest) -> Iterator[tuple[RecordKey, _Place]]:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            batches = MemoryRecords(bytes(partition.records))
            number = itertools.count()
            while (batch := batches.next_batch()) is not None:
                for record in batch:
                    message_id = next((value for name, value in reversed(record.headers) if name == MESSAGE_ID), b"")
                    yield RecordKey(record.key, message_id), _Place(topic.name, partition.index, next(number))
