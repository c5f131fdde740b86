"""Messages of one client stay in order, and wait for nobody else."""

import pytest

from inflight.producer.model import SendFailed
from tests.unit.inflight.producer.send_loop.loop_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_waits_for_a_broker_goes_in_the_order_of_submission() -> None:
    bench = Bench(opened=False)
    for number in range(5):
        bench.send(str(number), f"client-{number % 2}")
    assert bench.open().ids == ["0", "1", "2", "3", "4"]


def test_a_client_waits_for_its_messages_in_an_older_generation_and_other_clients_do_not(bench: Bench) -> None:
    old = bench.generation
    bench.send("first", "slow")
    bench.send("other", "fast")
    bench.lose("other")
    new = bench.open()
    bench.send("second", "slow")
    bench.send("another", "fast")
    assert new.ids == ["other", "another"]
    assert not old.ended
    bench.confirm("first", old)
    assert old.ended
    assert new.ids == ["other", "another", "second"]


def test_a_generation_that_takes_nothing_is_replaced_and_keeps_the_order(bench: Bench) -> None:
    bench.generation.takes = False
    bench.send("one")
    bench.send("two")
    assert bench.wanted == 1
    assert bench.open().ids == ["one", "two"]


def test_other_clients_are_not_slowed_by_a_throttled_one(bench: Bench) -> None:
    bench.throttle("slow")
    bench.send("held", "slow")
    bench.send("free", "fast")
    assert bench.generation.ids == ["free"]


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
    assert bench.generation.ids == [f"m{number:02}" for number in range(30)]


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
    assert bench.generation.ids == ["one", "two"]
