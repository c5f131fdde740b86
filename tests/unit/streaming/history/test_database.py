import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from streaming.history import database as module
from streaming.history.database import Database
from streaming.history.errors import BadQuestion

ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


def test_files_cannot_be_read_or_written_even_by_the_program(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("user\nhunter2\n")
    with Database() as database:
        for statement in (
            f"SELECT * FROM read_csv('{secret}')",
            f"SELECT * FROM '{secret}'",
            f"COPY (SELECT 1) TO '{tmp_path / 'written'}'",
            f"ATTACH '{tmp_path / 'x.db'}'",
            "INSTALL httpfs",
        ):
            with pytest.raises(BadQuestion) as refused:
                database.execute(statement)
            assert "hunter2" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_its_configuration_is_locked_and_variables_are_no_tables() -> None:
    import pyarrow as pa

    variable = pa.table({"a": [1]})
    with Database() as database:
        for statement in ("SET memory_limit = '9GB'", "SET enable_external_access = true", "FROM variable"):
            with pytest.raises(BadQuestion):
                database.execute(statement)
    assert variable.num_rows == 1


def test_a_question_ends_at_its_time_limit() -> None:
    with Database(timeout_s=0.2) as database, pytest.raises(BadQuestion, match="not there after 0 s: ask about fewer days"):
        database.execute(ENDLESS)


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Gives SIGINT its default action, which another test of this process may have changed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_ends_a_question() -> None:
    with Database() as database:
        main = threading.main_thread().ident
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            database.execute(ENDLESS)


def test_a_question_for_which_nobody_waits_ends_with_the_database() -> None:
    """Ctrl-C may come when it has just been handed over."""
    with Database() as database:
        handed_over = database._thread.submit(database._connection.execute, ENDLESS)
    assert isinstance(handed_over.exception(0), duckdb.InterruptException)


def test_what_needs_too_much_memory_is_refused_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY", "20MiB")
    monkeypatch.setattr(module, "_DISK", "10MiB")
    with Database() as database, pytest.raises(BadQuestion, match="ask about fewer days"):
        database.execute("SELECT list(range) FROM range(100000000)")


def test_a_large_answer_is_given_row_by_row() -> None:
    with Database() as database:
        started_s = time.monotonic()
        answer = database.ask("SELECT range AS number, repeat('x', 1000) FROM range(100000000)")
        assert answer.columns[0] == "number"
        assert [row[0] for row, _ in zip(answer.rows, range(3), strict=False)] == [0, 1, 2]
        assert time.monotonic() - started_s < 10


def test_the_directory_for_what_does_not_fit_is_removed() -> None:
    with Database() as database:
        assert database.directory.is_dir()
    assert not database.directory.exists()
