"""Sessions, one client, the life of a message: what the pages ask, and what they show."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.console import query_page
from inflight.console.history import Letters
from inflight.console.rendering import MAX_WORD, whole_words
from streaming.history.errors import NothingFound
from tests.support.waiting import DEADLINE_S
from tests.unit.inflight.console.console_client import ESCAPED, SCRIPT, ConsoleDriver, FakeHistory, unnamed_cells
from tests.unit.inflight.status.test_findings import SESSIONS

PAGES = [
    ("/sessions", {}),
    ("/sessions", {"client": "pump"}),
    ("/presence", {"client": "pump"}),
    ("/client", {"id": "pump-7"}),
    ("/trace", {"id": "job-1"}),
    ("/topic", {"topic": "plant/1"}),
    ("/dead-letters", {"reason": "expired"}),
    ("/dead-letter", {"id": "0123"}),
]
BREAK = "<wbr>"


@pytest.fixture(autouse=True)
def _answers_stay_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(query_page, "_OPENED_AGE_S", DEADLINE_S)


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_who_opens_a_page_gets_a_fresh_answer(
    path: str, query: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    before = console.get(path, **query)
    monkeypatch.setattr(query_page, "_OPENED_AGE_S", 0)
    refreshed = console.browser.get(path, params=query, headers={"X-Inflight-Refresh": "1"}).text
    assert 'class="working"' not in refreshed, "an open page does not read every time"
    opened = console.browser.get(path, params=query).text
    assert re.search(r"What is shown was read \d+ s ago\.", opened)
    assert opened.count("<td") == before.count("<td"), "the old answer is there meanwhile"
    asked = len(console.history.asked)
    console.work()
    assert len(console.history.asked) > asked


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_a_page_shows_progress_until_its_answer_is_there(path: str, query: dict[str, str], tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    first = console.browser.get(path, params=query).text
    assert "Waiting for the question before this one" in first
    assert 'data-refresh="1000"' in first
    assert "Read again" not in first
    console.work()
    then = console.browser.get(path, params=query).text
    assert 'class="working"' not in then
    assert 'data-refresh="5000"' in then
    assert re.search(r"Read \d+ s ago\.", then)


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_an_answer_is_read_again_only_when_asked_for(path: str, query: dict[str, str], tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    console.get(path, **query)
    asked = len(console.history.asked)
    console.get(path, **query)
    assert len(console.history.asked) == asked
    token = console.token()
    console.work()
    answer = console.browser.post(path, params=query, data={"token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, str(answer.request.url.raw_path.decode()))
    console.get(path, **query)
    assert len(console.history.asked) >= 2 * asked


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_a_form_without_the_token_changes_nothing(path: str, query: dict[str, str], tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    assert console.browser.post(path, params=query).status_code == 403
    assert console.browser.post(path, params=query, data={"token": "wrong"}).status_code == 403
    assert console.browser.post(path, params=query, data={"token": "x" * 100_000}).status_code == 413


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_what_devices_and_backends_choose_is_text(path: str, query: dict[str, str], tmp_path: Path) -> None:
    hostile = {name: value if name == "reason" else SCRIPT + "\"'&" for name, value in query.items()}
    text = ConsoleDriver(tmp_path, FakeHistory(SCRIPT + "\"'&")).get(path, **hostile).replace(BREAK, "")
    assert "<script>" not in text
    assert ESCAPED in text
    assert text.count("<script") == 1, "ours"


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_a_page_shows_what_is_not_printable_as_escapes(path: str, query: dict[str, str], tmp_path: Path) -> None:
    hostile = "pump\x1b]0;owned\x07 a\u202eb\u2028c  d"
    text = ConsoleDriver(tmp_path, FakeHistory(hostile)).get(path, **query).replace(BREAK, "")
    assert r"pump\x1b]0;owned\x07 a\u202eb\u2028c  d" in text
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize(("path", "query"), [*PAGES[:-1], ("/trace", {})])
def test_each_cell_of_a_table_names_its_column(path: str, query: dict[str, str], tmp_path: Path) -> None:
    text = ConsoleDriver(tmp_path, FakeHistory()).get(path, **query)
    tables = unnamed_cells(text)
    assert tables, "there is a table"
    assert all(cells == [] for cells in tables), "a narrow screen shows a row as a card of named lines"


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_a_page_is_as_wide_as_the_screen_of_a_telephone(path: str, query: dict[str, str], tmp_path: Path) -> None:
    text = ConsoleDriver(tmp_path, FakeHistory()).get(path, **query)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text


def test_a_short_id_stays_on_one_line_and_a_long_one_has_whole_words() -> None:
    assert whole_words("pump-<7>") == '<span class="word">pump-&lt;7&gt;</span>'
    assert whole_words("plant_berlin/hall-<3>-sensor") == "plant_<wbr>berlin/<wbr>hall-&lt;<wbr>3&gt;-<wbr>sensor"
    assert whole_words("é" * (2 * MAX_WORD + 1)).split(BREAK) == ["é" * MAX_WORD, "é" * MAX_WORD, "é"]


@pytest.mark.parametrize("text", ["-" * 99, "a" * 99 + "_", "_a" * 50, " \\x1b" * 20, "日本/" * 30])
def test_an_id_loses_no_character_at_a_break(text: str) -> None:
    assert str(whole_words(text)).replace(BREAK, "") == text


def test_a_search_field_keeps_what_was_searched_for(tmp_path: Path) -> None:
    assert 'value="a\u202e&lt;"' in ConsoleDriver(tmp_path, FakeHistory()).get("/trace", id="a\u202e<")


@pytest.mark.parametrize(("path", "query"), PAGES)
def test_a_page_shows_why_there_is_no_answer(path: str, query: dict[str, str], tmp_path: Path) -> None:
    history = FakeHistory()
    history.problem = NothingFound(f"no {SCRIPT} in Kafka:\nlook elsewhere")
    text = ConsoleDriver(tmp_path, history).get(path, **query)
    assert f"no {ESCAPED} in Kafka:\nlook elsewhere" in text
    assert "Read again" in text


@pytest.mark.parametrize(
    ("path", "words"), [("/client", "Search for it"), ("/dead-letter", "listed"), ("/topic", "Enter a topic")]
)
def test_a_page_that_is_asked_nothing_reads_nothing(path: str, words: str, tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    assert words in console.get(path)
    assert console.history.asked == []


def test_the_sessions_are_the_census_and_the_longest_queues(tmp_path: Path) -> None:
    text = ConsoleDriver(tmp_path, FakeHistory()).get("/sessions")
    assert "<dd>100,000</dd>" in text
    assert '<a href="/client?id=pump-7"><span class="word">pump-7</span></a>' in text
    assert "1,234" in text
    assert "2 min" in text


def test_a_client_is_searched_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory("pump/ä&b"))
    text = console.get("/sessions", client="pump/")
    assert console.history.asked == [("clients", "pump/")]
    assert '<a href="/client?id=pump%2F%C3%A4%26b"><span class="word">pump/ä&amp;b</span></a>' in text


def test_a_client_has_its_window_its_queue_and_its_last_steps(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    text = console.get("/client", id="pump-7")
    assert console.history.asked == [("steps", "pump-7"), ("client", "pump-7")], "what needs no Spark comes first"
    assert '<td class="number" data-label="packet">77</td><td class="word" data-label="waits for">PUBREC</td>' in text
    assert "the first 1 of 700" in text
    assert "2023-11-14 22:13:20.000" in text
    assert '<td class="word" data-label="step">resent</td>' in text
    assert "0x87" in text
    assert '<a class="id" href="/trace?id=pump-7&amp;client=pump-7"><span class="word">pump-7</span></a>' in text
    assert "ledger: all of it" in text


def test_a_trace_names_its_sources(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    text = console.get("/trace", id=" job-1 ", client="pump-7")
    assert console.history.asked == [("life", "job-1", "pump-7")]
    assert "2026-11-21 10:00:00.000" in text
    assert "&#39;s queue.</p>" in text
    assert "<li>from the topics of Kafka</li>\n<li>inflight.ledger: 12 records</li>" in text


def test_too_many_questions_at_once_are_refused_politely(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    answers = [console.browser.get("/trace", params={"id": str(number)}) for number in range(20)]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert "try again soon" in answers[-1].text


def test_the_newest_messages_can_be_chosen_for_a_trace(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    text = console.get("/trace")
    assert console.history.asked == [("newest",)]
    assert '<a class="id" href="/trace?id=pump-7&amp;client=pump-7"><span class="word">pump-7</span></a>' in text
    assert "ledger: the newest records" in text


def test_an_empty_page_has_a_first_step(tmp_path: Path) -> None:
    history = FakeHistory()
    history.planned = 0
    console = ConsoleDriver(tmp_path, history)
    assert "inflight send pump-7" in console.get("/trace")
    history.letters = lambda chosen: Letters(letters=(), sources=())  # type: ignore[method-assign]
    text = console.get("/dead-letters")
    assert "No message had died when this was read" in text
    assert "inflight send nobody" in text
    history.sessions = lambda: replace(SESSIONS, sessions=0)  # type: ignore[method-assign]
    assert "mosquitto_sub" in console.get("/sessions")


def test_a_topic_has_its_subscribers_and_what_is_retained(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    text = console.get("/topic", topic="plant/+")
    assert console.history.asked == [("topic", "plant/+")]
    assert "1,234 subscriptions match" in text
    assert '<a href="/client?id=pump-7"><span class="word">pump-7</span></a>' in text
    for invalid in ("plant/#/x", "$share/g/a"):
        assert console.browser.get("/topic", params={"topic": invalid}).status_code == 400
