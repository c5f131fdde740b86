"""sinks.routing.recipient_waits: which partition waits for whom, and for how long."""

import pytest

from sinks.kafka.throttles import ThrottleTable
from sinks.routing.metrics import MatcherCounters
from sinks.routing.recipient_waits import RecipientWaits
from state.records.throttle import encode_throttle

A, B, C = ("uplink", 0), ("uplink", 1), ("uplink", 2)


class Bench:
    """Waits of at most 10 s, and throttles that the test sets."""

    def __init__(self, max_wait_s: float = 10.0) -> None:
        self.table = ThrottleTable()
        self.counters = MatcherCounters()
        self.waits = RecipientWaits(self.table, self.counters, max_wait_s=max_wait_s)

    def throttle(self, client_id: str, since_ms: int = 1, *, is_progressing: bool = True) -> None:
        self.table.apply(client_id.encode(), encode_throttle("", since_ms, is_progressing=is_progressing))

    def clear(self, client_id: str) -> None:
        self.table.apply(client_id.encode(), None)

    def must_wait(self, now_s: float, partition: tuple[str, int] = A, *clients: str) -> bool:
        return self.waits.must_wait(partition, clients or ("slow", "other"), now_s)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.throttle("slow")
    return bench


def test_a_partition_waits_until_its_recipient_has_caught_up(bench: Bench) -> None:
    assert bench.waits.is_needed
    assert bench.must_wait(0.0)
    assert bench.must_wait(5.0)
    assert dict(bench.waits.waiting) == {A: 0.0}
    bench.clear("slow")
    assert not bench.must_wait(6.0)
    assert not bench.waits.waiting
    assert (bench.counters.waited_ms, bench.counters.waits_given_up) == (6_000, 0)
    bench.throttle("slow", since_ms=2)
    assert bench.must_wait(6.0), "it may wait again at once"


@pytest.mark.parametrize("key", ["slow", "*"])
def test_who_does_not_catch_up_holds_up_nobody(key: str) -> None:
    bench = Bench()
    bench.throttle(key, is_progressing=False)
    assert not bench.waits.is_needed
    assert not bench.must_wait(0.0)


def test_a_throttle_of_all_clients_holds_up_all_as_one_client_would() -> None:
    bench = Bench()
    bench.throttle("*")
    assert bench.waits.is_needed
    assert bench.must_wait(0.0, A, "x")
    assert bench.must_wait(4.0, B, "y")
    assert not bench.waits.must_wait(C, (), 4.0), "no recipient, no wait"
    assert not bench.must_wait(10.0, A, "x")
    assert not bench.must_wait(10.0, B, "y"), "it is waited for once, whoever the recipients are"
    assert not bench.must_wait(100.0, C, "z")
    bench.clear("*")
    bench.throttle("*", since_ms=2)
    assert bench.must_wait(100.0, A, "x")
    bench.clear("*")
    assert not bench.must_wait(101.0, A, "x")


def test_a_client_that_goes_away_ends_the_wait(bench: Bench) -> None:
    assert bench.must_wait(0.0)
    bench.throttle("slow", is_progressing=False)
    assert not bench.must_wait(1.0)
    assert bench.counters.waits_given_up == 0


def test_a_wait_ends_at_its_limit(bench: Bench) -> None:
    assert bench.must_wait(0.0)
    assert bench.must_wait(9.9)
    assert not bench.must_wait(10.0)
    assert (bench.counters.waited_ms, bench.counters.waits_given_up) == (10_000, 1)


def test_a_client_that_stays_behind_is_not_waited_for_again(bench: Bench) -> None:
    assert bench.must_wait(0.0)
    assert not bench.must_wait(10.0)
    assert not bench.must_wait(100.0)
    assert not bench.must_wait(100.0, B), "nor by another partition"
    bench.clear("slow")
    bench.throttle("slow", since_ms=2)
    assert bench.must_wait(101.0, B), "its throttle had ended"


def test_all_partitions_wait_for_a_client_at_the_same_time(bench: Bench) -> None:
    assert bench.must_wait(0.0, A)
    assert bench.must_wait(6.0, B)
    assert not bench.must_wait(10.0, B), "after ten seconds of both"


def test_a_publication_does_not_wait_for_one_client_after_the_other(bench: Bench) -> None:
    assert bench.must_wait(0.0, A, "slow", "slower")
    bench.throttle("slower")
    bench.clear("slow")
    assert bench.must_wait(8.0, A, "slow", "slower")
    assert not bench.must_wait(10.0, A, "slow", "slower")


def test_a_partition_that_was_held_up_lets_others_through_as_long(bench: Bench) -> None:
    bench.throttle("next")
    assert bench.must_wait(0.0)
    assert not bench.must_wait(10.0)
    assert not bench.must_wait(10.0, A, "next")
    assert not bench.must_wait(19.9, A, "next")
    assert bench.must_wait(20.0, A, "next")
    assert bench.must_wait(20.0, B, "next")


def test_a_partition_that_another_matcher_has_does_not_wait_here(bench: Bench) -> None:
    assert bench.must_wait(0.0)
    bench.waits.forget([A, C], 2.0)
    assert not bench.waits.waiting
    assert bench.counters.waited_ms == 2_000


def test_nobody_is_waited_for_when_the_wait_is_turned_off() -> None:
    bench = Bench(max_wait_s=0.0)
    bench.throttle("slow")
    assert not bench.waits.is_needed
    assert not bench.must_wait(0.0)


def test_clients_that_have_caught_up_are_forgotten() -> None:
    bench = Bench()
    for number in range(2_000):
        bench.throttle(f"c{number}")
        bench.must_wait(0.0, A, f"c{number}")
        bench.clear(f"c{number}")
    assert len(bench.waits._clients) <= 1_001
