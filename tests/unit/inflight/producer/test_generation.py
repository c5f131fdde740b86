"""A generation on a scripted producer: records in flight, held and failed."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from inflight.producer.generation import KafkaGeneration, TopicUnknown, connection_config
from inflight.producer.message import build_message, build_messages
from inflight.producer.model import Cause
from inflight.producer.send_loop import Send, SendRefused
from inflight.producer.settings import ProducerSettings
from sinks.kafka.failed_requests import FailedRequest
from sinks.kafka.librdkafka import ClientErrors
from sinks.kafka.record_producer import MAX_ONE_BY_ONE, Answer, NotSent


class FakeProducer:
    """A RecordProducer, as far as a generation uses it."""

    def __init__(self, *, on_request_failed: Callable[[bool, FailedRequest], None], **settings: Any) -> None:
        self.settings = settings
        self.request_failed = on_request_failed
        self.sent: list[tuple[bytes, bool, Answer]] = []
        self.records: list[tuple[int, Any, Any]] = []
        self.refuse: NotSent | None = None
        self.fatal_error: KafkaError | None = None
        self.errors = ClientErrors()

    def partition_counts(self, timeout_s: float) -> dict[str, int]:
        return {"inflight.messages": 1}

    def send(self, topic: str, partition: int, *, key: Any, headers: Any, value: bytes, answer: Answer, in_group: bool) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.records.append((partition, key, headers))
        self.sent.append((value, in_group, answer))

    def values(self) -> list[bytes]:
        return [value for value, _, _ in self.sent]

    def confirm(self, *numbers: int) -> None:
        for number in numbers:
            self.sent[number][2](None, None, 100 + number)


class FakeLoop:
    """Notes what is reported."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, bytes, Any]] = []

    def confirmed(self, send: Send, partition: int, offset: int, now_ms: float) -> None:
        self.reports.append(("confirmed", send.message.value, offset))

    def request_failed(self, send: Send, cause: Cause, error: str, now_ms: float) -> None:
        self.reports.append((cause.value, send.message.value, error))

    def given_up(self, send: Send, error: str, *, is_refused: bool, is_written: bool, now_ms: float) -> None:
        self.reports.append((error, send.message.value, (is_refused, is_written)))


class Scene:
    """A generation on a topic with one partition."""

    def __init__(self, **options: Any) -> None:
        self.settings = ProducerSettings(**options)
        self.loop: Any = FakeLoop()
        self.generation = KafkaGeneration("x:1", self.settings, lambda report: report(self.loop, 0.0))
        self.generation.connect()
        self.producer: Any = self.generation._producer

    def hand_over(self, value: bytes) -> Send:
        send = Send(build_message("client", "a/b", value, settings=self.settings), 0.0, 0, {})
        assert self.generation.hand_over(send)
        return send


LARGEST: list[int | None] = [None]
"""Bytes of a record that the topic takes."""


@pytest.fixture(autouse=True)
def producer(monkeypatch: pytest.MonkeyPatch) -> None:
    LARGEST[0] = None
    monkeypatch.setattr("inflight.producer.generation.RecordProducer", FakeProducer)
    monkeypatch.setattr("inflight.producer.generation._largest_record_bytes", lambda servers, settings: LARGEST[0])


def test_five_records_go_one_by_one_and_the_next_ones_as_a_group() -> None:
    scene = Scene()
    values = [b"%d" % number for number in range(12)]
    for value in values:
        scene.hand_over(value)
    assert scene.producer.values() == values[:MAX_ONE_BY_ONE]
    scene.producer.confirm(0, 1, 2, 3)
    assert len(scene.producer.sent) == 5
    scene.producer.confirm(4)
    assert scene.producer.values() == values
    assert [in_group for _, in_group, _ in scene.producer.sent] == 5 * [False] + 7 * [True]
    assert scene.loop.reports == [("confirmed", value, 100 + number) for number, value in enumerate(values[:5])]


def test_a_held_record_can_be_withdrawn_and_a_written_one_cannot() -> None:
    scene = Scene()
    sends = [scene.hand_over(b"%d" % number) for number in range(8)]
    assert not scene.generation.withdraw(sends[0])
    assert scene.generation.withdraw(sends[6])
    assert scene.generation.retire() == [sends[5], sends[7]]
    scene.producer.confirm(0, 1, 2, 3, 4)
    assert len(scene.producer.sent) == 5


