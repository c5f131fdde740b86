"""Slow questions: one at a time, each asked once, and answers that get old."""

import threading

import pytest

from inflight.console.worker import QueryWorker, Stage, TooManyQueries
from state.errors import InflightError
from tests.support.waiting import DEADLINE_S, wait_until


def test_a_question_waits_is_worked_on_and_done_and_is_asked_once() -> None:
    may_go = threading.Event()
    asked: list[str] = []

    def question(on_progress) -> str:
        asked.append("a")
        on_progress(3, 4)
        may_go.wait(DEADLINE_S)
        return "the answer"

    with QueryWorker() as worker:
        worker.ask(("a",), question)
        wait_until(lambda: worker.ask(("a",), question).progress == (3, 4), "progress")
        assert worker.ask(("a",), question).stage is Stage.WORKING
        assert worker.ask(("b",), lambda _: "other").stage is Stage.WAITING
        may_go.set()
        wait_until(lambda: worker.ask(("b",), lambda _: "other").stage is Stage.DONE, "the second answer")
        assert worker.ask(("a",), question).value == "the answer"
        assert asked == ["a"]


def test_a_failed_question_has_a_reason_and_the_next_is_answered() -> None:
    worker = QueryWorker()

    def fails(_: object) -> str:
        raise InflightError("start Kafka")

    def has_a_bug(_: object) -> str:
        raise ZeroDivisionError

    worker.ask(("a",), fails)
    worker.ask(("b",), has_a_bug)
    worker.ask(("c",), lambda _: "well")
    worker.run_pending()
    assert [worker.ask((key,), fails).stage for key in "abc"] == [Stage.FAILED, Stage.FAILED, Stage.DONE]
    assert worker.ask(("a",), fails).problem == "start Kafka"
    assert "log of the console" in worker.ask(("b",), fails).problem


def test_an_answer_that_is_too_old_or_was_forgotten_is_asked_for_anew() -> None:
    worker = QueryWorker()
    worker.ask(("a",), lambda _: 1)
    worker.run_pending()
    assert worker.ask(("a",), lambda _: 2).value == 1
    again = worker.ask(("a",), lambda _: 2, max_age_s=0)
    assert again.is_pending
    assert again.value == 1, "it is shown until there is another one"
    assert again.age_s is not None
    worker.forget(("a",))
    assert worker.get(("a",)) is not None, "one that is coming stays"
    worker.run_pending()
    worker.forget(("a",))
    assert worker.get(("a",)) is None


def test_only_so_many_may_wait() -> None:
    worker = QueryWorker()
    for number in range(8):
        worker.ask((str(number),), lambda _: 1)
    with pytest.raises(TooManyQueries):
        worker.ask(("8",), lambda _: 1)
    assert worker.ask(("0",), lambda _: 1).is_pending, "who has asked may look"


def test_only_the_last_answers_are_kept() -> None:
    worker = QueryWorker()
    for number in range(100):
        worker.ask((str(number),), lambda _: bytes(1_000))
        worker.run_pending()
    assert sum(worker.get((str(number),)) is not None for number in range(100)) <= 33
    assert worker.get(("99",)) is not None
