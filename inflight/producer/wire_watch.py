"""Watches the produce requests of one kafka-python producer: which records were written, answered, refused, or lost.

kafka-python tells the sender of a record only the end of the story. Whether a record that it gave up was ever written to a broker
decides if it may be handed over again (send_loop.py, rule 3). So kafka-python gets a client of ours (its setting `kafka_client`),
which sees each request pass. Records are found by decoding the batches of a request, and only when a request fails: the normal
path costs two dictionary operations per request.

Everything here runs on the network thread of that producer.
"""

import time
from collections.abc import Callable, Iterator
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

_OF_THE_SESSION: Final = OutOfOrderSequenceNumberError | UnknownProducerIdError | InvalidProducerEpochError
"""Refusals of the producer session and not of the record: in another session it is fine."""
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


class Place(NamedTuple):
    """Of a record within a produce request. delta: its place in the batch."""

    topic: str
    partition: int
    delta: int


class _Written:
    """A request on the wire; decoded only when somebody asks."""

    __slots__ = ("_records", "began_ms", "request")

    def __init__(self, request: ProduceRequest) -> None:
        self.request = request
        self.began_ms = time.monotonic() * 1_000
        self._records: dict[RecordKey, Place] | None = None

    @property
    def records(self) -> dict[RecordKey, Place]:
        if self._records is None:
            self._records = {record: place for place, record in _records(self.request)}
        return self._records


Answer: TypeAlias = Callable[[int | None, int, str], None]
"""partition (None = there is no confirmation), offset, and what happened instead."""


class WireWatch:
    """on_failed_try: called for every record of every request that failed."""

    def __init__(self, on_failed_try: Callable[[FailedTry], None]) -> None:
        self._on_failed_try = on_failed_try
        self._unanswered: dict[int, _Written] = {}
        self._followed: dict[RecordKey, Answer] = {}

    def client(self, **config: Any) -> KafkaNetClient:
        """What kafka-python calls to make its network client."""
        return _WatchedClient(self, **config)

    def follow(self, record: RecordKey, answer: Answer) -> bool:
        """For a record that kafka-python has given up. True: it is on the wire, and `answer` is called with what comes of it."""
        if not any(record in written.records for written in self._unanswered.values()):
            return False
        self._followed[record] = answer
        return True

    def written(self, request: ProduceRequest, answer: Any) -> None:
        """answer: the future of the response."""
        written = _Written(request)
        self._unanswered[id(request)] = written
        answer.add_both(self._answered, written)

    def _answered(self, written: _Written, outcome: Any) -> None:
        self._unanswered.pop(id(written.request), None)
        if isinstance(outcome, BaseException):
            self._lost(written, outcome)
            return
        answers = {
            (topic.name, partition.index): partition for topic in outcome.responses for partition in topic.partition_responses
        }
        refused = {
            place: (for_code(partition.error_code), partition.error_message)
            for place, partition in answers.items()
            if partition.error_code
        }
        if refused:
            self._refused(written, refused)
        if self._followed:
            self._tell_followers(written, answers)

    def _tell_followers(self, written: _Written, answers: dict[tuple[str, int], Any]) -> None:
        for record, place in written.records.items():
            tell = self._followed.pop(record, None)
            if tell is None:
                continue
            partition = answers[place.topic, place.partition]
            if partition.error_code:
                tell(None, -1, f"the broker answered {for_code(partition.error_code).__name__}")
            else:
                tell(place.partition, partition.base_offset + place.delta, "")

    def _lost(self, written: _Written, error: BaseException) -> None:
        if isinstance(error, NodeNotReadyError):
            return  # it was never written
        timed_out = isinstance(error, KafkaTimeoutError | RequestTimedOutError)
        cause = Cause.TIME_OUT if timed_out else Cause.NETWORK
        text = "not answered in time" if timed_out else f"connection lost ({type(error).__name__}: {error})"
        for record in written.records:
            self._on_failed_try(FailedTry(record, cause, text, written.began_ms, answered=False, permanent=False))
            if (tell := self._followed.pop(record, None)) is not None:
                tell(None, -1, text)

    def _refused(self, written: _Written, refused: dict[tuple[str, int], tuple[type[BrokerResponseError], str | None]]) -> None:
        for record, place in written.records.items():
            kind, message = refused.get((place.topic, place.partition), (None, None))
            # A copy that is in the log already is no failure; a broker that no longer leads is asked around by kafka-python.
            if kind is None or issubclass(kind, DuplicateSequenceNumberError | InvalidMetadataError):
                continue
            text = f"the broker answered {kind.__name__}" + (f": {message}" if message else "")
            answered = not issubclass(kind, _IN_LOG_ANYWAY)
            permanent = answered and not issubclass(kind, RetriableError | _OF_THE_SESSION)
            cause = Cause.REJECTED if permanent else Cause.BROKER
            self._on_failed_try(FailedTry(record, cause, text, written.began_ms, answered=answered, permanent=permanent))


class _WatchedClient(KafkaNetClient):  # type: ignore[misc]
    def __init__(self, watch: WireWatch, **config: Any) -> None:
        super().__init__(**config)
        self._watch = watch

    def send(self, node_id: Any, request: Any, **options: Any) -> Any:
        answer = super().send(node_id, request, **options)
        if isinstance(request, ProduceRequest):
            self._watch.written(request, answer)
        return answer


def _records(request: ProduceRequest) -> Iterator[tuple[Place, RecordKey]]:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            batches = MemoryRecords(bytes(partition.records))
            delta = 0
            while (batch := batches.next_batch()) is not None:
                for record in batch:
                    message_id = next((value for name, value in reversed(record.headers) if name == MESSAGE_ID), b"")
                    yield Place(topic.name, partition.index, delta), RecordKey(record.key, message_id)
                    delta += 1