def test_a_failed_request_is_reported_for_its_records_only() -> None:
    scene = Scene()
    for number in range(3):
        scene.hand_over(b"%d" % number)
    scene.producer.request_failed(True, FailedRequest(0, range(1, 4), "", True, False))
    scene.producer.request_failed(False, FailedRequest(1, range(1, 4), "", True, False))
    scene.producer.request_failed(False, FailedRequest(0, range(1, 4), "Local: Timed out", False, False))
    assert not scene.loop.reports
    scene.producer.request_failed(False, FailedRequest(0, range(2, 3), "", True, False))
    scene.producer.request_failed(False, FailedRequest(0, range(3, 4), "Not enough in-sync replicas", False, True))
    assert scene.loop.reports == [
        ("network", b"1", "connection lost before the answer came"),
        ("broker", b"2", "the broker answered 'Not enough in-sync replicas'"),
    ]


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
        (KafkaError._UNKNOWN_TOPIC, True),
        (KafkaError._PURGE_QUEUE, False),
        (KafkaError._FATAL, False),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, False),
    ],
)
def test_a_brokers_no_is_told_from_what_the_client_gives_up(code: int, is_refused: bool) -> None:
    scene = Scene()
    scene.hand_over(b"x")
    scene.producer.sent[0][2](KafkaError(code), None, -1)
    ((error, _, verdict),) = scene.loop.reports
    assert verdict == (is_refused, True)
    assert KafkaError(code).str() in error


def test_a_record_above_the_topics_limit_is_refused_before_it_is_sent() -> None:
    LARGEST[0] = 1_000
    scene = Scene()
    with pytest.raises(SendRefused, match=r"max\.message\.bytes"):
        scene.hand_over(b"x" * 1_000)
    assert scene.hand_over(b"x" * 500)
    assert Scene(compression="gzip").hand_over(b"x" * 1_000), "nobody knows its size"


def test_a_group_is_no_larger_than_what_the_topic_takes() -> None:
    LARGEST[0] = 1_000
    scene = Scene()
    for number in range(8):
        scene.hand_over(b"%d" % number * 300)
    scene.producer.confirm(0, 1, 2, 3, 4)
    assert len(scene.producer.sent) == 6
    scene.producer.confirm(5)
    assert len(scene.producer.sent) == 7


@pytest.mark.parametrize("has_written", [False, True])
def test_a_backend_without_the_right_to_write_gets_a_refusal(has_written: bool) -> None:
    scene = Scene()
    scene.hand_over(b"0")
    if has_written:
        scene.producer.confirm(0)
    scene.hand_over(b"1")
    scene.producer.fatal_error = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    scene.producer.sent[-1][2](KafkaError(KafkaError._PURGE_QUEUE), None, -1)
    error, _, verdict = scene.loop.reports[-1]
    assert verdict == (not has_written, True), "without a producer id nothing was written"
    assert ("CLUSTER_AUTHORIZATION_FAILED" in error) == (not has_written)


def test_a_topic_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProducer, "partition_counts", lambda self, timeout_s: {"other": 1})
    with pytest.raises(TopicUnknown, match=r"inflight topics`$"):
        Scene()
    with pytest.raises(TopicUnknown, match=r"with routing\.enabled = true"):
        Scene(topic="inflight.publications")


def test_a_client_that_has_ended_gives_back_what_was_held() -> None:
    scene = Scene()
    for number in range(7):
        scene.hand_over(b"%d" % number)
    scene.producer.refuse = NotSent(None, "it has ended")
    scene.producer.confirm(0, 1, 2, 3, 4)
    assert [(value, verdict) for _, value, verdict in scene.loop.reports[4:6]] == [(b"5", (False, False)), (b"6", (False, False))]
    send = Send(build_message("client", "a/b", b"x", settings=scene.settings), 0.0, 0, {})
    assert not scene.generation.hand_over(send)


@pytest.mark.parametrize("connect_ms", [100, 20_000, 3_600_000])
def test_a_connection_has_its_time_however_short_the_attempts_are(connect_ms: int) -> None:
    config = connection_config(ProducerSettings(min_connect_timeout_ms=connect_ms, attempt_timeout_ms=500))
    expected = min(300_000, max(1_000, connect_ms))
    assert set(config.values()) == {expected}
    assert connection_config(ProducerSettings(min_connect_timeout_ms=100, attempt_timeout_ms=5_000))["socket.timeout.ms"] == 5_000


def test_a_record_for_many_clients_names_them_and_has_no_key() -> None:
    scene = Scene()
    known, changed = (
        next(build_messages(["a", "b"], "a/b", b"x", settings=scene.settings, partitions=partitions)) for partitions in (1, 1)
    )
    assert scene.generation.hand_over(Send(known, 0.0, 0, {}))
    ((partition, key, headers),) = scene.producer.records
    assert (partition, key) == (0, None)
    assert headers[-2:] == [("recipient-a", b""), ("recipient-b", b"")]
    with pytest.raises(SendRefused, match="another number of partitions"):
        scene.generation.hand_over(Send(changed._replace(partitions=2), 0.0, 0, {}))
