"""The console's queries on the topics of Kafka, without Spark."""

from typing import Any

import pytest

from inflight.console.history import History, LettersFilter
from streaming.config.settings import Settings
from tests.unit.streaming.history.test_plain_letters import T0, Source, letter


class DescribedSource(Source):
    def described(self) -> tuple[str, ...]:
        return ()


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    """Has two dead letters of one client."""
    source = DescribedSource(letter("c", "m1", T0), letter("c", "m2", T0 + 1))
    monkeypatch.setattr("inflight.console.history.source_of", lambda *_, **__: source)
    return History(Settings())


def planned(history: History, **chosen: Any) -> list[str]:
    return [letter.message_id for letter in history.plan(LettersFilter(**chosen)).planned]


def test_a_replay_of_one_dead_letter_plans_no_other(history: History) -> None:
    newest, _ = history.letters(LettersFilter()).letters
    assert planned(history, letter_id=newest["dead_letter_id"]) == ["m2"]


def test_a_replay_plans_the_dead_letters_of_its_reason(history: History) -> None:
    assert planned(history) == planned(history, reason="expired") == ["m1", "m2"]
    assert planned(history, reason="maxlen") == []
