"""The whole loop: throttling that ends, generations that follow each other, and anything that can happen in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.producer.model import Cause, SendResult
from inflight.producer.send_loop import Send
from tests.unit.inflight.producer.send_loop.loop_bench import Bench, causes


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_refused_record_costs_no_other(bench: Bench) -> None:
    for message_id in ("large", "one", "two"):
        bench.send(message_id)
    bench.give_up("large", is_refused=True)
    assert causes(bench.failure("large").attempts) == [Cause.REJECTED]
    assert not bench.wanted
    bench.send("three")
    assert bench.generation.ids == ["large", "one", "two", "three"]
    bench.confirm("one")
    assert isinstance(bench.outcomes["one"], SendResult)


def test_a_generation_that_a_message_was_given_up_in_is_ended(bench: Bench) -> None:
    bench.send("m")
    bench.run_until(3_000)
    assert bench.generation.ended
    assert bench.wanted == 1


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
    [
        "send",
        "many",
        "confirm",
        "repeat",
        "return",
        "lose",
        "refuse",
        "throttle",
        "behind",
        "clear",
        "wait",
        "open",
        "narrow",
        "widen",
        "write",
    ]
)


class Turmoil:
    """Anything that Kafka and the engine can do, in any order."""

    def __init__(self) -> None:
        self.bench = Bench(max_attempts=3, deadline_ms=60_000)
        self.generations = [self.bench.generation]
        self.sent = 0
        self.names: list[str] = []
        self.clients = [f"client-{number}" for number in range(4)]

    def do(self, step: str, pick: int, number: int) -> None:
        bench = self.bench
        match step:
            case "send":
                bench.send(f"m{self.sent}", f"client-{pick}", is_patient=bool(number % 2))
                self.names.append(f"m{self.sent}")
                self.sent += 1
            case "many":
                clients = [client for place, client in enumerate(self.clients) if place == pick or number >> place & 1]
                if len(clients) > 1:
                    bench.send_many(f"m{self.sent}", clients)
                    self.names += [f"m{self.sent}@{client}" for client in clients]
                    self.sent += 1
            case "throttle":
                bench.go_away(f"client-{pick}")
            case "clear":
                bench.catch_up(f"client-{pick}")
            case "behind":
                bench.fall_behind(f"client-{pick}")
            case "wait":
                bench.run_until(bench.now_ms + number)
            case "open":
                if bench.loop._generation is None:
                    self.generations.append(bench.open())
            case "narrow" | "widen":
                bench.generation.room = 0 if step == "narrow" else 1_000_000
            case "write":
                generation = bench.generation
                generation.has += generation.held[:1]
                del generation.held[:1]
            case _:
                under_way = [send for generation in self.generations for send in generation.has if send.generation is generation]
                if under_way:
                    self._report(step, under_way[number % len(under_way)])

    def handed_over(self, message_id: str, client_id: str) -> int:
        records = [send for generation in self.generations for send in generation.has if client_id in send.settle]
        return sum(send.message.message_id == message_id for send in records)

    def _report(self, step: str, send: Send) -> None:
        loop, now = self.bench.loop, self.bench.now_ms
        match step:
            case "confirm":
                loop.confirmed(send, 0, 0, now)
            case "repeat":
                loop.request_failed(send, Cause.NETWORK, "x", now)
            case "return":
                send.generation.has.remove(send)  # type: ignore[union-attr]
                loop.given_up(send, "x", is_refused=False, is_written=False, now_ms=now)
            case _:
                loop.given_up(send, "x", is_refused=step == "refuse", is_written=True, now_ms=now)
        self.bench.settle()


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 3), st.integers(0, 3_000)), max_size=60))
def test_every_send_ends_once_and_no_record_is_written_twice(steps: list[tuple[str, int, int]]) -> None:
    turmoil = Turmoil()
    for step in steps:
        turmoil.do(*step)
    bench = turmoil.bench
    bench.run_until(bench.now_ms + 700_000)
    assert sorted(bench.settled) == sorted(turmoil.names)
    assert len(bench.loop) == 0
    assert all(len(outcome.attempts) <= 3 for outcome in bench.outcomes.values())
    for client in turmoil.clients:
        written = [turmoil.handed_over(f"m{number}", client) for number in range(turmoil.sent)]
        assert max(written, default=0) <= 1, "no record is written twice"
        for generation in turmoil.generations:
            numbers = [send.number for send in generation.has if client in send.settle]
            assert numbers == sorted(numbers), "the order of a client is kept"
    bench.close()
    assert all(generation.ended for generation in turmoil.generations)
