"""Every query and every condition that the documentation shows, and that a text of the program advises, can be asked."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.history.session_relation import sessions_table
from streaming.history.store import Store
from tests.support.stored_history import T0, Topics, archive, ledger, letter, publication, receipt, session, settings_in

ROOT = Path(__file__).parents[4]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "inflight").rglob("*.py")])
_QUERIES = (
    re.compile(r'inflight sql(?: --\S+)* "([^"]+)"'),
    re.compile(r"```sql\n(.*?)```", re.DOTALL),
    re.compile(r'with SQL, e\.g\. "([^"]+)"'),
)
_CONDITIONS = (
    re.compile(r'(sessions|dead-letters|replay)[^`\n]* --where \\?"([^"\\]+)'),
    re.compile(r"(sessions|dead-letters|replay)[^`\n]* --where '([^']+)'"),
    re.compile(r"(sessions|dead-letters|replay)[^`\n]* --where ([a-z]\w*)"),
)


def texts() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")


QUERIES = {found: name for name, text in texts() for pattern in _QUERIES for found in pattern.findall(text) if found != "…"}
CONDITIONS = {found: name for name, text in texts() for pattern in _CONDITIONS for found in pattern.findall(text)}


@pytest.fixture
def store(tmp_path: Path, topics: Topics) -> Iterator[Store]:
    settings = settings_in(tmp_path)
    records = ledger("c", "accepted"), receipt("c", "m"), letter("c", "d", T0), publication("c", "sensors/1/temperature", b"21")
    archive(settings, *records)
    topics.add(ledger("c", "finished", at=1, time_ms=T0 + 1))
    with Store(settings, lambda directory: sessions_table([session("c", queued=1)])) as made:
        yield made


def test_the_documentation_has_queries_and_conditions() -> None:
    assert len(QUERIES) >= 5
    assert len(CONDITIONS) >= 5
    assert "docs/operate/archive.md" in QUERIES.values()


@pytest.mark.parametrize("question", QUERIES)
def test_a_documented_query_is_answered(store: Store, question: str) -> None:
    answer = store.ask(question)
    assert answer.columns
    list(answer.rows)


@pytest.mark.parametrize(("command", "condition"), CONDITIONS)
def test_a_documented_condition_is_answered(store: Store, command: str, condition: str) -> None:
    name, order = ("sessions", "client_id") if command == "sessions" else ("dead_letters", "died_ms")
    list(store.where(name, condition, order=order))
