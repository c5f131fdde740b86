import pytest

from inflight.producer.message import build_message
from inflight.producer.model import Attempt, Cause, SendFailed, SendResult
from inflight.producer.send_loop import Outcome
from tests.unit.inflight.producer.send_loop.loop_bench import EPOCH_MS, Bench, causes


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_confirmed_send_has_one_attempt_with_its_time(bench: Bench) -> None:
    bench.run_until(500)
    bench.send("m")
    bench.run_until(520)
    bench.confirm("m")
    assert bench.outcomes["m"] == SendResult("m", "inflight.messages", 0, 7, (Attempt(EPOCH_MS + 500, 20),))
    assert bench.metric("sends") == 1
    assert len(bench.loop) == 0


def test_without_a_broker_a_message_is_certainly_not_sent() -> None:
    bench = Bench(opened=False)
    bench.send("m")
    bench.unreachable("kafka:9092: connection refused", permanent=False)
    bench.run_until(3_000)
    assert not bench.failure("m").may_be_sent
    assert "connection refused" in str(bench.failure("m"))
    assert bench.open().has == []


def test_what_can_never_succeed_is_not_tried_again() -> None:
    bench = Bench(opened=False)
    bench.send("m")
    bench.unreachable("not authorised", permanent=True)
    assert causes(bench.failure("m").attempts) == [Cause.REJECTED]
    assert not bench.failure("m").may_be_sent


def test_a_record_that_is_too_large_is_refused_and_the_others_go_on(bench: Bench) -> None:
    bench.generation.refuses = "too large"
    bench.send("large")
    bench.generation.refuses = None
    bench.send("small")
    assert causes(bench.failure("large").attempts) == [Cause.REJECTED]
    assert bench.generation.ids == ["small"]


def test_a_record_that_may_be_in_the_log_is_never_handed_over_again(bench: Bench) -> None:
    bench.send("m")
    bench.give_up("m", is_written=True)
    assert bench.failure("m").may_be_sent
    assert bench.open().has == []


def test_a_record_that_was_never_written_is_handed_over_again(bench: Bench) -> None:
    bench.send("m")
    bench.give_up("m")
    assert "m" not in bench.outcomes
    assert bench.open().ids == ["m"]


def test_a_record_that_was_held_until_the_end_is_certainly_not_sent(bench: Bench) -> None:
    bench.generation.room = 0
    bench.send("m")
    bench.run_until(3_000)
    assert causes(bench.failure("m").attempts) == [Cause.TIME_OUT] * 3
    assert not bench.failure("m").may_be_sent
    assert bench.generation.held == []
    assert not bench.wanted


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


def test_two_sends_with_one_message_id_are_one_record(bench: Bench) -> None:
    bench.send("m")
    outcomes: list[Outcome] = []
    message = build_message("client", "a/b", b"x", settings=bench.settings, message_id="m")
    bench.loop.submit(message, deadline_ms=9_000, settle=outcomes.append, now_ms=1)
    bench.settle()
    bench.confirm("m")
    assert bench.generation.ids == ["m"]
    assert outcomes == [bench.outcomes["m"]]


def test_close_gives_every_send_an_outcome(bench: Bench) -> None:
    bench.throttle("slow")
    bench.send("carried", "fast")
    bench.send("backoff", "slow")
    bench.close()
    assert bench.failure("carried").may_be_sent
    assert not bench.failure("backoff").may_be_sent
    assert bench.generation.ended
    assert len(bench.loop) == 0


def test_a_message_that_comes_after_the_end_gets_an_outcome_too(bench: Bench) -> None:
    bench.close()
    bench.send("late")
    assert not bench.failure("late").may_be_sent
    assert bench.wanted == 0
