"""Clients that are connected and behind: who waits for them, for how long, and what goes when they have caught up."""

import pytest

from inflight.producer.model import Cause, SendResult
from tests.unit.inflight.producer.send_loop.loop_bench import Bench, causes


@pytest.fixture
def bench() -> Bench:
    return Bench(deadline_ms=60_000, catch_up_timeout_ms=600_000)


def test_a_send_to_a_client_that_is_behind_waits_and_uses_no_attempt(bench: Bench) -> None:
    bench.fall_behind()
    bench.send("m")
    bench.run_until(50_000)
    assert bench.generation.ids == []
    bench.catch_up()
    assert bench.generation.ids == ["m"], "it goes when the throttle ends, and not at the end of a backoff"
    bench.confirm("m")
    outcome = bench.outcomes["m"]
    assert isinstance(outcome, SendResult)
    assert causes(outcome.attempts) == [None]
    assert bench.metric("throttled_seconds") == 50


def test_sends_behind_one_another_go_in_their_order(bench: Bench) -> None:
    bench.fall_behind()
    for number in range(5):
        bench.send(str(number))
    bench.send("other", "fast")
    assert bench.generation.ids == ["other"]
    bench.catch_up()
    assert bench.generation.ids == ["other", "0", "1", "2", "3", "4"]
    bench.send("5")
    assert bench.generation.ids[-1] == "5", "nothing waits any more"
    assert not bench.loop.is_anybody_behind


def test_a_send_with_a_time_of_its_own_ends_by_it_with_530(bench: Bench) -> None:
    bench.fall_behind()
    bench.send("first", deadline_ms=5_000)
    bench.send("second", deadline_ms=3_000)
    bench.run_until(10_000)
    for name, seconds in (("first", "5.0"), ("second", "3.0")):
        failure = bench.failure(name)
        assert failure.cause is Cause.THROTTLED
        assert failure.attempts == ()
        assert not failure.may_be_sent
        assert "530 TOO_MANY_REQUESTS: the client is connected and behind (queue is long)" in str(failure)
        assert f"its turn did not come in {seconds} s" in str(failure)
    assert not bench.loop.is_anybody_behind


def test_what_is_queued_for_a_connected_client_outlasts_its_deadline() -> None:
    bench = Bench(deadline_ms=1_000, catch_up_timeout_ms=20_000)
    bench.fall_behind()
    for number in range(2_000):
        bench.send(str(number), is_patient=True)
    bench.run_until(15_000)
    assert not bench.outcomes
    bench.catch_up()
    bench.run_until(15_500)
    assert len(bench.generation.ids) == 2_000
    for number in range(2_000):
        bench.confirm(str(number))
    assert all(isinstance(outcome, SendResult) for outcome in bench.outcomes.values())


def test_the_deadline_begins_anew_when_the_wait_is_over(bench: Bench) -> None:
    bench.fall_behind()
    bench.send("m", is_patient=True)
    bench.run_until(300_000)
    bench.catch_up()
    bench.run_until(302_999)
    assert "m" not in bench.outcomes
    bench.run_until(303_000)
    assert causes(bench.failure("m").attempts) == [Cause.TIME_OUT] * 3


def test_a_client_that_gets_nothing_for_too_long_fails_its_sends(bench: Bench) -> None:
    bench.fall_behind()
    bench.send("one", is_patient=True)
    bench.run_until(100_000)
    bench.send("two", is_patient=True)
    bench.run_until(599_999)
    assert not bench.outcomes
    bench.run_until(600_000)
    assert bench.failure("one").cause is Cause.THROTTLED
    bench.run_until(699_999)
    assert "two" not in bench.outcomes
    bench.run_until(700_000)
    assert bench.failure("two").cause is Cause.THROTTLED


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_client_that_goes_away_is_refused_as_any_throttled_one(bench: Bench, is_patient: bool) -> None:
    bench.fall_behind()
    bench.send("one", is_patient=is_patient)
    bench.send("two", is_patient=is_patient)
    bench.run_until(30_000)
    bench.go_away()
    assert not bench.loop.is_anybody_behind
    bench.run_until(50_000)
    assert causes(bench.failure("one").attempts) == [Cause.THROTTLED] * 3
    assert causes(bench.failure("two").attempts) == [Cause.THROTTLED] * 3


def test_what_waits_behind_a_client_that_went_away_has_a_deadline_again() -> None:
    bench = Bench(deadline_ms=60_000, catch_up_timeout_ms=600_000, max_attempts=100)
    bench.fall_behind()
    bench.send("one", is_patient=True)
    bench.send("two", is_patient=True)
    bench.run_until(200_000)
    bench.go_away()
    bench.run_until(259_999)
    assert not bench.outcomes
    bench.run_until(260_000)
    assert sorted(bench.outcomes) == ["one", "two"]


