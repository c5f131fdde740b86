"""Conditions of a repartitioning, and its state after a kill. With Spark: tests/spark."""

import json
from collections.abc import Callable

import pytest

from streaming.engine.errors import CannotRepartition, CheckpointMismatch
from streaming.engine.ownership.repartition import check_state_partitions, repartition_checkpoint
from tests.unit.streaming.engine.memory_files import MemoryFiles

MARK = "inflight.repartition"


class Checkpoint(MemoryFiles):
    """A checkpoint with Spark's changes."""

    def has(self, partitions: int, batch_id: int, *, committed: bool = True) -> "Checkpoint":
        metadata = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(partitions)}})
        self.found[f"offsets/{batch_id}"] = f"v1\n{metadata}".encode()
        self.planned(batch_id, committed=committed)
        return self

    def names(self) -> list[str]:
        return [name for name in super().names() if "/" not in name]


def spark(files: Checkpoint, new: int, *, committed: bool = True) -> Callable[[], None]:
    """Returns Spark's part of the work. committed: False = killed in the middle."""

    def work() -> None:
        with pytest.raises(CheckpointMismatch, match=f"run `inflight sessions repartition {new}` again"):
            check_state_partitions(files, new)
        files.has(new, 8, committed=committed)
        if not committed:
            raise KeyboardInterrupt

    return work


def nothing() -> None:
    raise AssertionError("Spark has nothing to do")


@pytest.mark.parametrize(("old", "new"), [(2, 5), (12, 3)])
def test_a_repartitioned_checkpoint_fits_the_new_number_only(old: int, new: int) -> None:
    files = Checkpoint().has(old, 7)
    repartition_checkpoint(files, new, spark(files, new))
    assert MARK not in files.found
    check_state_partitions(files, new)
    with pytest.raises(CheckpointMismatch, match=f"`inflight sessions repartition {old}`"):
        check_state_partitions(files, old)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (Checkpoint(), "there are no sessions"),
        (Checkpoint().has(5, 7), "has 5 state partitions already"),
        (Checkpoint().has(2, 7, committed=False), "start the engine once more, with engine.state_partitions = 2, and stop it"),
        (Checkpoint(found={MARK: b"4"}).has(2, 7), "is being divided into 4 state partitions: finish that first"),
    ],
)
def test_an_impossible_repartition_is_refused_and_changes_nothing(files: Checkpoint, said: str) -> None:
    before = dict(files.found)
    with pytest.raises(CannotRepartition, match=said):
        repartition_checkpoint(files, 5, nothing)
    assert files.found == before


@pytest.mark.promise("repartition")
def test_after_a_kill_the_same_command_finishes_the_work() -> None:
    files = Checkpoint().has(2, 7)
    with pytest.raises(KeyboardInterrupt):
        repartition_checkpoint(files, 5, spark(files, 5, committed=False))
    repartition_checkpoint(files, 5, spark(files, 5))
    assert MARK not in files.found
    check_state_partitions(files, 5)


@pytest.mark.parametrize("begun", [False, True])
def test_when_spark_refuses_the_old_number_stays_unless_spark_has_begun(begun: bool) -> None:
    files = Checkpoint().has(2, 7)

    def refuse() -> None:
        if begun:
            files.has(5, 8, committed=False)
        raise CannotRepartition

    with pytest.raises(CannotRepartition):
        repartition_checkpoint(files, 5, refuse)
    if begun:
        with pytest.raises(CheckpointMismatch, match="run `inflight sessions repartition 5` again"):
            check_state_partitions(files, 2)
    else:
        check_state_partitions(files, 2)


def test_a_marker_is_removed_if_the_kill_came_after_sparks_part() -> None:
    files = Checkpoint(found={MARK: b"2"}).has(2, 8)
    repartition_checkpoint(files, 2, nothing)
    assert MARK not in files.found
    check_state_partitions(files, 2)
