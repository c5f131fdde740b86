"""Records with several recipients: who is in them, who gets a record of their own, and what becomes of each."""

import pytest

from inflight.producer.model import Cause, SendResult
from tests.unit.inflight.producer.send_loop.loop_bench import Bench, FakeGeneration, causes

CLIENTS = ["a", "b", "c"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def recipients(generation: FakeGeneration) -> list[tuple[str, ...]]:
    """Returns who each record is for, in order."""
    return [send.message.recipients or (send.message.client_id,) for send in generation.has]


def test_one_record_settles_all_of_its_clients(bench: Bench) -> None:
    bench.send_many("m", CLIENTS)
    assert recipients(bench.generation) == [("a", "b", "c")]
    bench.confirm("m")
    results = [bench.outcomes[f"m@{client}"] for client in CLIENTS]
    assert all(isinstance(result, SendResult) and result.offset == 7 for result in results)
    assert bench.metric("sends") == 3
    assert len(bench.loop) == 0


def test_a_throttled_client_waits_alone(bench: Bench) -> None:
    bench.throttle("b")
    bench.send_many("m", CLIENTS)
    assert recipients(bench.generation) == [("a", "c")]
    bench.throttle("b", None)
    bench.run_until(1_000)
    assert recipients(bench.generation) == [("a", "c"), ("b",)]
    bench.loop.confirmed(bench.generation.has[1], 0, 8, bench.now_ms)
    bench.settle()
    outcome = bench.outcomes["m@b"]
    assert isinstance(outcome, SendResult)
    assert causes(outcome.attempts) == [Cause.THROTTLED, None]


def test_a_client_with_a_waiting_message_gets_the_next_one_after_it() -> None:
    bench = Bench(max_attempts=50)
    bench.throttle("b")
    bench.send("first", "b")
    bench.throttle("b", None)
    bench.send_many("m", CLIENTS)
    bench.run_until(1_500)
    assert recipients(bench.generation) == [("a", "c"), ("b",), ("b",)]
    assert bench.generation.ids == ["m", "first", "m"]


def test_a_record_that_was_not_written_is_divided(bench: Bench) -> None:
    bench.generation.room = 0
    bench.send_many("m", CLIENTS)
    bench.send("next", "a")
    old = bench.generation
    bench.loop.given_up(old.held.pop(0), "ended", is_refused=False, is_written=False, now_ms=0)
    new = bench.open()
    assert sorted(recipients(new)) == [("a",), ("a",), ("b",), ("c",)]
    assert [send.message.message_id for send in new.has if send.order_key == "a"] == ["m", "next"]
    assert old.ended


def test_a_record_that_is_too_large_with_all_its_recipients_is_divided(bench: Bench) -> None:
    class TakesSmallOnes(FakeGeneration):
        def hand_over(self, send):  # type: ignore[no-untyped-def]
            self.refuses = "too large" if send.message.recipients else None
            return super().hand_over(send)

    bench.generation.takes = False
    bench.send("first")
    small = bench.open(TakesSmallOnes())
    bench.send_many("m", CLIENTS)
    assert sorted(recipients(small)) == [("a",), ("b",), ("c",), ("client",)]


def test_a_record_that_may_be_written_fails_for_each_client_by_name(bench: Bench) -> None:
    bench.send_many("m", CLIENTS)
    bench.give_up("m", is_written=True)
    for client in CLIENTS:
        failure = bench.failure(f"m@{client}")
        assert failure.may_be_sent
        assert failure.client_id == client
        assert f"for client '{client}'" in str(failure)
    assert bench.metric("failures", cause="network") == 3


def test_a_client_waits_for_a_record_that_an_old_generation_has(bench: Bench) -> None:
    bench.send_many("m", CLIENTS, deadline_ms=5_000)
    bench.send("lost", "d", deadline_ms=1_500)
    bench.run_until(1_600)
    old, new = bench.generation, bench.open()
    bench.send("next", "a")
    bench.send("other", "e")
    assert new.ids == ["other"]
    bench.confirm("m", old)
    assert new.ids == ["other", "next"]


def test_a_send_with_the_same_id_shares_the_record_of_many(bench: Bench) -> None:
    bench.send("m", "b")
    bench.send_many("m", CLIENTS)
    bench.send("m", "a")
    assert recipients(bench.generation) == [("b",), ("a", "c")]
    for send in bench.generation.has:
        bench.loop.confirmed(send, 0, 7, 0)
    bench.settle()
    assert sorted(bench.settled) == ["m", "m", "m@a", "m@b", "m@c"]


def test_closing_gives_every_client_of_a_record_an_outcome(bench: Bench) -> None:
    bench.send_many("m", CLIENTS)
    bench.close()
    assert sorted(bench.settled) == ["m@a", "m@b", "m@c"]
    bench.send_many("late", CLIENTS)
    assert not bench.failure("late@a").may_be_sent
