"""The whole loop: throttling that ends, generations that follow each other, and anything that can happen in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.producer.model import Cause, SendResult
from inflight.producer.send_loop.send import Send
from tests.unit.inflight.producer.send_loop.loop_bench import Bench, causes


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_refused_record_ends_its_generation_and_those_that_were_never_on_the_wire_go_with_the_next(bench: Bench) -> None:
    for message_id in ("large", "one", "two"):
        bench.send(message_id)
    bench.lose("large", permanent=True)
    bench.lose("two")
    bench.lose("one")
    assert causes(bench.failure("large").attempts) == [Cause.REJECTED]
    assert bench.generation.ended
    bench.send("three")
    assert bench.wanted == 1
    assert bench.open().ids == ["one", "two", "three"]
    bench.confirm("one")
    assert isinstance(bench.outcomes["one"], SendResult)


def test_a_generation_that_gave_a_message_up_is_ended_when_nothing_else_depends_on_it(bench: Bench) -> None:
    bench.send("m")
    bench.run_until(3_000)
    assert bench.generation.ended
    assert bench.wanted == 1


def test_everybody_is_throttled_when_the_engine_is(bench: Bench) -> None:
    bench.throttle("*")
    bench.send("m", "anyone")
    assert bench.generation.has == []


def test_sending_resumes_by_itself_when_the_throttling_ends(bench: Bench) -> None:
    bench.throttle("client")
    bench.send("m")
    bench.run_until(900)
    bench.throttle("client", None)
    assert bench.generation.has == [], "it was told to wait a second"
    bench.run_until(1_000)
    bench.confirm("m")
    outcome = bench.outcomes["m"]
    assert isinstance(outcome, SendResult)
    assert causes(outcome.attempts) == [Cause.THROTTLED, None]


STEPS = st.sampled_from(
    ["send", "confirm", "try-lost", "try-refused", "lose", "lose-unanswered", "refuse", "throttle", "clear", "wait", "open"]
)


class Turmoil:
    """Anything that Kafka and the engine can do, in any order."""

    def __init__(self) -> None:
        self.bench = Bench(max_attempts=3)
        self.generations = [self.bench.generation]
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
                if bench.loop._generation is None:
                    self.generations.append(bench.open())
            case _:
                under_way = [send for generation in self.generations for send in generation.has if send.generation is generation]
                if under_way:
                    self._report(step, under_way[number % len(under_way)])

    def handed_over(self, message_id: str) -> int:
        return sum(generation.ids.count(message_id) for generation in self.generations)

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
                if step == "lose-unanswered":  # what it is followed by, when the answer never comes
                    loop.try_failed(send, Cause.NETWORK, "x", began_ms=now, answered=False, now_ms=now)
                loop.given_up(send, "x", permanent=step == "refuse", now_ms=now)


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
    assert all(generation.ended for generation in turmoil.generations)
