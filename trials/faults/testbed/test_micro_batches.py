"""trials/faults/testbed/micro_batches.py."""

from datetime import UTC, datetime
from pathlib import Path

from streaming.engine.progress import BatchProgress, ProgressFile
from trials.faults.account.facts import Outage
from trials.faults.testbed.micro_batches import STANDSTILL_S, MicroBatches, standstills

BEGAN_S = 1_000.0


def batch(after_s: float, took_s: float) -> BatchProgress:
    started = datetime.fromtimestamp(BEGAN_S + after_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return BatchProgress(batch_id=int(after_s), started=started, duration_ms=int(1_000 * took_s))


def test_an_engine_that_works_all_the_time_never_stands_still() -> None:
    assert standstills([batch(0, 1), batch(1, 2), batch(3 + STANDSTILL_S - 1, 1)]) == []


def test_a_standstill_begins_with_the_micro_batch_before_it() -> None:
    long = Outage(began_s=BEGAN_S + 5, ended_s=BEGAN_S + 5 + 1 + STANDSTILL_S + 1)
    assert standstills([batch(6, STANDSTILL_S + 1), batch(5, 1), batch(0, 1)]) == [long]


def test_what_is_seen_twice_is_noted_once(tmp_path: Path) -> None:
    seen = MicroBatches(tmp_path)
    ProgressFile(tmp_path).append([batch(0, 1)])
    seen.look()
    ProgressFile(tmp_path).append([batch(30, 1)])
    seen.look()
    assert seen.standstills() == [Outage(began_s=BEGAN_S, ended_s=BEGAN_S + 31)]
