"""streaming.engine.lifecycle.accepted_loss and losses. With an engine: tests/spark/test_accept_loss.py."""

from collections.abc import Collection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from state.records.record import SinkRecord
from streaming.checkpoint_topics import GoneRecords
from streaming.config.settings import Settings
from streaming.engine.lifecycle import accepted_loss
from streaming.engine.lifecycle.accepted_loss import move_behind, report_loss
from streaming.engine.lifecycle.losses import Losses
from streaming.spark_internals.checkpoint import Offsets

GONE = [GoneRecords(topic="m", partition=0, first=5, end=9), GoneRecords(topic="m", partition=2, first=0, end=1)]


class Log:
    """An offset log. moves: what was done to it, in order."""

    def __init__(self, planned: Offsets | None = None) -> None:
        self._planned = planned
        self.moves: list[tuple[str, Offsets]] = []

    def is_planned(self) -> bool:
        return self._planned is not None

    def planned(self) -> Offsets:
        return self._planned or {}

    def move(self, ends: Offsets, recreated: Collection[str]) -> None:
        self.moves.append(("planned", ends))
        self.recreated = list(recreated)

    def move_committed(self, ends: Offsets, recreated: Collection[str]) -> None:
        self.moves.append(("committed", ends))
        assert list(recreated) == getattr(self, "recreated", list(recreated))


def test_the_next_micro_batch_begins_at_the_oldest_records() -> None:
    log = Log()
    move_behind(log, GONE, {})  # type: ignore[arg-type]
    assert log.moves == [("committed", {"m": {0: 9, 2: 1}})]


def test_a_planned_micro_batch_never_ends_before_it_begins() -> None:
    log = Log({"e": {0: 3}, "m": {0: 7, 1: 8, 2: 4}})
    move_behind(log, GONE, {})  # type: ignore[arg-type]
    assert log.moves == [("planned", {"m": {0: 9, 2: 4}}), ("committed", {"m": {0: 9, 2: 1}})]


def test_of_a_recreated_topic_a_planned_micro_batch_reads_nothing() -> None:
    log = Log({"e": {0: 3}, "m": {0: 7, 1: 8, 2: 4}})
    gone = [GoneRecords(topic="e", partition=0, first=2, end=4), GoneRecords(topic="m", partition=0, first=0, end=1)]
    move_behind(log, gone, {"m": {0: 1, 1: 0}})  # type: ignore[arg-type]
    assert log.moves == [("planned", {"m": {0: 1, 1: 0}, "e": {0: 4}}), ("committed", {"m": {0: 1, 1: 0}, "e": {0: 4}})]
    assert log.recreated == ["m"]


def test_a_loss_is_in_the_log_the_ledger_and_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[SinkRecord] = []
    monkeypatch.setattr(accepted_loss, "write_records", lambda settings, records: written.extend(records))
    settings = Settings(engine={"data_dir": tmp_path})
    with capture_logs() as logs:
        report_loss(GONE, settings)
    assert [(line["event"], line["topic"], line["partition"], line["records"]) for line in logs] == [
        ("records_lost", "m", 0, "4"),
        ("records_lost", "m", 2, "1"),
    ]
    (record,) = written
    assert (record.topic, record.key) == ("inflight.ledger", b"")
    assert b'"transition":"lost"' in record.value
    assert b'"detail":"m-0 from 5 to 9"' in record.value
    report_loss(GONE[1:], settings)
    losses = Losses.read(tmp_path)
    assert (losses.records, losses.newest, str(losses)) == ({"m": 6}, ("m-2 from 0 to 1",), "6 of m")
    assert losses.at
    report_loss([GoneRecords(topic="m", partition=0, first=5, end=7, is_recreated=True)], settings)
    losses = Losses.read(tmp_path)
    assert (losses.records, str(losses)) == ({"m": 8}, "an unknown number of m (at least 8)")


def test_without_a_readable_file_nothing_was_lost(tmp_path: Path) -> None:
    assert Losses.read(tmp_path) == Losses()
    (tmp_path / "losses.json").write_text("{")
    assert Losses.read(tmp_path) == Losses()