def test_a_client_that_comes_back_is_waited_for_after_its_backoff(bench: Bench) -> None:
    bench.go_away()
    bench.send("m", is_patient=True)
    bench.run_until(500)
    bench.fall_behind()
    bench.run_until(400_000)
    assert "m" not in bench.outcomes
    bench.catch_up()
    bench.confirm("m")
    outcome = bench.outcomes["m"]
    assert isinstance(outcome, SendResult)
    assert causes(outcome.attempts) == [Cause.THROTTLED, None]


def test_what_has_waited_goes_in_portions_while_no_throttle_comes() -> None:
    bench = Bench(attempt_timeout_ms=100_000)
    bench.fall_behind()
    for number in range(50):
        bench.send(str(number), payload=bytes(200_000))
    bench.catch_up()
    first = len(bench.generation.ids)
    assert 4_000_000 < first * 200_000 < 5_000_000
    bench.run_until(999)
    assert len(bench.generation.ids) == first
    bench.run_until(1_000)
    assert len(bench.generation.ids) == 2 * first
    bench.fall_behind()
    bench.run_until(30_000)
    assert len(bench.generation.ids) == 2 * first
    bench.catch_up()
    bench.run_until(31_000)
    assert bench.generation.ids == [str(number) for number in range(50)]


def test_a_portion_gives_what_waits_for_the_next_one_its_time_again() -> None:
    bench = Bench(catch_up_timeout_ms=5_000, attempt_timeout_ms=100_000)
    bench.fall_behind()
    for number in range(50):
        bench.send(str(number), payload=bytes(200_000), is_patient=True)
    for second in (4, 8, 12):
        bench.run_until(second * 1_000)
        bench.catch_up()
        bench.fall_behind()
    assert bench.generation.ids == [str(number) for number in range(50)]


def test_a_send_that_waits_for_a_broker_waits_for_its_client_too() -> None:
    bench = Bench(opened=False, max_attempts=2)
    bench.send("one")
    bench.send("two")
    bench.fall_behind()
    bench.run_until(500)
    assert bench.open().ids == []
    bench.run_until(30_000)
    assert not bench.outcomes, "no attempt runs out while the client is behind"
    bench.catch_up()
    assert bench.generation.ids == ["one", "two"]


def test_a_client_that_has_caught_up_waits_for_a_broker_with_a_deadline(bench: Bench) -> None:
    bench.send("lost", "other")
    bench.give_up("lost")
    bench.fall_behind()
    bench.send("one", is_patient=True)
    bench.send("two", is_patient=True)
    bench.catch_up()
    assert not bench.loop.is_anybody_behind
    assert sorted(bench.open().ids) == ["lost", "one", "two"]


def test_a_record_for_many_waits_for_the_one_that_is_behind(bench: Bench) -> None:
    bench.fall_behind("b")
    bench.send_many("m", ["a", "b", "c"])
    assert [send.message.recipients for send in bench.generation.has] == [("a", "c")]
    bench.run_until(900)
    bench.catch_up("b")
    assert [send.message.client_id for send in bench.generation.has[1:]] == ["b"]


def test_a_cancellation_passes_a_client_that_is_behind(bench: Bench) -> None:
    bench.fall_behind()
    bench.cancel("m")
    assert bench.generation.ids == ["cancel m"]


def test_every_send_waits_while_all_clients_are_throttled_and_catch_up(bench: Bench) -> None:
    bench.fall_behind("*")
    bench.send("a", "one")
    bench.send("b", "two")
    bench.run_until(50_000)
    assert bench.generation.ids == []
    bench.catch_up("*")
    assert bench.generation.ids == ["a", "b"]


def test_a_throttle_of_all_clients_is_waited_for_as_one_of_a_client() -> None:
    bench = Bench(deadline_ms=60_000, catch_up_timeout_ms=20_000)
    bench.fall_behind("*")
    bench.send("patient", "one", is_patient=True)
    bench.run_until(19_999)
    assert "patient" not in bench.outcomes
    bench.run_until(20_000)
    assert bench.failure("patient").cause is Cause.THROTTLED


def test_who_waits_is_refused_when_the_engine_itself_falls_behind(bench: Bench) -> None:
    bench.fall_behind("*")
    bench.send("a", "one")
    bench.run_until(1_000)
    bench.go_away("*")
    bench.run_until(50_000)
    assert set(causes(bench.failure("a").attempts)) == {Cause.THROTTLED}
