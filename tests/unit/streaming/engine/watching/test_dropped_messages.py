from pathlib import Path

from streaming.engine.progress import BatchProgress
from streaming.engine.watching.dropped_messages import QUIET_S, DropLog, DroppedMessages


def batch(clients: tuple[str, ...] = (), **counts: int) -> BatchProgress:
    return BatchProgress(batch_id=1, started="", duration_ms=1, dropped_connected=counts, dropped_for=clients)


def test_drops_add_up_while_they_go_on(tmp_path: Path) -> None:
    now_s = 1_000.0
    log = DropLog(tmp_path, now_s=lambda: now_s)
    log.observe(batch(("a", "b"), maxlen=3))
    now_s += QUIET_S - 1
    log.observe(batch(("c", "a", "d"), maxlen=2, expired=1))
    found = DroppedMessages.recent(tmp_path, now_s)
    assert (found.since_s, found.newest_s, found.total) == (1_000.0, now_s, 6)
    assert found.counts == {"maxlen": 5, "expired": 1}
    assert found.clients == ("c", "a", "d")


def test_after_a_pause_the_count_begins_again(tmp_path: Path) -> None:
    now_s = 1_000.0
    log = DropLog(tmp_path, now_s=lambda: now_s)
    log.observe(batch(("a",), maxlen=3))
    now_s += QUIET_S
    assert DroppedMessages.recent(tmp_path, now_s) == DroppedMessages(), "they are over"
    log.observe(batch(("b",), expired=1))
    assert DroppedMessages.recent(tmp_path, now_s) == DroppedMessages(
        since_s=now_s, newest_s=now_s, counts={"expired": 1}, clients=("b",)
    )


def test_an_engine_goes_on_with_the_count_of_the_one_before(tmp_path: Path) -> None:
    DropLog(tmp_path, now_s=lambda: 1_000.0).observe(batch(("a",), maxlen=3))
    DropLog(tmp_path, now_s=lambda: 1_010.0).observe(batch(("a",), maxlen=4))
    assert DroppedMessages.recent(tmp_path, 1_010.0).total == 7


def test_a_micro_batch_without_drops_writes_nothing(tmp_path: Path) -> None:
    DropLog(tmp_path, now_s=lambda: 1_000.0).observe(batch())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "drops.json.new").mkdir()
    log = DropLog(tmp_path, now_s=lambda: 1_000.0)
    log.observe(batch(maxlen=3))
    assert DroppedMessages.read(tmp_path) == DroppedMessages()


def test_the_text_has_the_most_frequent_outcome_first() -> None:
    drops = DroppedMessages(since_s=3_600.0, newest_s=3_661.0, counts={"expired": 2, "maxlen": 1_500}, clients=("a",))
    assert str(drops) == "1,500 maxlen, 2 expired, since 01:00:00 UTC, the newest at 01:01:01, for example for a"
