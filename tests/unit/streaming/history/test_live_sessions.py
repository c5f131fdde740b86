from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq
import pytest

from streaming.config.settings import Settings
from streaming.history import live_sessions as module
from streaming.history import stored_sessions
from streaming.history.database import Database
from streaming.history.errors import NoArchive
from streaming.history.live_sessions import LiveSessions
from streaming.history.session_relation import sessions_table
from tests.support.stored_history import session


class Stored:
    """The sessions of a stopped engine, without Spark."""

    def __init__(self, settings: Settings, jars: object) -> None:
        pass

    def write(self, directory: Path) -> None:
        directory.mkdir()
        pq.write_table(sessions_table([session("a"), session("b", next_deadline=None)]), directory / "part-0.parquet")
        (directory / "_SUCCESS").touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LiveSessions:
    monkeypatch.setattr(stored_sessions, "StoredSessions", Stored)
    settings = Settings(engine={"data_dir": tmp_path / "data"})  # type: ignore[arg-type]
    commits = Path(settings.sessions_checkpoint) / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    return LiveSessions(settings, lambda: None)  # type: ignore[arg-type,return-value]


def names(sessions: LiveSessions, directory: Path) -> list[tuple[Any, ...]]:
    with Database() as database:
        database.register("sessions", sessions.every(directory))
        return database.execute("SELECT client_id, year(next_deadline) FROM sessions ORDER BY 1")


def test_the_running_engine_tells_all_sessions(
    sessions: LiveSessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "ask_engine", lambda *_, **asked: [session("of-engine")])
    assert names(sessions, tmp_path) == [("of-engine", 2026)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("answer", "why"), [(None, "no engine answers"), ([session("x")] * 3, "there are 3 sessions or more")])
def test_spark_reads_what_no_engine_tells_and_that_is_said(
    sessions: LiveSessions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: list[dict[str, Any]] | None,
    why: str,
) -> None:
    monkeypatch.setattr(module, "_MANY", 3)
    monkeypatch.setattr(module, "ask_engine", lambda *_, **asked: answer)
    assert names(sessions, tmp_path) == [("a", 2026), ("b", None)]
    assert f"{why}" in (said := capsys.readouterr().err)
    assert "Spark reads the sessions from the checkpoint" in said


def test_spark_is_not_started_for_a_checkpoint_without_sessions(tmp_path: Path) -> None:
    started: list[object] = []
    sessions = LiveSessions(Settings(engine={"data_dir": tmp_path}), lambda: started.append("Spark"))  # type: ignore[arg-type,return-value]
    for ask in (
        lambda: sessions.every(tmp_path),
        sessions.quarantined,
        lambda: sessions.client("c"),
        lambda: sessions.longest(limit=1),
    ):
        with pytest.raises(NoArchive, match=f"there are no sessions in {tmp_path}/.* no micro-batch was completed"):
            ask()
    assert started == []
