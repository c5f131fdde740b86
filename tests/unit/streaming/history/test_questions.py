"""SQL of people reads the relations of the store and nothing else."""

import pytest

from streaming.history.errors import BadQuestion
from streaming.history.questions import checked_condition, checked_question


@pytest.mark.parametrize(
    ("question", "relations"),
    [
        ("SELECT client_id, count(*) AS n FROM Ledger GROUP BY ALL ORDER BY n DESC", {"ledger"}),
        ("WITH a AS (FROM ledger) SELECT * FROM a WHERE id IN (SELECT max(id) FROM receipts)", {"ledger", "receipts", "a"}),
        ("SELECT (SELECT max(a) FROM ledger) FROM uplink WHERE EXISTS (FROM sessions)", {"ledger", "uplink", "sessions"}),
        ("SELECT unnest([1, 2]), regexp_extract('c1', 'c(.)', 1)", set()),
        ("SELECT row_number() OVER (ORDER BY l.id) FROM ledger l, range(2), generate_series(1, 3)", {"ledger"}),
        ("VALUES (1), (2)", set()),
        ("FROM ledger SELECT id;", {"ledger"}),
        ("TABLE ledger", {"ledger"}),
        ("(SELECT 1) UNION (SELECT 2);", set()),
        ("SUMMARIZE ledger", {"ledger"}),
        ("EXPLAIN ANALYZE SELECT * FROM ledger", {"ledger"}),
        ("SELECT to_json(l), list_transform([1], lambda x: x / 2) FROM ledger l", {"ledger"}),
    ],
)  # fmt: skip
def test_a_question_names_the_relations_that_it_reads(question: str, relations: set[str]) -> None:
    assert checked_question(question).relations == relations


def test_a_table_can_be_described_and_all_be_listed() -> None:
    for question in "DESCRIBE ledger", "desc Ledger;", "describe table ledger":
        assert checked_question(question).described == "ledger"
    assert checked_question("SHOW TABLES").is_list
    assert checked_question("show views;").is_list
    assert checked_question("DESCRIBE SELECT * FROM ledger").relations == {"ledger"}


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("DROP TABLE ledger", "drop"),
        ("INSERT INTO ledger VALUES (1)", "insert"),
        ("WITH a AS (SELECT 1) DELETE FROM ledger", "with"),
        ("CREATE VIEW x AS SELECT 1", "create"),
        ("COPY ledger TO '/tmp/x'", "copy"),
        ("COPY (SELECT 1) TO '/tmp/x'", "copy"),
        ("ATTACH '/tmp/x.db'", "attach"),
        ("INSTALL httpfs", "install"),
        ("LOAD httpfs", "load"),
        ("PRAGMA database_list", "pragma"),
        ("CALL pragma_version()", "call"),
        ("SET memory_limit = '9GB'", "set"),
        ("EXPORT DATABASE '/tmp/x'", "export"),
        ("EXPLAIN DROP TABLE ledger", "explain"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/x'", "explain"),
        ("EXPLAIN (FORMAT json) DROP TABLE ledger", "explain"),
        ("", "nothing"),
        ("  ;", "nothing"),
    ],
)
def test_what_is_no_select_is_refused(question: str, word: str) -> None:
    with pytest.raises(BadQuestion, match=f"'{word}' is no question: ask with select"):
        checked_question(question)


@pytest.mark.parametrize(
    ("question", "function"),
    [
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv"),
        ("SELECT * FROM ledger WHERE client_id IN (SELECT content FROM read_text('/etc/passwd'))", "read_text"),
        ("WITH a AS (FROM read_parquet('x')) SELECT 1", "read_parquet"),
        ("SELECT * FROM glob('/*')", "glob"),
        ("SELECT * FROM query('SELECT 1')", "query"),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings"),
        ("EXPLAIN SELECT * FROM read_blob('x')", "read_blob"),
        ("SELECT (SELECT count(*) FROM sniff_csv('x'))", "sniff_csv"),
    ],
)
def test_what_reads_anything_but_the_tables_is_refused(question: str, function: str) -> None:
    with pytest.raises(BadQuestion, match=f"the question uses {function}: read only the tables"):
        checked_question(question)


def test_several_statements_and_wrong_sql_are_refused() -> None:
    with pytest.raises(BadQuestion, match="several statements"):
        checked_question("SELECT 1; DROP TABLE ledger")
    with pytest.raises(BadQuestion, match='syntax error at or near "SELEC"'):
        checked_question("SELEC 1")


def test_a_condition_follows_the_same_rules() -> None:
    assert checked_condition("client_id LIKE 'c%' AND id > 0 -- all").relations == frozenset()
    assert checked_condition("id IN (SELECT id FROM sessions)").relations == {"sessions"}
    with pytest.raises(BadQuestion, match="uses read_text"):
        checked_condition("id IN (SELECT 1 FROM read_text('x'))")


@pytest.mark.parametrize(
    "condition", ["", "true) UNION SELECT 1 WHERE (true", "true) LIMIT (1", "true) GROUP BY (1", "1; DROP TABLE x", "id ="]
)
def test_what_is_more_than_a_condition_is_refused(condition: str) -> None:
    with pytest.raises(BadQuestion):
        checked_condition(condition)
