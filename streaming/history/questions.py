"""Checks SQL of people, who may ask about the relations of the store, but not read this machine's files or change anything.

A question is parsed, which executes nothing and opens nothing, and refused unless it is one SELECT that calls no other table
functions than `_TABLE_FUNCTIONS`. DuckDB itself has no access to files either (streaming/history/database.py).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import duckdb

from streaming.history.errors import BadQuestion

_WORDS: Final = ("select", "with", "from", "values", "table", "describe", "show", "explain")
_EXPLAIN: Final = re.compile(r"explain\s+(?:analyze\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE)
_DESCRIBE: Final = re.compile(r'desc(?:ribe)?\s+(?:table\s+)?"?(\w+)"?', re.IGNORECASE)
_SHOW: Final = re.compile(r"show\s+(?:all\s+)?(?:tables|views)", re.IGNORECASE)
_ADVICE: Final = ("Did you mean", "Candidate bindings:")
_INTERNAL: Final = ("pg_", "duckdb_", "sqlite_", "pragma_", "information_schema", "system.", "temp.")
_MOST_MEANT: Final = 3
_TABLE_FUNCTIONS: Final = frozenset(("range", "generate_series", "unnest", "repeat", "repeat_row"))
"""Those that read nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that may be asked.

    Attributes:
        relations: The names of all tables in it, in lower case, also those that it defines itself.
        described: DESCRIBE of this table, by its name in lower case; None = another question.
        is_list: SHOW TABLES.
    """

    text: str
    relations: frozenset[str]
    described: str | None = None
    is_list: bool = False


def checked_question(question: str) -> Question:
    """Returns the question. Raises BadQuestion."""
    text = question.strip().rstrip(";").strip()
    if (described := _DESCRIBE.fullmatch(text)) is not None:
        return Question(text=text, relations=frozenset(), described=described[1].lower())
    if _SHOW.fullmatch(text) is not None:
        return Question(text=text, relations=frozenset(), is_list=True)
    return Question(text=text, relations=_relations(_parsed(_EXPLAIN.sub("", text, count=1), text)))


def checked_condition(condition: str) -> Question:
    """Returns the question with the text of a condition over the rows of one relation. Raises BadQuestion."""
    if not condition.strip():
        raise BadQuestion("the condition is empty: write one as after WHERE, e.g. \"reason = 'expired'\"")
    node = _parsed(f"SELECT 1 WHERE (\n{condition}\n)", condition)["node"]
    is_one = node["type"] == "SELECT_NODE" and not node["modifiers"] and not node["group_sets"] and node["having"] is None
    if not is_one:
        raise BadQuestion(f"{condition!r} is no condition: write one as after WHERE, e.g. \"reason = 'expired'\"")
    return Question(text=condition, relations=_relations(node))


def first_line(error: Exception) -> str:
    """Returns what DuckDB says, without its kind of error and the place. Of its advice it has the names that may be meant."""
    text = str(error).strip()
    lines = text.splitlines() or [type(error).__name__]
    what = " ".join(lines[0].partition(" Error: ")[2].split() or [text])[:500].rstrip("!.")
    advice = lines[1] if lines[1:] and lines[1].startswith(_ADVICE) else ""
    meant = [name for name in re.findall(r'"([^"]+)"', advice) if not name.startswith(_INTERNAL) and " " not in name]
    return f"{what}: did you mean {' or '.join(meant[:_MOST_MEANT])}?" if meant else what


def _parsed(text: str, question: str) -> dict[str, Any]:
    """Returns the tree of the only SELECT in a text."""
    words = question.split(maxsplit=1)
    word = words[0].lower() if words else "nothing"
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise BadQuestion(f"{first_line(error)}. Ask one question in SQL, as DuckDB knows it") from error
    if len(statements) > 1:
        raise BadQuestion("these are several statements: ask one question")
    if not statements or statements[0].type != duckdb.StatementType.SELECT:
        raise BadQuestion(f"{word!r} is no question: ask with {', '.join(_WORDS)}")
    row = _parser().execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    found: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    if found["error"]:
        raise BadQuestion(f"{word!r} is no question: ask with {', '.join(_WORDS)}")
    foreign = sorted({name for name in _values(found, "TABLE_FUNCTION") if name not in _TABLE_FUNCTIONS})
    if foreign:
        raise BadQuestion(f"the question uses {', '.join(foreign)}: read only the tables, and call only functions of SQL")
    tree: dict[str, Any] = found["statements"][0]
    return tree


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:")


def _relations(tree: Any) -> frozenset[str]:
    return frozenset(_values(tree, "BASE_TABLE"))


def _values(tree: Any, kind: str) -> Iterator[str]:
    """Yields the names of tables or table functions in a tree, in lower case."""
    match tree:
        case dict():
            if tree.get("type") == kind:
                yield (tree["table_name"] if kind == "BASE_TABLE" else tree["function"]["function_name"]).lower()
            for value in tree.values():
                yield from _values(value, kind)
        case list():
            for value in tree:
                yield from _values(value, kind)
