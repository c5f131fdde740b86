from collections import deque
from typing import Any

import pytest

from inflight.producer.message import build_message
from inflight.producer.model import SendFailed
from inflight.producer.send_loop import Send, _insert
from inflight.producer.settings import ProducerSettings
from tests.unit.inflight.producer.send_loop.loop_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_waits_for_a_broker_goes_in_the_order_of_its_client() -> None:
    bench = Bench(opened=False)
    for number in range(6):
        bench.send(str(number), f"client-{number % 2}")
    ids = bench.open().ids
    assert [each for each in ids if int(each) % 2 == 0] == ["0", "2", "4"]
    assert [each for each in ids if int(each) % 2] == ["1", "3", "5"]


def test_a_client_waits_for_its_messages_in_a_retired_generation(bench: Bench) -> None:
    old = bench.generation
    bench.send("first", "slow")
    bench.send("other", "fast")
    bench.give_up("other")
    new = bench.open()
    bench.send("second", "slow")
    bench.send("another", "fast")
    assert new.ids == ["other", "another"]
    assert not old.ended
    bench.confirm("first", old)
    assert old.ended
    assert new.ids == ["other", "another", "second"]


def test_records_that_were_never_written_go_over_to_the_next_generation(bench: Bench) -> None:
    old = bench.generation
    old.room = 1
    for number in range(4):
        bench.send(str(number), f"client-{number // 2}")
    bench.run_until(1_500)
    bench.send("late", "client-2", deadline_ms=100)
    old.has.append(old.held.pop())
    bench.run_until(1_600)
    assert bench.failure("late").may_be_sent
    new = bench.open()
    assert new.ids == ["2", "3"], "client-0 waits for its first message"
    bench.confirm("0", old)
    assert new.ids == ["2", "3", "1"]
    assert old.ended


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


def test_a_thousand_waiting_messages_can_all_fail_at_once() -> None:
    bench = Bench(max_attempts=2)
    bench.throttle("client")
    for number in range(2_000):
        bench.send(str(number))
    bench.run_until(60_000)
    assert all(isinstance(outcome, SendFailed) for outcome in bench.outcomes.values())
    assert len(bench.outcomes) == 2_000
    assert len(bench.loop) == 0


def test_a_client_that_is_throttled_while_no_broker_answers_is_held() -> None:
    bench = Bench(opened=False)
    bench.send("one")
    bench.send("two")
    bench.throttle("client")
    assert bench.open().ids == []
    bench.throttle("client", None)
    bench.run_until(1_000)
    assert bench.generation.ids == ["one", "two"]


class CountingDeque(deque[Send]):
    """Counts looks at its entries: each look into the middle of a long deque walks through it."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("number", [0, 20_001])
def test_a_send_at_either_end_of_the_order_is_placed_without_a_search(number: int) -> None:
    waiting = CountingDeque(numbered(each) for each in range(1, 20_001))
    _insert(waiting, numbered(number))
    assert [send.number for send in waiting] == sorted(send.number for send in waiting)
    assert waiting.looks <= 2


def test_a_send_between_others_is_placed_in_its_order() -> None:
    waiting = deque([numbered(1), numbered(3)])
    _insert(waiting, numbered(2))
    assert [send.number for send in waiting] == [1, 2, 3]


def numbered(number: int) -> Send:
    return Send(build_message("c", "t", b"", settings=ProducerSettings()), 0.0, number, {})
