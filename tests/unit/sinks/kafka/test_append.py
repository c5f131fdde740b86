"""sinks.kafka.append, between its producers' threads and the loop. With a broker: tests/integration/kafka, …/gateway."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sinks.kafka.append import LINGER_S, AppendFailed, KafkaEventLog, RecordTooLarge, TimestampRefused
from sinks.kafka.partitioning import partition_of
from sinks.kafka.record_producer import Answer, NotSent
from sinks.kafka.topic_partitions import PartitionsAdded
from tests.support.waiting import DEADLINE_S, until

LATE = KafkaError(KafkaError._MSG_TIMED_OUT)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
AHEAD = KafkaError(KafkaError.INVALID_TIMESTAMP)
ENDED = KafkaError(KafkaError._PURGE_QUEUE)


class Sent:
    """A record that a FakeProducer has taken."""

    def __init__(self, partition: int, value: bytes, answer: Answer, in_group: bool) -> None:
        self.partition, self.value, self.in_group = partition, value, in_group
        self.at_s = asyncio.get_running_loop().time()
        self._answer: Answer | None = answer

    def answer(self, error: KafkaError | None = None, broker_ms: int | None = None) -> None:
        """Answers the append once; later answers are ignored."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(error, broker_ms, 0)


class FakeProducer:
    """A RecordProducer, as far as KafkaEventLog uses it."""

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.refuse: NotSent | None = None
        self.has_given_up = False
        self.closed = False
        self.topics = {"events": 3, "leases": 1}
        self.sent: list[Sent] = []

    def partition_counts(self) -> dict[str, int]:
        return self.topics

    def partition_count(self, topic: str) -> int:
        return self.topics[topic]

    def send(self, topic: str, partition: int, *, value: bytes, answer: Answer, in_group: bool, **_: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        assert not self.closed
        self.sent.append(Sent(partition, value, answer, in_group))

    def values(self) -> list[bytes]:
        return [sent.value for sent in self.sent]

    def answer_all(self, broker_ms: int | None = None) -> None:
        for sent in self.sent:
            sent.answer(broker_ms=broker_ms)

    def confirm(self, partition: int) -> None:
        """Confirms all records of the partition."""
        for sent in self.sent:
            if sent.partition == partition:
                sent.answer()

    def abandon(self) -> None:
        self.closed = True
        for sent in self.sent:
            sent.answer(ENDED)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    made = FakeProducer()

    def make(**config: Any) -> FakeProducer:
        made.config, made.closed = config, False
        return made

    monkeypatch.setattr("sinks.kafka.append.RecordProducer", make)
    monkeypatch.setattr("sinks.kafka.topic_partitions._METADATA_TIMEOUT_S", 0.0)
    return made


async def started(*topics: str, **more: Any) -> KafkaEventLog:
    """topics: none = `events`."""
    log = KafkaEventLog(
        bootstrap_servers="x", linger_ms=0, timeout_ms=10_000, max_request_bytes=1_000, options={"client.id": "me"}, **more
    )
    await log.start(topics or ["events"])
    return log


def on_another_thread(action: Any) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


async def test_confirmations_reach_the_loop_in_one_wake_up_and_in_order(producer: FakeProducer) -> None:
    log = await started()
    done: list[tuple[int, Exception | None, int]] = []
    for number in range(3):
        log.append("events", b"k", b"v", None, lambda error, number=number: done.append((number, error, threading.get_ident())))
    on_another_thread(producer.answer_all)
    assert done == []
    await asyncio.sleep(0)
    assert done == [(number, None, threading.get_ident()) for number in range(3)]
    await log.close(1)
    assert producer.closed


async def test_more_than_five_waiting_records_are_sent_as_a_group(producer: FakeProducer) -> None:
    log = await started("leases")

    def append(records: int) -> None:
        for _ in range(records):
            log.append("leases", b"k", b"v", None, lambda error: None)

    async def answer(sent: list[Sent]) -> None:
        for record in sent:
            record.answer()
        await asyncio.sleep(0)

    append(5 + 5)
    await answer(producer.sent[:5])
    assert [record.in_group for record in producer.sent[5:]] == [False] * 5
    append(6)
    await answer(producer.sent[5:10])
    assert [record.in_group for record in producer.sent[10:]] == [True] * 6
    await answer(producer.sent[10:13])
    append(1)  # behind three of a group: it must not overtake them
    assert [record.in_group for record in producer.sent[16:]] == [True]
    await answer(producer.sent[13:])
    append(1)
    assert [record.in_group for record in producer.sent[17:]] == [False]
    producer.answer_all()
    await log.close(1)


class Lingering:
    """Appends to the one partition of `leases`: those named with a small letter may linger.

    Args:
        key: Returns the key of a record by its name.
    """

    def __init__(self, log: KafkaEventLog, key: Callable[[str], bytes] = lambda name: b"k") -> None:
        self.log = log
        self.key = key
        self.outcomes: dict[bytes, Exception | None] = {}

    def append(self, names: str) -> None:
        for name in names:
            value = name.encode()
            done = partial(self.outcomes.__setitem__, value)
            self.log.append("leases", self.key(name), value, None, done, may_linger=name.islower())


@pytest.fixture
def never_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.kafka.append.LINGER_S", 1_000.0)


@pytest.mark.usefixtures("never_over")
async def test_what_lingers_is_sent_with_the_next_record_in_its_order(producer: FakeProducer) -> None:
    appends = Lingering(await started("leases"))
    appends.append("ab")
    await asyncio.sleep(0.01)
    assert producer.sent == []
    appends.append("C")
    assert producer.values() == [b"a", b"b", b"C"]
    assert [sent.in_group for sent in producer.sent] == [False] * 3
    appends.append("dE")
    assert producer.values() == [b"a", b"b", b"C", b"d", b"E"], "five are on their way, as without lingering"
    appends.append("fG")
    assert len(producer.sent) == 5
    producer.answer_all()
    await asyncio.sleep(0)
    assert producer.values()[5:] == [b"f", b"G"]
    producer.answer_all()
    await appends.log.close(1)
    assert [*appends.outcomes.values()] == [None] * 7


@pytest.mark.usefixtures("never_over")
async def test_what_lingers_does_not_delay_a_record_of_another_key(producer: FakeProducer) -> None:
    appends = Lingering(await started("leases"), key=lambda name: name.lower().encode())
    appends.append("abC")
    assert producer.values() == [b"C", b"a", b"b"]
    producer.answer_all()
    await asyncio.sleep(0)
    appends.append("dEeE")
    assert producer.values()[3:] == [b"E", b"d", b"e", b"E"], "the records of a key stay in their order"
    producer.answer_all()
    await asyncio.sleep(0)
    appends.append("abcdeF")
    assert producer.values()[7:] == [b"F"], "too many linger to follow one by one: they wait for it"
    producer.answer_all()
    await asyncio.sleep(0)
    assert producer.values()[8:] == [b"a", b"b", b"c", b"d", b"e"]
    producer.answer_all()
    await appends.log.close(1)


@pytest.mark.usefixtures("never_over")
async def test_many_that_linger_are_sent_as_a_group(producer: FakeProducer) -> None:
    appends = Lingering(await started("leases"))
    appends.append("abcdeF")
    assert [sent.in_group for sent in producer.sent] == [True] * 6
    appends.append("gH")  # behind a group: they must not overtake it
    assert producer.values() == [b"a", b"b", b"c", b"d", b"e", b"F"]
    producer.answer_all()
    await asyncio.sleep(0)
    assert [(sent.value, sent.in_group) for sent in producer.sent[6:]] == [(b"g", False), (b"H", False)]
    producer.answer_all()
    await appends.log.close(1)


async def test_what_lingers_is_sent_after_a_while_by_itself(producer: FakeProducer) -> None:
    took: list[float] = []
    appends = Lingering(await started("leases", took=took.append))
    began_s = asyncio.get_running_loop().time()
    appends.append("a")
    assert producer.sent == []
    await until(lambda: producer.sent, "it is sent")
    lingered_s = asyncio.get_running_loop().time() - began_s
    producer.answer_all()
    await until(lambda: appends.outcomes, "it is confirmed")
    assert took[0] <= asyncio.get_running_loop().time() - began_s - LINGER_S, "lingering is not Kafka's time"
    assert lingered_s > LINGER_S / 2
    await appends.log.close(1)


async def test_each_partition_lingers_for_its_own_time(producer: FakeProducer) -> None:
    appends, began_s = Appends(await started()), []
    for partition, value in (0, b"first"), (1, b"second"):
        began_s.append(asyncio.get_running_loop().time())
        appends.append(partition, value, may_linger=True)
        await asyncio.sleep(LINGER_S / 2)
    await until(lambda: len(producer.sent) == 2, "both are sent")
    assert [sent.at_s - at_s > LINGER_S - 0.005 for sent, at_s in zip(producer.sent, began_s, strict=True)] == [True, True]
    producer.answer_all()
    await appends.confirmed(b"first", b"second")
    await appends.log.close(1)


async def test_what_lingers_after_an_earlier_one_was_sent_has_its_own_time(producer: FakeProducer) -> None:
    appends = Lingering(await started("leases"))
    appends.append("a")
    await asyncio.sleep(LINGER_S / 2)
    began_s = asyncio.get_running_loop().time()
    appends.append("Bc")
    await until(lambda: len(producer.sent) == 3, "all are sent")
    assert producer.values() == [b"a", b"B", b"c"]
    assert producer.sent[2].at_s - began_s > LINGER_S - 0.005
    producer.answer_all()
    await until(lambda: len(appends.outcomes) == 3, "all are confirmed")
    await appends.log.close(1)


@pytest.mark.usefixtures("never_over")
async def test_closing_sends_what_lingers(producer: FakeProducer) -> None:
    appends = Lingering(await started("leases"))
    appends.append("a")
    closing = asyncio.create_task(appends.log.close(DEADLINE_S))
    await until(lambda: producer.sent, "it is sent")
    producer.answer_all()
    await closing
    assert appends.outcomes == {b"a": None}


@pytest.mark.usefixtures("never_over")
async def test_what_lingers_behind_a_record_that_is_given_up_is_not_sent(producer: FakeProducer) -> None:
    appends = Lingering(await started("leases"))
    appends.append("Ab")
    producer.sent[0].answer(LATE)
    await until(lambda: len(appends.outcomes) == 2, "both are reported")
    assert all(isinstance(outcome, AppendFailed) for outcome in appends.outcomes.values())
    assert producer.values() == [b"A"]
    await appends.log.close(1)


async def test_what_lingers_in_a_silent_partition_fails_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.kafka.append.LINGER_S", 1_000.0)
    kafka = Kafka(monkeypatch)
    appends = await started_quick()
    appends.append(0, b"silent")
    appends.append(0, b"lingers", may_linger=True)
    await appends.failed(b"silent", b"lingers")
    assert kafka.producers[0].values() == [b"silent"]
    await appends.log.close(1)


async def test_what_lingers_goes_to_the_next_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.kafka.append.LINGER_S", 1_000.0)
    kafka = Kafka(monkeypatch)
    appends = await started_quick()
    appends.append(0, b"silent")
    appends.append(1, b"lingers", may_linger=True)
    await appends.failed(b"silent")
    await until(lambda: appends.log._producer in kafka.producers[1:], "the next producer")
    appends.append(1, b"next")
    assert kafka.producers[1].values() == [b"lingers", b"next"]
    assert kafka.producers[0].values() == [b"silent"]
    on_another_thread(lambda: kafka.producers[1].confirm(1))
    await appends.confirmed(b"lingers", b"next")
    await appends.log.close(1)


async def test_what_waits_behind_a_record_that_is_given_up_is_not_sent(producer: FakeProducer) -> None:
    log = await started("leases")
    failed: list[bytes] = []
    values = [b"%d" % number for number in range(8)]
    for value in values:
        log.append("leases", b"k", value, None, lambda error, value=value: failed.append(value) if error else None)
    producer.sent[0].answer(LATE)
    await asyncio.sleep(0)
    assert failed == [values[0], *values[5:]]
    for sent in producer.sent[1:]:
        sent.answer(LATE)
    await asyncio.sleep(0)
    assert sorted(failed) == values
    assert producer.values() == values[:5]
    await log.close(1)


async def test_the_duration_of_each_append_is_reported(producer: FakeProducer) -> None:
    took: list[float] = []
    log = await started(took=took.append)
    log.append("events", b"k", b"v", None, lambda error: None)
    await asyncio.sleep(0.02)
    on_another_thread(producer.answer_all)
    await asyncio.sleep(0)
    (seconds,) = took
    assert 0.02 <= seconds < DEADLINE_S
    await log.close(1)


@pytest.mark.parametrize("is_brokers", [True, False])
async def test_the_brokers_time_of_the_observed_topic_is_reported(producer: FakeProducer, is_brokers: bool) -> None:
    seen: list[tuple[int, float]] = []
    log = await started(
        "events", "leases", observed_topic="leases", observe=lambda broker_ms, took_ms: seen.append((broker_ms, took_ms))
    )
    for topic in "events", "leases":
        log.append(topic, b"k", b"v", None, lambda error: None)
    await asyncio.sleep(0.02)
    on_another_thread(lambda: producer.answer_all(1 if is_brokers else None))
    await asyncio.sleep(0)
    assert [time_ms for time_ms, _ in seen] == ([1] if is_brokers else [])
    assert all(20 <= took_ms < 1_000 * DEADLINE_S for _, took_ms in seen)
    await log.close(1)


@pytest.mark.parametrize(("error", "kind"), [(LATE, AppendFailed), (TOO_LARGE, RecordTooLarge), (AHEAD, TimestampRefused)])
@pytest.mark.parametrize("at_once", [True, False])
async def test_failures_are_reported_and_never_raised(
    producer: FakeProducer, error: KafkaError, kind: type[Exception], at_once: bool
) -> None:
    log = await started()
    done: list[Exception | None] = []
    producer.refuse = NotSent(error, error.str()) if at_once else None
    log.append("events", b"k", b"v", None, done.append)
    if not at_once:
        on_another_thread(lambda: producer.sent[0].answer(error))
    await asyncio.sleep(0)
    assert [type(failure) for failure in done] == [kind]
    await log.close(1)


def test_a_refused_time_does_not_blame_the_brokers() -> None:
    assert "min.insync.replicas" in AppendFailed.action
    assert "NTP" in TimestampRefused.action
    assert "min.insync.replicas" not in TimestampRefused.action


async def test_closing_waits_for_what_is_unconfirmed_but_not_for_ever(producer: FakeProducer) -> None:
    log = await started()
    done: list[Exception | None] = []
    log.append("events", b"k", b"v", None, done.append)
    closing = asyncio.create_task(log.close(10))
    await asyncio.sleep(0)
    assert not producer.closed
    on_another_thread(producer.answer_all)
    await closing
    assert done == [None]
    other = await started()
    other.append("events", b"k", b"v", None, done.append)
    await other.close(0.01)


def test_the_producer_gives_nothing_up_before_we_do(producer: FakeProducer) -> None:
    asyncio.run(started())
    config = producer.config["config"]
    assert config["message.timeout.ms"] == 10_000 + 5_000
    assert config["request.timeout.ms"] < 10_000, "a request is repeated within the time of an append"
    assert producer.config["options"] == {"client.id": "me"}


class Kafka:
    """Producers as they are made; the next one connects when `lets_in` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.producers: list[FakeProducer] = []
        self.lets_in = threading.Event()
        self.lets_in.set()
        monkeypatch.setattr("sinks.kafka.append.RecordProducer", self.connect)
        self.may_abandon = threading.Event()
        self.may_abandon.set()

    def connect(self, **config: Any) -> FakeProducer:
        assert self.lets_in.wait(DEADLINE_S)
        self.producers.append(SlowToEnd(self.may_abandon, **config))
        return self.producers[-1]


class SlowToEnd(FakeProducer):
    def __init__(self, may_abandon: threading.Event, **config: Any) -> None:
        super().__init__(**config)
        self._may_abandon = may_abandon

    def abandon(self) -> None:
        assert self._may_abandon.wait(DEADLINE_S)
        super().abandon()


class Appends:
    """Appends, and their outcomes in the order of the reports."""

    def __init__(self, log: KafkaEventLog) -> None:
        self.log = log
        self.outcomes: dict[bytes, Exception | None] = {}

    def append(self, partition: int, value: bytes, *, may_linger: bool = False) -> None:
        def done(error: Exception | None) -> None:
            assert value not in self.outcomes, "reported once"
            self.outcomes[value] = error

        self.log.append("events", KEYS[partition], value, None, done, may_linger=may_linger)

    async def failed(self, *values: bytes) -> None:
        await until(lambda: all(value in self.outcomes for value in values), f"{values} are reported")
        self.log._timeout_s = 60.0  # from now on nothing is late, however busy this machine is
        assert all(isinstance(self.outcomes[value], AppendFailed) for value in values)

    async def confirmed(self, *values: bytes) -> None:
        await until(lambda: all(value in self.outcomes for value in values), f"{values} are reported")
        assert [self.outcomes[value] for value in values] == [None] * len(values)


KEYS = {partition_of(b"%d" % number, 3): b"%d" % number for number in range(100)}
TIMEOUT_MS = 100


async def started_quick() -> Appends:
    log = KafkaEventLog(bootstrap_servers="x", linger_ms=0, timeout_ms=TIMEOUT_MS, max_request_bytes=1_000, options={})
    await log.start(["events"])
    return Appends(log)


@pytest.mark.promise("partition-without-leader")
async def test_a_silent_partition_fails_alone_and_the_others_go_on_undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    appends = await started_quick()
    (old,) = kafka.producers
    kafka.lets_in.clear()
    appends.append(0, b"silent 1")
    appends.log._timeout_s = 1.0  # the second record is not late when the first one is
    appends.append(0, b"silent 2")
    await appends.failed(b"silent 1", b"silent 2")
    # The next producer does not exist yet: the other partitions continue with the old one.
    appends.append(1, b"fine 1")
    appends.append(0, b"too early")
    await appends.failed(b"too early")
    assert old.values() == [b"silent 1", b"silent 2", b"fine 1"]
    on_another_thread(lambda: old.confirm(1))
    await appends.confirmed(b"fine 1")
    kafka.may_abandon.clear()
    appends.append(1, b"fine 2")
    kafka.lets_in.set()
    await until(lambda: len(kafka.producers) == 2, "the next producer")
    new = kafka.producers[1]
    # Partition 2 goes over at once, partition 1 after what the old producer has of it.
    while not new.sent:
        appends.append(2, b"over %d" % len(appends.outcomes))
        await asyncio.sleep(0.005)
        on_another_thread(lambda: [producer.confirm(2) for producer in kafka.producers])
        await asyncio.sleep(0)
    appends.append(1, b"fine 3")
    await asyncio.sleep(0.01)
    assert b"fine 3" not in old.values() + new.values()
    on_another_thread(lambda: old.confirm(1))
    await appends.confirmed(b"fine 2")
    await until(lambda: b"fine 3" in new.values(), "what waited is sent")
    on_another_thread(lambda: new.confirm(1))
    await appends.confirmed(b"fine 3")
    # The old producer may still write what was too old: nothing goes to that partition before it has ended.
    appends.append(0, b"still too early")
    await appends.failed(b"still too early")
    kafka.may_abandon.set()
    await until(lambda: old.closed, "the old producer ends")
    await until(lambda: not any(partition.is_suspended for partition in appends.log._partitions.values()), "it may go on")
    appends.append(0, b"back")
    on_another_thread(lambda: new.confirm(0))
    await appends.confirmed(b"back")
    assert not new.closed
    await appends.log.close(1)


async def test_when_every_partition_is_silent_each_append_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    appends = await started_quick()
    kafka.lets_in.clear()
    for partition in KEYS:
        appends.append(partition, b"%d" % partition)
    await appends.failed(b"0", b"1", b"2")
    on_another_thread(lambda: kafka.producers[0].sent[0].answer(LATE))
    await until(lambda: kafka.producers[0].closed, "the producer is ended although there is no other one")
    appends.append(1, b"nobody there")
    await appends.failed(b"nobody there")
    kafka.lets_in.set()
    await until(lambda: appends.log._producer is not None, "the next producer")
    for partition in KEYS:
        appends.append(partition, b"again %d" % partition)
        on_another_thread(lambda partition=partition: kafka.producers[1].confirm(partition))  # type: ignore[misc]
    await appends.confirmed(b"again 0", b"again 1", b"again 2")
    await appends.log.close(1)


async def test_a_producer_that_fails_during_a_takeover_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    appends = await started_quick()
    appends.append(0, b"silent")
    kafka.may_abandon.clear()
    await appends.failed(b"silent")
    await until(lambda: appends.log._producer in kafka.producers[1:], "the next producer is in use")
    appends.append(1, b"refused")
    on_another_thread(lambda: kafka.producers[1].sent[0].answer(TOO_LARGE))
    await appends.failed(b"refused")
    kafka.may_abandon.set()
    await until(lambda: appends.log._producer in kafka.producers[2:], "the one after it")
    assert [producer.closed for producer in kafka.producers] == [True, True, False]
    for partition in KEYS:
        appends.append(partition, b"%d" % partition)
        on_another_thread(lambda partition=partition: kafka.producers[2].confirm(partition))  # type: ignore[misc]
    await appends.confirmed(b"0", b"1", b"2")
    await appends.log.close(1)


async def test_a_producer_that_refuses_all_records_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(monkeypatch)
    appends = await started_quick()
    (old,) = kafka.producers
    old.refuse, old.has_given_up = NotSent(LATE, "fenced"), True
    appends.append(0, b"refused")
    await appends.failed(b"refused")
    await until(lambda: appends.log._producer in kafka.producers[1:], "the next producer")
    assert old.closed
    appends.append(0, b"fine")
    on_another_thread(lambda: kafka.producers[1].confirm(0))
    await appends.confirmed(b"fine")
    await appends.log.close(1)


async def test_more_partitions_are_reported_once_and_keys_keep_theirs(
    producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.kafka.topic_partitions._WATCH_INTERVAL_S", 0.001)
    told: list[str] = []
    log = await started(on_partitions_added=lambda: told.append("added"))
    await asyncio.sleep(0.01)
    log.check()
    producer.topics = {"events": 7}
    await until(lambda: told, "it is noticed")
    await asyncio.sleep(0.01)
    assert told == ["added"]
    with pytest.raises(PartitionsAdded, match="events has 7 partitions now, and had 3 when this process started"):
        log.check()
    for number in range(20):
        log.append("events", b"%d" % number, b"v", None, lambda error: None)
    assert {sent.partition for sent in producer.sent} == {0, 1, 2}
    await log.close(0.01)
