"""The Producer against a real broker that is stopped, frozen and killed: every send ends confirmed, once, or raised."""

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from prometheus_client import CollectorRegistry

from inflight import Attempt, Cause, Producer, ProducerSettings, SendFailed, SendResult, TransactionFailed
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from tests.support.kafka_topics import read_topic
from tests.support.processes import freeze, thaw

pytestmark = pytest.mark.servers

MESSAGES = 10_000
SYNC_THREADS = 4
ASYNC_THREADS = 2
PARTITIONS = 4
_topics = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), jars=ensure_jars()) as kafka:
        yield kafka


@pytest.fixture
def settings(broker: EmbeddedKafka) -> ProducerSettings:
    """Topics of its own for every test."""
    number = next(_topics)
    settings = ProducerSettings(topic=f"messages-{number}", throttle_topic=f"throttle-{number}")
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics(
        [
            NewTopic(settings.topic, num_partitions=PARTITIONS, replication_factor=1),
            NewTopic(
                settings.throttle_topic, num_partitions=1, replication_factor=1, topic_configs={"cleanup.policy": "compact"}
            ),
        ]
    )
    admin.close()
    return settings


def producer(broker: EmbeddedKafka, settings: ProducerSettings, **options: Any) -> Producer:
    return Producer(broker.bootstrap_servers, settings=settings, registry=CollectorRegistry(), **options)


