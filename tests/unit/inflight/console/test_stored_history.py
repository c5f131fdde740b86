"""The console's queries on dead letters in the topics of Kafka."""

from pathlib import Path
from typing import Any

import pytest

from inflight.console.history import History, LettersFilter
from tests.support.stored_history import T0, at_offsets, letter, settings_in, topics_of_all_readers


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> History:
    """Has two dead letters of one client."""
    topics_of_all_readers(monkeypatch).add(*at_offsets([letter("c", "m1", T0), letter("c", "m2", T0 + 1)]))
    return History(settings_in(tmp_path))


def planned(history: History, **chosen: Any) -> list[str]:
    return [letter.message_id for letter in history.plan(LettersFilter(**chosen)).planned]


def test_a_replay_of_one_dead_letter_plans_no_other(history: History) -> None:
    newest, _ = history.letters(LettersFilter()).letters
    assert planned(history, letter_id=newest["dead_letter_id"]) == ["m2"]
    assert history.letter(newest["dead_letter_id"], "c")["payload"] == "p"


def test_a_replay_plans_the_dead_letters_of_its_reason(history: History) -> None:
    assert planned(history) == planned(history, reason="expired") == ["m1", "m2"]
    assert planned(history, reason="maxlen") == []
