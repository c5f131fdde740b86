"""sinks.kafka.append: between kafka-python's threads and the loop. With a broker: tests/integration/test_gateway_kafka.py."""

import asyncio
import threading
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from kafka.future import Future

from sinks.kafka.append import AppendFailed, KafkaEventLog, RecordTooLarge


class FakeProducer:
    """kafka-python's KafkaProducer, as far as KafkaEventLog uses it."""

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.futures: list[Future] = []
        self.refuse: Exception | None = None
        self.closed = False
        self.topics = {"events": {0, 1, 2}}

    def partitions_for(self, topic: str) -> set[int]:
        return self.topics.get(topic, set())

    def send(self, topic: str, **_: Any) -> Future:
        if self.refuse is not None:
            raise self.refuse
        future = Future()
        self.futures.append(future)
        return future

    def close(self, timeout: float | None = None) -> None:
        self.closed = True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()

    def make(**config: Any) -> FakeProducer:
        made.config = config
        return made

    monkeypatch.setattr("sinks.kafka.append.KafkaProducer", make)
    monkeypatch.setattr("sinks.kafka.append._METADATA_TIMEOUT_S", 0.0)
    return made


async def started() -> KafkaEventLog:
    log = KafkaEventLog(
        bootstrap_servers="x", linger_ms=0, timeout_ms=10_000, max_request_bytes=1_000, options={"client_id": "me"}
    )
    await log.start(["events"])
    return log


def on_another_thread(action: Any) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_confirmations_reach_the_loop_in_one_wake_up_and_in_order(producer: FakeProducer) -> None:
    async def scenario() -> None:
        log = await started()
        done: list[tuple[int, Exception | None, int]] = []
        for number in range(3):
            log.append(
                "events", b"k", b"v", None, lambda error, number=number: done.append((number, error, threading.get_ident()))
            )
        on_another_thread(lambda: [future.success(None) for future in producer.futures])
        assert done == []
        await asyncio.sleep(0)
        assert done == [(number, None, threading.get_ident()) for number in range(3)]
        await log.close(1)
        assert producer.closed

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "kind"), [(KafkaTimeoutError("late"), AppendFailed), (MessageSizeTooLargeError("big"), RecordTooLarge)]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_failures_are_told_and_never_raised(
    producer: FakeProducer, error: Exception, kind: type[Exception], at_once: bool
) -> None:
    async def scenario() -> None:
        log = await started()
        done: list[Exception | None] = []
        producer.refuse = error if at_once else None
        log.append("events", b"k", b"v", None, done.append)
        if not at_once:
            on_another_thread(lambda: producer.futures[0].failure(error))
        await asyncio.sleep(0)
        assert [type(failure) for failure in done] == [kind]
        await log.close(1)

    asyncio.run(scenario())


def test_closing_waits_for_what_is_unconfirmed_but_not_for_ever(producer: FakeProducer) -> None:
    async def scenario() -> None:
        log = await started()
        done: list[Exception | None] = []
        log.append("events", b"k", b"v", None, done.append)
        closing = asyncio.create_task(log.close(10))
        await asyncio.sleep(0)
        assert not producer.closed
        on_another_thread(lambda: producer.futures[0].success(None))
        await closing
        assert done == [None]
        other = await started()
        other.append("events", b"k", b"v", None, done.append)
        await other.close(0.01)

    asyncio.run(scenario())


def test_a_producer_that_cannot_flush_is_let_go_without_an_error(producer: FakeProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(timeout: float) -> None:
        raise KafkaTimeoutError("no broker")

    monkeypatch.setattr(producer, "close", close)

    async def scenario() -> None:
        await (await started()).close(0.01)

    asyncio.run(scenario())


def test_a_missing_topic_is_named(producer: FakeProducer) -> None:
    producer.topics = {}
    with pytest.raises(AppendFailed, match="topic events does not exist"):
        asyncio.run(started())
    assert producer.closed


def test_the_producer_is_idempotent_and_the_users_options_win(producer: FakeProducer) -> None:
    asyncio.run(started())
    config = producer.config
    assert (config["acks"], config["enable_idempotence"], config["client_id"]) == ("all", True, "me")
    assert config["delivery_timeout_ms"] >= config["request_timeout_ms"] + config["linger_ms"]
    assert config["delivery_timeout_ms"] == 10_000
