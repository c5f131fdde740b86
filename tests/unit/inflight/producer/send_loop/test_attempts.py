"""Attempts: their end, the start of the next one, and the wait of a throttled one."""

import itertools

import pytest

from inflight.producer.model import Attempt, Cause
from tests.unit.inflight.producer.send_loop.loop_bench import EPOCH_MS, Bench, causes


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("cause", [Cause.NETWORK, Cause.TIME_OUT, Cause.BROKER])
def test_the_next_attempt_follows_at_once_up_to_the_maximum(bench: Bench, cause: Cause) -> None:
    bench.send("m")
    for at_ms in (10, 30, 60):
        bench.run_until(at_ms)
        bench.repeat("m", cause)
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
    assert bench.generation.ids == ["m"], "Kafka's client repeats its record; a second record would be a second message"


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


def test_a_throttled_client_waits_1_s_then_1_6_times_as_long() -> None:
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


def test_a_cancellation_is_sent_to_a_throttled_client_at_once() -> None:
    bench = Bench()
    bench.throttle("client")
    bench.cancel("m")
    assert bench.generation.ids == ["cancel m"]


def test_a_cancellation_does_not_overtake_what_waits_before_it() -> None:
    bench = Bench()
    bench.throttle("client")
    bench.send("m")
    bench.cancel("m")
    bench.send("n")
    assert bench.generation.ids == []
    bench.throttle("client", None)
    bench.run_until(2_000)
    assert bench.generation.ids == ["m", "cancel m", "n"]


def test_what_waits_behind_a_cancellation_is_still_throttled() -> None:
    bench = Bench(opened=False)
    bench.cancel("m")
    bench.throttle("client")
    bench.send("n")
    bench.open()
    bench.run_until(500)
    assert bench.generation.ids == ["cancel m"]


def test_timers_of_confirmed_messages_do_not_pile_up(bench: Bench) -> None:
    for number in range(20_000):
        bench.send(str(number))
        bench.loop.confirmed(bench.generation.has.pop(), 0, number, bench.now_ms)
    assert len(bench.loop._timers) < 10_000
