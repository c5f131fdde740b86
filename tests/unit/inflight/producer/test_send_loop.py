"""The send loop with a clock that only the test moves and a Kafka that does what the test says."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from inflight.producer.message import build_message
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Attempt, Cause, SendFailed, SendResult
from inflight.producer.send import Outcome, Send, SendRefused
from inflight.producer.send_loop import SendLoop
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleTable
from state.settings import BackoffSettings

EPOCH_MS = 1_700_000_000_000


@dataclass(eq=False)
class FakeCarrier:
    """Keeps what it was given. takes: whether it takes more."""

    carried: list[Send] = field(default_factory=list)
    takes: bool = True
    refuses: str | None = None
    released: bool = False

    def carry(self, send: Send) -> bool:
        if self.refuses is not None:
            raise SendRefused(self.refuses)
        if self.takes:
            self.carried.append(send)
        return self.takes

    def release(self) -> None:
        self.released = True

    @property
    def ids(self) -> list[str]:
        return [send.message.message_id for send in self.carried]


class Bench:
    """A loop, its clock, and the outcomes so far."""

    def __init__(self, *, opened: bool = True, **options: Any) -> None:
        self.settings = ProducerSettings(**{"attempt_timeout_ms": 1_000, "deadline_ms": 600_000, **options})
        self.throttles = ThrottleTable()
        self.registry = CollectorRegistry()
        self.wanted = 0
        self.now_ms = 0.0
        self.outcomes: dict[str, Outcome] = {}
        self.settled: list[str] = []
        self.loop = SendLoop(
            self.settings,
            throttles=self.throttles,
            metrics=ProducerMetrics(self.registry),
            want_carrier=self._want,
            epoch_offset_ms=EPOCH_MS,
        )
        self.carrier = FakeCarrier()
        self._numbers = itertools.count(1)
        if opened:
            self.open()

    def _want(self) -> None:
        self.wanted += 1

    def open(self, carrier: FakeCarrier | None = None) -> FakeCarrier:
        self.carrier = carrier or FakeCarrier()
        self.loop.carrier_opened(self.carrier, self.now_ms)
        return self.carrier

    def send(self, message_id: str, client_id: str = "client", *, deadline_ms: float | None = None) -> None:
        message = build_message(client_id, "a/b", b"x", settings=self.settings, message_id=message_id)
        name = f"{message_id}#{next(self._numbers)}" if message_id in self.outcomes else message_id

        def settle(outcome: Outcome) -> None:
            self.settled.append(name)
            self.outcomes[name] = outcome

        allowed_ms = self.settings.deadline_ms if deadline_ms is None else deadline_ms
        self.loop.submit(message, deadline_ms=self.now_ms + allowed_ms, settle=settle, now_ms=self.now_ms)

    def carried(self, message_id: str, carrier: FakeCarrier | None = None) -> Send:
        return next(send for send in (carrier or self.carrier).carried if send.message.message_id == message_id)

    def confirm(self, message_id: str, carrier: FakeCarrier | None = None) -> None:
        self.loop.confirmed(self.carried(message_id, carrier), 0, 7, self.now_ms)

    def fail_try(
        self, message_id: str, cause: Cause = Cause.NETWORK, *, answered: bool = False, began_ms: float | None = None
    ) -> None:
        began = self.now_ms if began_ms is None else began_ms
        self.loop.try_failed(self.carried(message_id), cause, "broken", began_ms=began, answered=answered, now_ms=self.now_ms)

    def lose(self, message_id: str, *, permanent: bool = False, unanswered: bool = False) -> None:
        send = self.carried(message_id)
        self.loop.carrier_lost(send, "given up", permanent=permanent, unanswered=unanswered, now_ms=self.now_ms)

    def throttle(self, key: str, value: bytes | None = b'{"reason": "queue is long"}') -> None:
        self.throttles.apply(key.encode(), value)

    def run_until(self, now_ms: float) -> None:
        """As the worker does: at every moment when something is due."""
        while (due := self.loop.next_due_ms()) is not None and due <= now_ms:
            self.now_ms = max(self.now_ms, due)
            self.loop.advance(self.now_ms)
        self.now_ms = now_ms

    def failure(self, name: str) -> SendFailed:
        outcome = self.outcomes[name]
        assert isinstance(outcome, SendFailed)
        return outcome

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"inflight_producer_{name}_total", labels) or 0.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def causes(attempts: tuple[Attempt, ...]) -> list[Cause | None]:
    return [attempt.cause for attempt in attempts]


def test_a_confirmed_send_has_one_attempt_with_its_time(bench: Bench) -> None:
    bench.run_until(500)
    bench.send("m")
    bench.run_until(520)
    bench.confirm("m")
    assert bench.outcomes["m"] == SendResult("m", "inflight.messages", 0, 7, (Attempt(EPOCH_MS + 500, 20),))
    assert bench.metric("sends") == 1
    assert len(bench.loop) == 0


@pytest.mark.parametrize("cause", [Cause.NETWORK, Cause.TIME_OUT, Cause.BROKER])
def test_a_failed_try_is_followed_by_the_next_at_once_up_to_the_maximum(bench: Bench, cause: Cause) -> None:
    bench.send("m")
    for at_ms in (10, 30, 60):
        bench.run_until(at_ms)
        bench.fail_try("m", cause)
    failure = bench.failure("m")
    assert failure.attempts == (
        Attempt(EPOCH_MS, 10, cause, "broken"),
        Attempt(EPOCH_MS + 10, 20, cause, "broken"),
        Attempt(EPOCH_MS + 30, 30, cause, "broken"),
    )
    assert failure.cause is cause
    assert failure.may_be_sent
    assert bench.metric("retries", cause=cause.value) == 2
    assert bench.metric("failures", cause=cause.value) == 1
    assert bench.carrier.ids == ["m"], "Kafka's client repeats its record; a second record would be a second message"


def test_an_attempt_that_nobody_answers_ends_with_its_time_out(bench: Bench) -> None:
    bench.send("m")
    bench.run_until(2_999)
    assert "m" not in bench.outcomes
    bench.run_until(3_000)
    attempts = bench.failure("m").attempts
    assert [(attempt.started_ms - EPOCH_MS, attempt.duration_ms, attempt.wait_ms) for attempt in attempts] == [
        (0, 1_000, 0),
        (1_000, 1_000, 0),
        (2_000, 1_000, 0),
    ]
    assert causes(bench.failure("m").attempts) == [Cause.TIME_OUT] * 3


def test_a_time_out_of_a_request_that_belongs_to_the_attempt_before_is_not_counted_twice(bench: Bench) -> None:
    bench.send("m")
    bench.run_until(1_300)
    bench.fail_try("m", Cause.TIME_OUT, began_ms=300)
    bench.run_until(1_400)
    bench.confirm("m")
    outcome = bench.outcomes["m"]
    assert isinstance(outcome, SendResult)
    assert causes(outcome.attempts) == [Cause.TIME_OUT, None]


def test_without_a_broker_attempts_time_out_and_the_message_is_certainly_not_sent() -> None:
    bench = Bench(opened=False)
    bench.send("m")
    bench.loop.carrier_unavailable("kafka:9092: connection refused", permanent=False, now_ms=0)
    bench.run_until(3_000)
    assert not bench.failure("m").may_be_sent
    assert "connection refused" in str(bench.failure("m"))
    assert bench.open().carried == []


def test_what_waits_for_a_broker_goes_in_the_order_of_submission() -> None:
    bench = Bench(opened=False)
    for number in range(5):
        bench.send(str(number), f"client-{number % 2}")
    assert bench.open().ids == ["0", "1", "2", "3", "4"]


def test_what_can_never_succeed_is_not_tried_again() -> None:
    bench = Bench(opened=False)
    bench.send("m")
    bench.loop.carrier_unavailable("not authorised", permanent=True, now_ms=5)
    assert causes(bench.failure("m").attempts) == [Cause.REJECTED]
    assert not bench.failure("m").may_be_sent


def test_a_record_that_is_too_large_for_the_client_is_refused_and_the_others_go_on(bench: Bench) -> None:
    bench.carrier.refuses = "too large"
    bench.send("large")
    bench.carrier.refuses = None
    bench.send("small")
    assert causes(bench.failure("large").attempts) == [Cause.REJECTED]
    assert bench.carrier.ids == ["small"]


def test_a_refused_record_ends_the_session_and_those_that_were_never_on_the_wire_go_with_the_next(bench: Bench) -> None:
    for message_id in ("large", "one", "two"):
        bench.send(message_id)
    bench.lose("large", permanent=True)
    bench.lose("two")
    bench.lose("one")
    assert causes(bench.failure("large").attempts) == [Cause.REJECTED]
    assert bench.carrier.released
    bench.send("three")
    assert bench.wanted == 1
    assert bench.open().ids == ["one", "two", "three"]
    bench.confirm("one")
    assert isinstance(bench.outcomes["one"], SendResult)


def test_a_record_that_may_be_in_the_log_is_never_handed_over_again(bench: Bench) -> None:
    bench.send("m")
    bench.fail_try("m", answered=False)
    bench.lose("m")
    assert bench.failure("m").may_be_sent
    assert bench.open().carried == []


def test_a_record_that_a_broker_answered_no_for_is_handed_over_again(bench: Bench) -> None:
    bench.send("m")
    bench.fail_try("m", Cause.BROKER, answered=True)
    bench.lose("m")
    assert "m" not in bench.outcomes
    assert bench.open().ids == ["m"]


def test_a_client_waits_for_its_messages_in_an_older_session_and_other_clients_do_not(bench: Bench) -> None:
    old = bench.carrier
    bench.send("first", "slow")
    bench.send("other", "fast")
    bench.lose("other")
    new = bench.open()
    bench.send("second", "slow")
    bench.send("another", "fast")
    assert new.ids == ["other", "another"]
    assert not old.released
    bench.confirm("first", old)
    assert old.released
    assert new.ids == ["other", "another", "second"]


def test_a_session_that_gave_a_message_up_is_ended_when_nothing_else_depends_on_it(bench: Bench) -> None:
    bench.send("m")
    bench.run_until(3_000)
    assert bench.carrier.released
    assert bench.wanted == 1


def test_a_carrier_that_takes_nothing_is_replaced_and_keeps_the_order(bench: Bench) -> None:
    bench.carrier.takes = False
    bench.send("one")
    bench.send("two")
    assert bench.wanted == 1
    assert bench.open().ids == ["one", "two"]


def test_a_late_confirmation_changes_nothing(bench: Bench) -> None:
    bench.send("m", deadline_ms=100)
    bench.run_until(100)
    assert bench.failure("m").cause is None
    bench.confirm("m")
    assert isinstance(bench.outcomes["m"], SendFailed)
    assert bench.settled == ["m"]


def test_the_deadline_ends_a_send_in_whatever_it_is_doing(bench: Bench) -> None:
    bench.throttle("slow")
    bench.send("carried", "fast", deadline_ms=500)
    bench.send("backoff", "slow", deadline_ms=500)
    bench.run_until(500)
    assert bench.failure("carried").may_be_sent
    assert causes(bench.failure("carried").attempts) == [Cause.TIME_OUT]
    assert not bench.failure("backoff").may_be_sent
    assert causes(bench.failure("backoff").attempts) == [Cause.THROTTLED]
    assert bench.metric("failures", cause="deadline") == 2


def test_two_sends_with_one_message_id_are_one_record_and_both_get_its_outcome(bench: Bench) -> None:
    bench.send("m")
    outcomes: list[Outcome] = []
    message = build_message("client", "a/b", b"x", settings=bench.settings, message_id="m")
    bench.loop.submit(message, deadline_ms=9_000, settle=outcomes.append, now_ms=1)
    bench.confirm("m")
    assert bench.carrier.ids == ["m"]
    assert outcomes == [bench.outcomes["m"]]


# --- throttling ---------------------------------------------------------------------------------------------------------------


def test_a_throttled_client_waits_1_s_then_1_6_times_as_long_and_the_attempts_say_so() -> None:
    bench = Bench(max_attempts=5)
    bench.throttle("client")
    bench.send("m")
    bench.run_until(60_000)
    attempts = bench.failure("m").attempts
    assert causes(attempts) == [Cause.THROTTLED] * 5
    assert all(attempt.error == "530 TOO_MANY_REQUESTS: queue is long" for attempt in attempts)
    assert attempts[0].wait_ms == 1_000
    for number, attempt in enumerate(attempts[1:4], 1):
        assert 0.8 * 1_000 * 1.6**number <= attempt.wait_ms <= 1.2 * 1_000 * 1.6**number
    assert attempts[4].wait_ms == 0, "after the last attempt nobody waits"
    for attempt, following in itertools.pairwise(attempts):
        assert following.started_ms == attempt.started_ms + attempt.wait_ms
    assert bench.metric("throttled_seconds") == pytest.approx(sum(attempt.wait_ms for attempt in attempts) / 1_000)
    assert bench.metric("retries", cause="throttled") == 4


@given(
    st.text("abc", min_size=1, max_size=5),
    st.builds(
        BackoffSettings,
        initial_ms=st.integers(1, 5_000),
        multiplier=st.floats(1.0, 4.0),
        jitter=st.floats(0.0, 0.5),
        max_ms=st.integers(5_000, 20_000),
    ),
)
def test_waits_are_the_same_for_the_same_message_and_stay_within_the_backoff(message_id: str, backoff: BackoffSettings) -> None:
    histories = []
    for _ in range(2):
        bench = Bench(max_attempts=8, backoff=backoff)
        bench.throttle("client")
        bench.send(message_id)
        bench.run_until(200_000)
        histories.append(bench.failure(message_id).attempts)
    assert histories[0] == histories[1]
    waits = [attempt.wait_ms for attempt in histories[0]]
    assert waits[0] == backoff.initial_ms
    assert all(wait <= backoff.max_ms * (1 + backoff.jitter) + 1 for wait in waits)


def test_other_clients_are_not_slowed_by_a_throttled_one(bench: Bench) -> None:
    bench.throttle("slow")
    bench.send("held", "slow")
    bench.send("free", "fast")
    assert bench.carrier.ids == ["free"]


def test_everybody_is_throttled_when_the_engine_is(bench: Bench) -> None:
    bench.throttle("*")
    bench.send("m", "anyone")
    assert bench.carrier.carried == []


def test_sending_resumes_by_itself_when_the_throttling_ends(bench: Bench) -> None:
    bench.throttle("client")
    bench.send("m")
    bench.run_until(900)
    bench.throttle("client", None)
    assert bench.carrier.carried == [], "it was told to wait a second"
    bench.run_until(1_000)
    bench.confirm("m")
    outcome = bench.outcomes["m"]
    assert isinstance(outcome, SendResult)
    assert causes(outcome.attempts) == [Cause.THROTTLED, None]


def test_messages_of_one_client_keep_their_order_through_throttling() -> None:
    bench = Bench(max_attempts=50)
    bench.throttle("client")
    for number in range(20):
        bench.send(f"m{number:02}")
        bench.run_until(bench.now_ms + 170)
    bench.throttle("client", None)
    for number in range(20, 30):
        bench.send(f"m{number:02}")
        bench.run_until(bench.now_ms + 170)
    bench.run_until(bench.now_ms + 200_000)
    assert bench.carrier.ids == [f"m{number:02}" for number in range(30)]


def test_a_thousand_waiting_messages_can_all_fail_at_once() -> None:
    bench = Bench(max_attempts=2)
    bench.throttle("client")
    for number in range(2_000):
        bench.send(str(number))
    bench.run_until(60_000)
    assert all(isinstance(outcome, SendFailed) for outcome in bench.outcomes.values())
    assert len(bench.outcomes) == 2_000
    assert len(bench.loop) == 0


def test_a_message_that_waited_for_a_broker_is_held_when_its_client_was_throttled_meanwhile() -> None:
    bench = Bench(opened=False)
    bench.send("one")
    bench.send("two")
    bench.throttle("client")
    assert bench.open().ids == []
    bench.throttle("client", None)
    bench.run_until(1_000)
    assert bench.carrier.ids == ["one", "two"]


# --- the end ------------------------------------------------------------------------------------------------------------------


def test_close_gives_every_send_an_outcome(bench: Bench) -> None:
    bench.throttle("slow")
    bench.send("carried", "fast")
    bench.send("backoff", "slow")
    bench.loop.close(bench.now_ms)
    assert bench.failure("carried").may_be_sent
    assert not bench.failure("backoff").may_be_sent
    assert bench.carrier.released
    assert len(bench.loop) == 0


def test_timers_of_confirmed_messages_do_not_pile_up(bench: Bench) -> None:
    for number in range(20_000):
        bench.send(str(number))
        bench.loop.confirmed(bench.carrier.carried.pop(), 0, number, bench.now_ms)
    assert len(bench.loop._timers) < 10_000


STEPS = st.sampled_from(
    ["send", "confirm", "try-lost", "try-refused", "lose", "lose-unanswered", "refuse", "throttle", "clear", "wait", "open"]
)


class Turmoil:
    """Anything that Kafka and the engine can do, in any order."""

    def __init__(self) -> None:
        self.bench = Bench(max_attempts=3)
        self.carriers = [self.bench.carrier]
        self.sent = 0
        self.handed_over_when_in_doubt: dict[str, int] = {}

    def do(self, step: str, pick: int, number: int) -> None:
        bench = self.bench
        match step:
            case "send":
                bench.send(f"m{self.sent}", f"client-{pick}")
                self.sent += 1
            case "throttle" | "clear":
                bench.throttle(f"client-{pick}", None if step == "clear" else b"{}")
            case "wait":
                bench.run_until(bench.now_ms + number)
            case "open":
                if bench.loop._carrier is None:
                    self.carriers.append(bench.open())
            case _:
                under_way = [send for carrier in self.carriers for send in carrier.carried if send.carrier is carrier]
                if under_way:
                    self._report(step, under_way[number % len(under_way)])

    def handed_over(self, message_id: str) -> int:
        return sum(carrier.ids.count(message_id) for carrier in self.carriers)

    def _report(self, step: str, send: Send) -> None:
        loop, now = self.bench.loop, self.bench.now_ms
        message_id = send.message.message_id
        if step in ("try-lost", "lose-unanswered"):
            self.handed_over_when_in_doubt.setdefault(message_id, self.handed_over(message_id))
        match step:
            case "confirm":
                loop.confirmed(send, 0, 0, now)
            case "try-lost" | "try-refused":
                loop.try_failed(send, Cause.NETWORK, "x", began_ms=now, answered=step == "try-refused", now_ms=now)
            case _:
                loop.carrier_lost(send, "x", permanent=step == "refuse", unanswered=step == "lose-unanswered", now_ms=now)


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 3), st.integers(0, 3_000)), max_size=60))
def test_every_send_ends_once_and_no_record_in_doubt_is_handed_over_again(steps: list[tuple[str, int, int]]) -> None:
    turmoil = Turmoil()
    for step in steps:
        turmoil.do(*step)
    bench = turmoil.bench
    bench.run_until(bench.now_ms + 700_000)
    assert sorted(bench.settled) == sorted(f"m{number}" for number in range(turmoil.sent))
    assert len(bench.loop) == 0
    assert all(len(outcome.attempts) <= 3 for outcome in bench.outcomes.values())
    for message_id, times in turmoil.handed_over_when_in_doubt.items():
        assert turmoil.handed_over(message_id) == times
    bench.loop.close(bench.now_ms)
    assert all(carrier.released for carrier in turmoil.carriers)
