"""streaming.engine.ownership.checkpoint_checks. With engines: tests/spark/test_topic_made_anew.py, test_damaged_checkpoint.py."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.config.errors import DamagedCheckpoint, KafkaUnreachable, TopicsReplaced, UnsafeTopics
from streaming.config.settings import Settings
from streaming.engine.errors import NewerEvent, QueryFailed
from streaming.engine.ownership import checkpoint_checks as module
from streaming.engine.ownership.checkpoint_checks import check_unused_checkpoint, explaining_failures
from streaming.topics import TopicReport
from tests.unit.streaming.engine.memory_files import MemoryFiles


def raised(monkeypatch: pytest.MonkeyPatch, failure: Exception, *, found: Exception | None, report: TopicReport) -> Exception:
    """Returns what leaves `explaining_failures` when the query died and the checks find this."""

    def check(*_: object, **__: object) -> None:
        if found is not None:
            raise found

    def topics(settings: Settings) -> TopicReport:
        if isinstance(found, KafkaUnreachable):
            raise found
        return report

    monkeypatch.setattr(module, "check_checkpoint", check)
    monkeypatch.setattr(module, "check_topics", topics)
    with pytest.raises(Exception) as error, explaining_failures(MemoryFiles(), Settings()):  # noqa: PT011 - that is asked
        raise failure
    return error.value


def test_a_query_that_died_is_explained_by_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(failure: Exception, found: Exception | None = None, *problems: str) -> Exception:
        return raised(monkeypatch, failure, found=found, report=TopicReport(problems=problems))

    died, replaced = QueryFailed("it died"), TopicsReplaced("m: made anew")
    assert left(died, replaced) is replaced
    assert isinstance(left(died, None, "m: does not exist"), UnsafeTopics)
    assert left(died) is died
    assert left(died, KafkaUnreachable("away")) is died
    newer = NewerEvent("an event")
    assert left(newer, replaced) is newer


def emptied(checkpoint: Path) -> None:
    for name in ("offsets/0", "commits/0"):
        (checkpoint / name).parent.mkdir(parents=True)
        (checkpoint / name).write_bytes(b"")


@pytest.fixture
def held() -> Any:
    """Lets another process use a checkpoint until the end of the test."""
    others: list[subprocess.Popen[str]] = []

    def hold(checkpoint: Path) -> None:
        code = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
        command = [sys.executable, "-c", code, str(checkpoint / "inflight.lock")]
        others.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert others[-1].stdout is not None
        assert others[-1].stdout.readline() == "held\n"

    yield hold
    for other in others:
        other.kill()
        other.communicate()


@pytest.mark.processes
def test_only_an_unused_checkpoint_is_checked_before_a_question(tmp_path: Path, held: Callable[[Path], None]) -> None:
    check_unused_checkpoint(str(tmp_path / "none"))
    check_unused_checkpoint("hdfs://name/checkpoint")
    emptied(tmp_path)
    with pytest.raises(DamagedCheckpoint, match="offsets/0: empty"):
        check_unused_checkpoint(str(tmp_path))
    held(tmp_path)
    check_unused_checkpoint(str(tmp_path))
