"""streaming.engine.watching.repeated_ends: an engine that ends each time at the same records says so."""

import datetime
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from structlog.testing import capture_logs

from streaming.config.settings import Settings
from streaming.engine.errors import EngineDied, QueryFailed
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.engine_ends import EngineEnds
from streaming.engine.watching.repeated_ends import EndCounter, position

BATCH = BatchProgress(
    batch_id=8,
    started="",
    duration_ms=1,
    rows=0,
    state_commit_ms=0,
    parts_ms={},
    resends={},
    clients_updated=0,
    clients_removed=0,
    state_bytes=0,
    outcomes={},
    clients_quarantined=0,
)
HEAP = "2026-11-26T05:00:00,000 ERROR SparkUncaughtExceptionHandler: x\njava.lang.OutOfMemoryError: Java heap space\n\tat a.B.c"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Micro-batch 7 is planned and not committed."""
    made = Settings(engine={"data_dir": tmp_path, "driver_memory": "700m"})
    sessions = tmp_path / "checkpoint" / "sessions"
    entries = {"offsets/6": '{"e":{"0":5}}\n{"m":{"0":120,"1":3}}', "offsets/7": '{"e":{"0":5}}\n{"m":{"0":121,"1":3}}'}
    for name, offsets in entries.items():
        (sessions / name).parent.mkdir(parents=True, exist_ok=True)
        (sessions / name).write_text(f"v1\n{{}}\n{offsets}")
    (sessions / "commits").mkdir()
    (sessions / "commits" / "6").write_text("v1\n{}")
    (tmp_path / "logs").mkdir()
    return made


def run(settings: Settings, error: BaseException | None = None, *, batches: int = 0, spark_log: str = "") -> list[str]:
    """Runs an engine that ends with this error. Returns the events of its log."""
    with capture_logs() as logs:
        try:
            with EndCounter(settings, now=lambda: datetime.datetime(2026, 11, 26, tzinfo=datetime.UTC)) as ends:
                for _ in range(batches):
                    ends.observe(BATCH)
                    assert ends.count == 0
                with (settings.engine.data_dir / "logs" / "spark.log").open("a", encoding="utf-8") as file:
                    file.write(spark_log)
                if error is not None:
                    raise error
        except (EngineDied, QueryFailed, KeyboardInterrupt):
            pass
    return [line["event"] for line in logs]


def ends(settings: Settings) -> EngineEnds:
    return EngineEnds.read(settings.engine.data_dir)


@pytest.mark.promise("repeated-ends")
def test_the_third_end_at_the_same_records_says_so(settings: Settings) -> None:
    failure = QueryFailed("the query died: a reason")
    assert run(settings, failure) == []
    assert run(settings, failure) == []
    assert run(settings, failure) == ["engine_ends_repeatedly"]
    found = ends(settings)
    assert found.is_repeated
    assert str(found) == (
        "the engine has ended 3 times in a row at micro-batch 7 (m-0 from 120 to 121), the last time 2026-11-26T00:00:00+00:00: "
        "the query died: a reason"
    )
    assert run(settings) == ["engine_ends_repeatedly"], "the next start says it, too"


def test_a_completed_micro_batch_ends_the_row(settings: Settings) -> None:
    for _ in range(3):
        run(settings, QueryFailed("a reason"))
    run(settings, QueryFailed("a reason"), batches=2)
    assert ends(settings).count == 1


@pytest.mark.parametrize("stop", [None, KeyboardInterrupt()])
def test_a_stop_that_was_asked_for_does_not_count(settings: Settings, stop: BaseException | None) -> None:
    run(settings, QueryFailed("a reason"))
    run(settings, stop)
    assert (ends(settings).count, ends(settings).runs) == (1, False)
    run(settings, stop, batches=1)
    assert ends(settings) == EngineEnds()


def test_an_interrupted_start_does_not_count(settings: Settings) -> None:
    run(settings, QueryFailed("a reason"))
    counter = EndCounter(settings)
    counter.stop_asked()
    assert ends(settings).count == 1, "it has not begun"
    counter.__enter__()
    counter.stop_asked()  # and the process exits
    EndCounter(settings).__enter__()
    assert ends(settings).count == 1


def test_an_end_without_a_word_is_counted_by_the_next_start(settings: Settings) -> None:
    for count in (0, 1, 2):
        EndCounter(settings).__enter__()  # and killed
        assert (ends(settings).count, ends(settings).runs) == (count, True)
    assert "something killed it" in ends(settings).cause


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer"), EOFError()])
def test_a_dead_jvm_is_explained_by_sparks_log(settings: Settings, error: Exception) -> None:
    def die() -> None:
        with EndCounter(settings):
            (settings.engine.data_dir / "logs" / "spark.log").write_text(HEAP)
            raise error

    with pytest.raises(EngineDied) as died:
        die()
    said = str(died.value)
    assert "java.lang.OutOfMemoryError: Java heap space in the JVM (logs/spark.log)" in said
    assert "raise engine.driver_memory" in said
    assert "driver_memory = 700m" in said
    assert "Refused" not in said
    assert ends(settings).cause in said


def test_an_older_error_of_the_log_is_not_the_cause(settings: Settings) -> None:
    run(settings, QueryFailed("a reason"), spark_log=HEAP)
    assert "OutOfMemoryError" in ends(settings).cause
    run(settings, ConnectionRefusedError(111, "Connection refused"), spark_log="another line\n")
    assert ends(settings).cause == "the JVM is gone (ConnectionRefusedError: [Errno 111] Connection refused)"


def test_a_log_that_was_rotated_meanwhile_is_read_whole(settings: Settings) -> None:
    log = settings.engine.data_dir / "logs" / "spark.log"
    log.write_text("x" * 1_000)
    with EndCounter(settings) as counter:
        log.write_text(HEAP)
        assert "OutOfMemoryError" in counter._log_of_this_run()


def test_an_error_of_inflight_itself_keeps_its_traceback(settings: Settings) -> None:
    with pytest.raises(KeyError), EndCounter(settings):
        raise KeyError("x")
    assert ends(settings).cause == "KeyError: 'x'"


def test_the_position_is_what_the_next_micro_batch_reads(settings: Settings, tmp_path: Path) -> None:
    sessions = tmp_path / "checkpoint" / "sessions"
    assert position(settings) == "micro-batch 7 (m-0 from 120 to 121)"
    (sessions / "commits" / "7").write_text("v1\n{}")
    assert position(settings) == "micro-batch 8 (e-0 from 5, m-0 from 121, m-1 from 3 on)"
    (sessions / "offsets" / "7").write_text("")
    assert position(settings) == "", "a damaged checkpoint does not say it"
    assert position(Settings(engine={"data_dir": tmp_path / "new"})) == "the first micro-batch"
    assert position(Settings(engine={"checkpoint_location": "hdfs://name/x"})) == ""


def test_a_data_directory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as logs, EndCounter(Settings(engine={"data_dir": tmp_path / "file" / "below"})) as counter:
        assert counter.count == 0
    assert {line["event"] for line in logs} == {"end_not_counted"}


def test_a_standby_counts_its_end_only_after_a_takeover(settings: Settings) -> None:
    directory = settings.engine.data_dir
    EngineEnds(runs=True).write(directory)  # the engine that works
    with pytest.raises(QueryFailed), EndCounter(settings, is_standby=True):
        raise QueryFailed("while it waits")
    assert EngineEnds.read(directory) == EngineEnds(runs=True)
    with pytest.raises(QueryFailed):
        end_after_a_takeover(settings)
    assert EngineEnds.read(directory).count == 2


def end_after_a_takeover(settings: Settings) -> None:
    with EndCounter(settings, is_standby=True) as ends:
        ends.begin()
        raise QueryFailed("at work")
