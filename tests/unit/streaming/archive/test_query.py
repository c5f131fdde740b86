"""streaming.archive.query: the checkpoint of the archive is compared with its topics. With Spark: tests/spark/test_archive.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from streaming import checkpoint_topics
from streaming.archive import query
from streaming.archive.keeper import ArchiveKeeper
from streaming.archive.query import archive_checkpoint, start_archive
from streaming.archive.tables import topics_of
from streaming.checkpoint_topics import TopicBounds
from streaming.config.errors import DamagedCheckpoint, RecordsGone, TopicsReplaced
from streaming.config.settings import Settings
from streaming.topics import ActualTopic, TopicReport
from tests.support.waiting import wait_until

LEDGER = "inflight.ledger"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


class NoSpark:
    """Ends a start of the archive that has passed the check."""

    def newSession(self) -> None:  # noqa: N802 - Spark's name
        raise NotImplementedError


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Starts the archive, which has read the ledger up to 5. Returns the events of its log; raises what the check finds."""
    settings = Settings(engine={"data_dir": tmp_path}, archive={"enabled": True})
    sessions = Path(archive_checkpoint(settings))
    for name in ("offsets/0", "commits/0"):
        (sessions / name).parent.mkdir(parents=True)
        (sessions / name).write_text(f'v1\n{{"conf":{{"{PROVIDER}":"x.RocksDBStateStoreProvider"}}}}\n{{"{LEDGER}":{{"0":5}}}}')

    def begin(topic_id: str = "old", *, beginning: int = 0, end: int = 9, **archive: Any) -> list[str]:
        names = [name for names in topics_of(settings).values() for name in names]
        topics = tuple(
            ActualTopic(name=name, partitions=4, replication_factor=1, configs={}, topic_id=topic_id) for name in names
        )
        bounds = TopicBounds(beginnings={LEDGER: {0: beginning}}, ends={LEDGER: {0: end}})
        monkeypatch.setattr(query, "check_topics", lambda settings: TopicReport(topics=topics, cluster_id="c"))
        monkeypatch.setattr(checkpoint_topics, "topic_bounds", lambda settings, read: bounds)
        changed = Settings(engine={"data_dir": tmp_path}, archive={"enabled": True} | archive)
        with capture_logs() as logs, pytest.raises(NotImplementedError):
            start_archive(NoSpark(), changed)  # type: ignore[arg-type]
        return [line["event"] for line in logs]

    return begin


def test_the_archive_does_not_start_on_topics_made_anew(start: Callable[..., list[str]]) -> None:
    assert start() == ["checkpoint_topics_recorded"], "a checkpoint of an older version gets the ids"
    assert start() == []
    with pytest.raises(TopicsReplaced, match=rf"(?s){LEDGER}: deleted and made anew .* Stop the engine, remove .*/archive, and"):
        start("new")
    with pytest.raises(TopicsReplaced, match=f"{LEDGER}-0 ends at 3, and was read up to 5"):
        start(end=3)


def test_a_gap_of_the_archive_stops_it_unless_it_is_allowed(start: Callable[..., list[str]]) -> None:
    with pytest.raises(RecordsGone, match=rf"(?s){LEDGER}-0 from 5 to 7\n.*gone for the tables"):
        start(beginning=7)
    assert "archive_has_a_gap" in start(beginning=7, fail_on_data_loss=False)


def test_a_damaged_checkpoint_of_the_archive_is_named(start: Callable[..., list[str]], tmp_path: Path) -> None:
    entry = tmp_path / "checkpoint" / "archive" / "offsets" / "0"
    for damage in (b"", b"v1\n{\xff}"):
        entry.write_bytes(damage)
        with pytest.raises(
            DamagedCheckpoint, match=r"(?s)archive/offsets/0: .*\nStop the engine, remove .*/archive, and start it"
        ):
            start()


def test_a_refused_start_is_reported_whole_and_tried_again() -> None:
    attempts: list[None] = []
    long = "x" * 2_000

    def refused(*_: object) -> Any:
        attempts.append(None)
        raise TopicsReplaced(long)

    settings = Settings(archive={"enabled": True})
    with ArchiveKeeper(None, settings, start_query=refused, first_pause_s=0.01) as keeper:  # type: ignore[arg-type]
        keeper.start()
        wait_until(lambda: len(attempts) >= 2, "it is tried again")
        assert keeper.last_failure == long
