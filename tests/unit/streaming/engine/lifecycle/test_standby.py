import threading
from collections.abc import Callable

import pytest
from kafka.errors import KafkaConnectionError

from streaming.config.settings import Settings
from streaming.engine.lifecycle import standby
from streaming.engine.lifecycle.standby import GroupVacancy, Standby, await_vacancy


class Answers:
    """A vacancy with these answers, one after the other; the last one is repeated."""

    poll_s = 0.0

    def __init__(self, *answers: bool, then: Callable[[], None] = lambda: None) -> None:
        self._answers = list(answers)
        self._then = then

    def is_vacant(self) -> bool:
        if len(self._answers) == 1:
            self._then()
            return self._answers[0]
        return self._answers.pop(0)


def waiting(vacancy: Answers, stop: threading.Event) -> list[str]:
    """Returns what happened, in order."""
    happened: list[str] = []
    role = Standby(on_wait=lambda: happened.append("waits"), on_takeover=lambda: happened.append("takes over"))
    await_vacancy(vacancy, role, stop, prepare=lambda: happened.append("warm"))
    return happened


def test_a_standby_warms_up_then_waits_until_the_engine_is_gone() -> None:
    assert waiting(Answers(False, False, True), threading.Event()) == ["warm", "waits", "takes over"]


def test_a_standby_works_at_once_where_no_engine_does() -> None:
    assert waiting(Answers(True), threading.Event()) == ["takes over"]


def test_a_standby_that_is_stopped_takes_nothing_over() -> None:
    stop = threading.Event()
    assert waiting(Answers(False, False, then=stop.set), stop) == ["warm", "waits"]


def test_without_a_lock_an_engine_may_work_while_kafka_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    members = iter([KafkaConnectionError(), True, False])

    def has_members(settings: Settings) -> bool:
        found = next(members)
        if isinstance(found, Exception):
            raise found
        return bool(found)

    monkeypatch.setattr(standby, "has_members", has_members)
    vacancy = GroupVacancy(Settings())
    assert [vacancy.is_vacant() for _ in range(3)] == [False, False, True]
