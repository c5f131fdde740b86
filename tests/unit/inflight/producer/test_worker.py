"""The worker without a Kafka: callbacks, deadlines and the end."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry

from inflight import Cause, InvalidMessage, Producer, ProducerClosed, ProducerSettings, SendFailed, SendResult, SomeSendsFailed
from inflight.local.child_process import free_port
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.throttle import ThrottleOfPublications
from inflight.producer.worker import Worker
from sinks.kafka.partitioning import partition_of
from sinks.kafka.throttles import ThrottleTable
from state.records.throttle import encode_throttle, partition_key
from tests.support.waiting import wait_until


@pytest.fixture
def producer() -> Iterator[Producer]:
    """Yields a Producer whose broker address has no listener."""
    options: dict[str, Any] = {"attempt_timeout_ms": 100, "max_attempts": 2, "throttle_timeout_ms": 0, "max_pending_messages": 2}
    made = Producer(f"127.0.0.1:{free_port()}", registry=CollectorRegistry(), **options)
    yield made
    made.close(0.0)


def test_a_send_ends_by_the_clock_when_no_broker_answers(producer: Producer) -> None:
    with pytest.raises(SendFailed, match="all 2 attempts failed") as caught:
        producer.send("client", "a/b", b"x")
    assert [attempt.cause for attempt in caught.value.attempts] == [Cause.TIME_OUT] * 2
    assert not caught.value.may_be_sent


def test_a_callback_may_send_but_does_not_wait_for_room(producer: Producer) -> None:
    again: list[Any] = []

    def send_three(_: Any) -> None:
        again.extend(producer.send_async("client", "a/b", b"again") for _ in range(3))

    first = producer.send_async("client", "a/b", b"x")
    first.add_done_callback(send_three)
    wait_until(lambda: len(again) == 3, "the callback is done")
    outcomes = [future.exception(10) for future in again]
    assert all(isinstance(outcome, SendFailed) for outcome in outcomes)
    assert sum("no room" in str(outcome) for outcome in outcomes) == 1


def test_whoever_closes_finds_all_callbacks_called(producer: Producer) -> None:
    called = threading.Event()

    def slowly(_: Any) -> None:
        time.sleep(0.2)
        called.set()

    producer.send_async("client", "a/b", b"x").add_done_callback(slowly)
    producer.close(5.0)
    assert called.is_set()
    with pytest.raises(ProducerClosed):
        producer.send("client", "a/b", b"x")


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    made = Producer(f"127.0.0.1:{free_port()}", registry=CollectorRegistry(), throttle_timeout_ms=0)
    future = made.send_async("client", "a/b", b"x")
    made.close(0.1)
    assert "closed" in str(future.exception(0))
    wait_until(lambda: threading.active_count() <= before, "all threads end")


def test_a_publication_ends_by_the_same_rules_and_names_no_client(producer: Producer) -> None:
    with pytest.raises(SendFailed, match=r"publication 'm' was not sent: all 2 attempts failed") as caught:
        producer.publish("a/b", b"x", message_id="m")
    assert caught.value.client_id == ""
    assert [attempt.cause for attempt in caught.value.attempts] == [Cause.TIME_OUT] * 2
    producer.close(0.0)
    with pytest.raises(ProducerClosed):
        producer.publish("a/b", b"x")


def test_a_message_to_many_clients_has_an_outcome_for_each(producer: Producer) -> None:
    with pytest.raises(SomeSendsFailed) as caught:
        producer.send_many(["a", "b", "c"], "a/b", b"x", timeout_s=0.3)
    outcomes = [outcome for outcome in caught.value.outcomes if isinstance(outcome, SendFailed)]
    assert [outcome.client_id for outcome in outcomes] == ["a", "b", "c"]
    assert len({outcome.message_id for outcome in outcomes}) == 1
    assert producer.send_many([], "a/b", b"x", timeout_s=0.1) == []
    with pytest.raises(InvalidMessage, match="twice"):
        producer.send_many(["a", "a"], "a/b", b"x")


def test_publications_wait_only_for_a_throttle_of_all_clients() -> None:
    table = ThrottleTable()
    publications = ThrottleOfPublications(table, "publications", lambda: 4)
    table.apply(b"a", b'{"reason": "its queue is long"}')
    assert publications.of("a") is None
    table.apply(b"*", b'{"reason": "the engine is behind"}')
    throttle = publications.of("a")
    assert throttle is not None
    assert throttle.reason == "the engine is behind"


def test_publications_wait_with_the_partition_of_their_key() -> None:
    table, counts = ThrottleTable(), [4]
    publications = ThrottleOfPublications(table, "publications", lambda: counts[0])
    waits, other = next(key for key in "abcdefgh" if partition_of(key.encode(), 4) == 1), partition_key("uplink", 1)
    table.apply(other.encode(), encode_throttle("another topic", 1, is_progressing=True))
    assert publications.of(waits) is None
    table.apply(partition_key("publications", 1).encode(), encode_throttle("it waits", 1, is_progressing=True))
    throttle = publications.of(waits)
    assert throttle is not None
    assert throttle.is_progressing
    assert publications.of(next(key for key in "abcdefgh" if partition_of(key.encode(), 4) != 1)) is None
    counts[0] = 0
    assert publications.of(waits) is None, "the number of partitions is not known yet"


def test_publishing_waits_until_the_matcher_goes_on(confirming: Producer) -> None:
    topic = ProducerSettings().publications_topic
    confirming.publish("a", b"the first makes the client")
    throttles, key = confirming._worker.throttles, partition_key(topic, 0).encode()
    throttles.apply(key, encode_throttle("it waits", 1, is_progressing=True))
    with pytest.raises(SendFailed, match="530 TOO_MANY_REQUESTS: a subscriber is connected and behind"):
        confirming.publish("a", b"x", timeout_s=0.2)
    future = confirming.publish_async("a", b"x")
    assert not future.done()
    throttles.apply(key, None)
    confirming._worker._throttles_changed()
    assert future.result(5).topic == topic


class FakeGeneration:
    """Opens at once. Each learns when it opens that the backend has no right to write."""

    is_login_refused = False

    def __init__(self, *args: Any) -> None:
        self.not_authorised = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)

    def connect(self) -> None: ...


class ConfirmingGeneration(FakeGeneration):
    """Confirms each record a moment later."""

    partitions = 1

    def __init__(self, servers: str, settings: ProducerSettings, post: Any) -> None:
        self.not_authorised = None
        self._post = post

    def hand_over(self, send: Any) -> bool:
        threading.Thread(target=self._post, args=(lambda loop, now: loop.confirmed(send, 0, 0, now),)).start()
        return True

    def withdraw(self, send: Any) -> bool:
        return False

    def retire(self) -> list[Any]:
        return []

    def end(self) -> None: ...


@pytest.fixture
def confirming(monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """Yields a Producer with room for two messages, and a Kafka that confirms all, for a client `c` that is behind."""
    monkeypatch.setattr("inflight.producer.worker.KafkaGeneration", ConfirmingGeneration)
    options: dict[str, Any] = {"deadline_ms": 200, "throttle_timeout_ms": 0, "max_pending_messages": 2}
    made = Producer(f"127.0.0.1:{free_port()}", registry=CollectorRegistry(), **options)
    made._worker.throttles.apply(b"c", b'{"reason": "long queue", "is_progressing": true}')
    yield made
    made.close(0.0)


def catch_up(producer: Producer) -> None:
    producer._worker.throttles.apply(b"c", None)
    producer._worker._throttles_changed()


def test_sending_blocks_while_a_connected_client_catches_up(confirming: Producer) -> None:
    futures: list[Future[SendResult]] = []
    sender = threading.Thread(target=lambda: futures.extend([confirming.send_async("c", "a", b"x") for _ in range(6)]))
    sender.start()
    until_s = time.monotonic() + 1.5
    wait_until(lambda: time.monotonic() > until_s, "several deadlines have passed")
    assert sender.is_alive(), "two messages have room, and the third waits for it"
    catch_up(confirming)
    sender.join(10)
    assert len({future.result(10).message_id for future in futures}) == 6


def test_a_send_with_its_own_time_does_not_wait_longer_for_room(confirming: Producer) -> None:
    for _ in range(2):
        confirming.send_async("c", "a", b"x")
    late = confirming.send_async("c", "a", b"x", timeout_s=0.1)
    assert "no room" in str(late.exception(0))


def test_a_client_that_catches_up_frees_its_sends_at_once(confirming: Producer) -> None:
    future = confirming.send_async("c", "a", b"x")
    wait_until(lambda: confirming._worker.is_anybody_behind, "the send waits")
    catch_up(confirming)
    freed_s = time.monotonic()
    assert future.result(5).offset == 0
    assert time.monotonic() - freed_s < 0.5, "not at the end of a backoff of a second or more"


def test_a_missing_right_is_reported_before_the_next_generation_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.producer.worker.KafkaGeneration", FakeGeneration)
    worker = Worker("x:1", ProducerSettings(throttle_timeout_ms=0), ProducerMetrics(CollectorRegistry()))
    reports: list[tuple[str, bool]] = []

    class Loop:
        outcomes: ClassVar[list[Any]] = []

        def kafka_unavailable(self, reason: str, *, permanent: bool, now_ms: float) -> None:
            reports.append((reason, permanent))

        def generation_opened(self, generation: Any, now_ms: float) -> None:
            reports.append(("opened", False))

        def next_due_ms(self) -> None: ...

    worker._loop = Loop()  # type: ignore[assignment]
    worker._open_generation()
    worker._open_generation()
    refusal = f"x:1: {KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED).str()}"
    assert reports == [("opened", False), (refusal, True), ("opened", False)]
