"""sinks.kafka.record_producer, on a client that answers what the test says. With a broker: tests/integration/kafka."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from sinks.kafka import record_producer
from sinks.kafka.librdkafka import KafkaFailed
from sinks.kafka.record_producer import MAX_GROUP_BYTES, Answer, NotSent, RecordProducer
from tests.support.waiting import wait_until

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Message:
    def __init__(self, kind: int, timestamp_ms: int) -> None:
        self.timestamp = lambda: (kind, timestamp_ms)
        self.offset = lambda: 77


class Client:
    """confluent_kafka.Producer, as far as a RecordProducer uses it. Delivery reports wait for `poll`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.under_way: list[tuple[str, bytes, Callable[..., None]]] = []
        self.reports: list[Callable[[], None]] = []
        self.refuse: Exception | None = None
        self.purged = 0
        self.fatal: KafkaError | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.under_way) + len(self.reports)

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, *, on_delivery: Any, headers: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.under_way.append((topic, value, on_delivery))

    def answer(self, error: KafkaError | None, kind: int = TIMESTAMP_CREATE_TIME) -> None:
        """The oldest. kind: of its time."""
        _, _, on_delivery = self.under_way.pop(0)
        self.reports.append(lambda: on_delivery(error, Message(kind, 1_234)))

    def poll(self, timeout: float) -> None:
        fatal, self.fatal = self.fatal, None
        if fatal is not None:
            raise KafkaException(fatal)
        with self._lock:
            reports, self.reports = self.reports, []
        for report in reports:
            report()
        threading.Event().wait(0.001)

    def purge(self, blocking: bool = True) -> None:
        self.purged += 1
        while self.under_way:
            self.answer(KafkaError(KafkaError._PURGE_QUEUE))

    def flush(self, timeout: float) -> None:
        self.poll(timeout)

    def list_topics(self, *topic: str, timeout: float) -> Any:
        self.config["error_cb"](KafkaError(KafkaError._AUTHENTICATION))
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


class Answers:
    def __init__(self) -> None:
        self.got: list[tuple[bytes, int | None, int | None]] = []
        self.offsets: list[int] = []

    def to(self, value: bytes) -> Answer:
        def answer(error: KafkaError | None, broker_ms: int | None, offset: int) -> None:
            self.got.append((value, None if error is None else error.code(), broker_ms))
            self.offsets.append(offset)

        return answer


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordProducer]:
    monkeypatch.setattr(record_producer, "Producer", Client)
    made = RecordProducer(bootstrap_servers="x:1", options={"client.id": "me"}, config={"linger.ms": 3, "acks": "1"})
    yield made
    made.abandon()


def send(producer: RecordProducer, value: bytes, answers: Answers) -> None:
    producer.send("t", 0, key=b"k", value=value, headers=None, answer=answers.to(value))


def test_it_is_idempotent_whatever_the_options(producer: RecordProducer) -> None:
    config = producer._one_by_one.client.config
    assert (config["acks"], config["enable.idempotence"], config["client.id"], config["linger.ms"]) == ("all", True, "me", 3)


def test_a_group_has_a_client_that_waits_for_all_of_it(producer: RecordProducer) -> None:
    answers = Answers()
    for value, in_group in (b"one", False), (b"two", True), (b"three", True):
        producer.send("t", 0, key=b"k", value=value, headers=None, answer=answers.to(value), in_group=in_group)
    assert [value for _, value, _ in producer._one_by_one.client.under_way] == [b"one"]
    assert [value for _, value, _ in producer._groups.client.under_way] == [b"two", b"three"]
    config = producer._groups.client.config
    assert (config["acks"], config["enable.idempotence"], config["client.id"]) == ("all", True, "me")
    assert config["linger.ms"] > 0
    assert config["batch.size"] > MAX_GROUP_BYTES
    producer._groups.client.answer(TOO_LARGE)
    wait_until(lambda: len(answers.got) == 3, "all are given up, also what was sent one by one")


def test_kafkas_options_may_be_text_and_hold_for_what_is_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_producer, "Producer", Client)
    made = RecordProducer(bootstrap_servers="x:1", options={"linger.ms": "7"}, config={"linger.ms": 0})
    assert made._one_by_one.client.config["linger.ms"] == "7"
    made.abandon()


def test_a_producer_that_cannot_be_made_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(config: dict[str, Any]) -> Client:
        if "batch.size" in config:
            raise KafkaException(KafkaError(KafkaError._FAIL))
        return Client(config)

    monkeypatch.setattr(record_producer, "Producer", make)
    before = threading.active_count()
    with pytest.raises(KafkaFailed):
        RecordProducer(bootstrap_servers="x:1", options={}, config={})
    assert threading.active_count() == before


