"""The order in which RawFetches picks up answers and sends fetches, with kafka-python's fetcher replaced."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from streaming.engine.intake.record_log import RawFetches

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class Answered(RawFetches):
    """log: what is done, in order. answers: those that have come, by call of `_found`."""

    def __init__(self, answers: list[list[tuple[TopicPartition, bytes]]]) -> None:
        self.log: list[str] = []
        self._answers = answers
        self._answered = threading.Event()
        self._fetcher: Any = SimpleNamespace(send_fetches=self._send)

    def _send(self) -> list[Any]:
        self.log.append("send")
        return []

    def _found(self) -> Any:
        self.log.append("pick up")
        return iter(self._answers.pop(0) if self._answers else [])


def test_an_answer_is_picked_up_before_another_fetch_is_sent() -> None:
    """A fetch leaves out the partitions whose answers lie there, and waits for the others until its time is over."""
    fetches = Answered([[(FIRST, b"1")], [], [(SECOND, b"2")]])
    assert fetches.wait(10) == [(FIRST, b"1")]
    assert fetches.log == ["pick up"]
    assert fetches.wait(10) == [(SECOND, b"2")]
    assert fetches.log == ["pick up", "pick up", "send", "pick up"]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_without_time_a_fetch_is_sent_and_nothing_awaited(timeout_s: float) -> None:
    fetches = Answered([])
    assert fetches.wait(timeout_s) == []
    assert fetches.log == ["pick up", "send"]