def eventually(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def log_of(broker: EmbeddedKafka, topic: str, *, isolation_level: str = "read_committed") -> dict[str, list[tuple[int, int]]]:
    """message-id → where it is in the log, in the order of the log."""
    found: dict[str, list[tuple[int, int]]] = {}
    for record in read_topic(broker.bootstrap_servers, topic, isolation_level=isolation_level):
        found.setdefault(dict(record.headers)["message-id"].decode(), []).append((record.partition, record.offset))
    return found


@dataclass
class Load:
    """10,000 messages, half of them by `send` from four threads, half by `send_async` from two."""

    producer: Producer
    outcomes: dict[str, SendResult | SendFailed] = field(default_factory=dict)
    confirmed: int = 0
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        half = MESSAGES // 2
        for number in range(SYNC_THREADS):
            self._start(self._sync, f"sync-{number}", half // SYNC_THREADS)
        for number in range(ASYNC_THREADS):
            self._start(self._async, f"async-{number}", half // ASYNC_THREADS)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def _start(self, work: Callable[[str, int], None], name: str, count: int) -> None:
        thread = threading.Thread(target=work, args=(name, count), name=name)
        self.threads.append(thread)
        thread.start()

    def _sync(self, name: str, count: int) -> None:
        for number in range(count):
            message_id = f"{name}-{number}"
            try:
                result = self.producer.send(f"client-{number % 50}", "a/b", b"x" * 100, message_id=message_id)
            except SendFailed as failure:
                self.outcomes[message_id] = failure
            else:
                self._confirmed(message_id, result)

    def _async(self, name: str, count: int) -> None:
        futures: dict[str, Future[SendResult]] = {}
        for number in range(count):
            message_id = f"{name}-{number}"
            futures[message_id] = self.producer.send_async(f"client-{number % 50}", "a/b", b"y" * 100, message_id=message_id)
        for message_id, future in futures.items():
            try:
                self._confirmed(message_id, future.result())
            except SendFailed as failure:
                self.outcomes[message_id] = failure

    def _confirmed(self, message_id: str, result: SendResult) -> None:
        self.outcomes[message_id] = result
        self.confirmed += 1


def check_attempts(attempts: tuple[Attempt, ...], settings: ProducerSettings) -> None:
    """Checks the recorded attempts: never too many, each but the last with an error, and the next one at once."""
    assert len(attempts) <= settings.max_attempts
    for attempt, following in itertools.pairwise(attempts):
        assert attempt.error is not None
        assert attempt.cause in (Cause.TIME_OUT, Cause.NETWORK, Cause.BROKER)
        assert attempt.wait_ms == 0
        assert abs(following.started_ms - (attempt.started_ms + attempt.duration_ms)) <= 2  # two roundings


def check(load: Load, broker: EmbeddedKafka, settings: ProducerSettings) -> Counter[str]:
    """Every message has one outcome, and the log agrees with it. Returns how many had which."""
    assert len(load.outcomes) == MESSAGES
    log = log_of(broker, settings.topic)
    counts: Counter[str] = Counter()
    for message_id, outcome in load.outcomes.items():
        places = log.pop(message_id, [])
        check_attempts(outcome.attempts, settings)
        if isinstance(outcome, SendResult):
            counts["confirmed"] += 1
            counts["retried"] += len(outcome.attempts) > 1
            assert outcome.message_id == message_id
            assert outcome.attempts[-1].error is None
            assert places == [(outcome.partition, outcome.offset)], f"{message_id} is in the log {len(places)} times"
        else:
            counts["raised"] += 1
            counts["raised, but sent"] += len(places)
            assert outcome.attempts or outcome.cause is Cause.TIME_OUT
            assert len(places) <= outcome.may_be_sent, f"{message_id} is in the log {len(places)} times: {outcome}"
    assert not log
    return counts


@pytest.mark.faults
@pytest.mark.promise("backend-to-engine")
def test_every_send_is_confirmed_once_or_raised_while_kafka_is_stopped(broker: EmbeddedKafka, settings: ProducerSettings) -> None:
    with producer(broker, settings, attempt_timeout_ms=4_000, max_pending_messages=500) as sender:
        load = Load(sender)
        load.start()
        eventually(lambda: load.confirmed > 300)
        broker.stop()
        stopped = time.monotonic()
        eventually(lambda: time.monotonic() - stopped > 20.0)
        broker.start()
        load.join()
    counts = check(load, broker, settings)
    print(counts)
    assert counts["raised"] > 0
    assert counts["confirmed"] > MESSAGES // 2


@pytest.mark.faults
@pytest.mark.promise("backend-to-engine")
def test_every_send_is_confirmed_once_or_raised_while_kafka_is_frozen(broker: EmbeddedKafka, settings: ProducerSettings) -> None:
    """The answers that the frozen broker owes come after the producer has given up: exactly the case that makes duplicates."""
    with producer(broker, settings, attempt_timeout_ms=1_000, max_pending_messages=500) as sender:
        load = Load(sender)
        load.start()
        for threshold in (1_000, 3_000):
            eventually(lambda goal=threshold: len(load.outcomes) > goal)  # type: ignore[misc]
            freeze(broker.pid)
            frozen = time.monotonic()
            eventually(lambda since=frozen: time.monotonic() - since > 6.0)  # type: ignore[misc]
            thaw(broker.pid)
        load.join()
    counts = check(load, broker, settings)
    print(counts)
    assert counts["raised"] > 0
    assert counts["confirmed"] > MESSAGES // 2


@pytest.mark.faults
def test_every_send_is_confirmed_once_if_kafka_is_killed_and_back_in_time(
    broker: EmbeddedKafka, settings: ProducerSettings
) -> None:
    with producer(broker, settings, attempt_timeout_ms=15_000, max_pending_messages=2_000) as sender:
        load = Load(sender)
        load.start()
        eventually(lambda: load.confirmed > 300)
        broker.kill()
        broker.start()
        load.join()
    counts = check(load, broker, settings)
    print(counts)
    assert counts["confirmed"] == MESSAGES


@pytest.mark.faults
def test_a_lost_connection_ends_an_attempt_at_once(broker: EmbeddedKafka, settings: ProducerSettings) -> None:
    """Kafka's client reports this in its debug log only; the test fails if the wording changes."""
    with producer(broker, settings) as sender:
        sender.send("client", "a/b", b"before")
        freeze(broker.pid)
        future = sender.send_async("client", "a/b", b"x")
        frozen = time.monotonic()
        eventually(lambda: time.monotonic() - frozen > 0.5)
        broker.kill()
        broker.start()
        result = future.result(60)
    assert [attempt.cause for attempt in result.attempts] == [Cause.NETWORK, None]
    assert 500 <= result.attempts[0].duration_ms < 5_000
    assert [len(places) for places in log_of(broker, settings.topic).values()] == [1, 1]


def throttle(broker: EmbeddedKafka, settings: ProducerSettings, key: str, value: bytes | None) -> None:
    engine = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    engine.send(settings.throttle_topic, key=key.encode(), value=value).get(10)
    engine.close()


def test_a_committed_transaction_is_whole_and_an_aborted_one_is_nowhere(
    broker: EmbeddedKafka, settings: ProducerSettings
) -> None:
    with producer(broker, settings) as sender:
        with sender.transaction() as transaction:
            committed = [transaction.send(f"client-{n}", "a/b", b"x", message_id=f"committed-{n}") for n in range(10)]
        with pytest.raises(RuntimeError, match="not today"), sender.transaction() as transaction:  # noqa: PT012
            aborted = [transaction.send(f"client-{n}", "a/b", b"x", message_id=f"aborted-{n}") for n in range(10)]
            raise RuntimeError("not today")
        again = sender.send("client-1", "a/b", b"x", message_id="afterwards")
    log = log_of(broker, settings.topic)
    assert log == {
        **{future.result().message_id: [(future.result().partition, future.result().offset)] for future in committed},
        "afterwards": [(again.partition, again.offset)],
    }
    assert all(isinstance(future.exception(), TransactionFailed) for future in aborted)
    assert not any(future.exception().may_be_committed for future in aborted)  # type: ignore[union-attr]


@pytest.mark.faults
def test_a_transaction_of_a_frozen_kafka_fails_in_time_and_is_run_again(
    broker: EmbeddedKafka, settings: ProducerSettings
) -> None:
    with producer(broker, settings, attempt_timeout_ms=1_000) as sender:
        with sender.transaction() as transaction:
            transaction.send("client", "a/b", b"x", message_id="before")
        freeze(broker.pid)
        try:
            with pytest.raises(TransactionFailed) as caught, sender.transaction(timeout_s=3.0) as transaction:
                future = transaction.send("client", "a/b", b"x", message_id="frozen")
        finally:
            thaw(broker.pid)
        assert future.exception(timeout=0) is caught.value
        with sender.transaction(timeout_s=60.0) as transaction:
            again = transaction.send("client", "a/b", b"x", message_id="again")
    log = log_of(broker, settings.topic)
    assert log["before"]
    assert log["again"] == [(again.result().partition, again.result().offset)]
    assert len(log.get("frozen", [])) <= caught.value.may_be_committed


def test_a_throttled_client_aborts_the_transaction_at_once(broker: EmbeddedKafka, settings: ProducerSettings) -> None:
    throttle(broker, settings, "slow", b"{}")
    with producer(broker, settings) as sender:
        eventually(lambda: sender.throttled("slow") is not None)
        with pytest.raises(SendFailed, match="530"), sender.transaction() as transaction:  # noqa: PT012
            future = transaction.send("free", "a/b", b"x")
            transaction.send("slow", "a/b", b"x")
        assert isinstance(future.exception(), TransactionFailed)
    assert log_of(broker, settings.topic) == {}


@pytest.mark.faults
@pytest.mark.promise("refused-record")
def test_a_record_that_only_the_broker_can_refuse_does_not_harm_the_others(
    broker: EmbeddedKafka, settings: ProducerSettings
) -> None:
    """The record is compressed, so its size is not known before. The refusal ends Kafka's client, not the requests in flight."""
    options: dict[str, Any] = {"max_payload_bytes": 20_000_000, "max_pending_bytes": 200_000_000, "compression": "gzip"}
    for _ in range(3):
        with producer(broker, settings, **options) as sender:
            sender.send("client", "a/b", b"before")
            before = [sender.send_async(f"client-{number}", "a/b", b"x") for number in range(500)]
            large = sender.send_async("client", "a/b", os.urandom(18_000_000))
            after = [sender.send_async(f"client-{number}", "a/b", b"x") for number in range(500)]
            with pytest.raises(SendFailed, match="the broker answered MSG_SIZE_TOO_LARGE"):
                large.result(timeout=60)
            for future in (*before, *after):
                future.result(timeout=60)
    assert sorted(len(places) for places in log_of(broker, settings.topic).values()) == [1] * 3 * 1_001