def test_a_confirmation_has_the_time_that_the_broker_gave_the_record(producer: RecordProducer) -> None:
    answers = Answers()
    for value, kind in (b"one", TIMESTAMP_LOG_APPEND_TIME), (b"two", TIMESTAMP_CREATE_TIME):
        send(producer, value, answers)
        producer._one_by_one.client.answer(None, kind)
    wait_until(lambda: len(answers.got) == 2, "they are confirmed")
    assert answers.got == [(b"one", None, 1_234), (b"two", None, None)]


def test_once_a_record_is_given_up_everything_is(producer: RecordProducer) -> None:
    answers = Answers()
    for value in b"one", b"two", b"three":
        send(producer, value, answers)
    producer._one_by_one.client.answer(TOO_LARGE)
    wait_until(lambda: len(answers.got) == 3, "all are given up")
    assert [(value, code) for value, code, _ in answers.got] == [
        (b"one", KafkaError.MSG_SIZE_TOO_LARGE),
        (b"two", KafkaError._PURGE_QUEUE),
        (b"three", KafkaError._PURGE_QUEUE),
    ]
    with pytest.raises(NotSent, match="has given a record up"):
        send(producer, b"four", answers)


def test_a_bug_in_one_callback_costs_no_other(producer: RecordProducer) -> None:
    answers = Answers()

    def fails(error: KafkaError | None, broker_ms: int | None, offset: int) -> None:
        raise ValueError("a bug")

    producer.send("t", 0, key=b"k", value=b"one", headers=None, answer=fails)
    producer._one_by_one.client.answer(None)
    wait_until(lambda: not len(producer._one_by_one.client), "the first callback was called")
    send(producer, b"two", answers)
    producer._one_by_one.client.answer(None)
    wait_until(lambda: answers.got, "the next one is, too")


@pytest.mark.parametrize(("error", "code"), [(KafkaException(TOO_LARGE), TOO_LARGE.code()), (BufferError("queue full"), None)])
def test_a_refused_record_raises_at_once_and_harms_no_other(producer: RecordProducer, error: Exception, code: int | None) -> None:
    answers = Answers()
    producer._one_by_one.client.refuse = error
    with pytest.raises(NotSent) as refused:
        send(producer, b"large", answers)
    assert (None if refused.value.error is None else refused.value.error.code()) == code
    producer._one_by_one.client.refuse = None
    send(producer, b"small", answers)
    assert not answers.got
    assert not producer.has_given_up


def test_after_a_fatal_error_it_accepts_nothing_and_gives_up_all(producer: RecordProducer) -> None:
    answers = Answers()
    send(producer, b"one", answers)
    producer._one_by_one.client.refuse = KafkaException(KafkaError(KafkaError._FATAL))
    with pytest.raises(NotSent):
        send(producer, b"two", answers)
    assert producer.has_given_up
    wait_until(lambda: answers.got, "the other one is given up")
    assert answers.got[0][:2] == (b"one", KafkaError._PURGE_QUEUE)


def test_a_fatal_error_is_kept_and_confirmations_go_on(producer: RecordProducer) -> None:
    answers = Answers()
    producer._one_by_one.client.fatal = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    wait_until(lambda: producer.fatal_error is not None, "it is kept")
    send(producer, b"one", answers)
    producer._one_by_one.client.answer(None)
    wait_until(lambda: answers.got, "the thread goes on")


def test_what_is_undecided_at_the_end_is_given_up_before_the_end(producer: RecordProducer) -> None:
    answers = Answers()
    send(producer, b"one", answers)
    client = producer._one_by_one.client
    producer.abandon()
    assert [code for _, code, _ in answers.got] == [KafkaError._PURGE_QUEUE]
    assert client.purged
    with pytest.raises(NotSent):
        send(producer, b"two", answers)
    with pytest.raises(KafkaFailed, match="has ended"):
        producer.partition_count("t")


def test_closing_waits_for_confirmations(producer: RecordProducer) -> None:
    answers = Answers()
    send(producer, b"one", answers)
    producer._one_by_one.client.answer(None)
    producer.close()
    assert answers.got == [(b"one", None, None)]


def test_a_refused_login_is_distinguished_from_an_unreachable_broker(producer: RecordProducer) -> None:
    with pytest.raises(KafkaFailed, match=f"no broker answers: {KafkaError(KafkaError._AUTHENTICATION).str()}"):
        producer.partition_counts()
