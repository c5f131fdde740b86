"""What has to be true before sessions are divided anew, and what a kill in the middle leaves. With Spark: tests/spark."""

import json
from collections.abc import Callable

import pytest

from streaming.engine.errors import CannotRepartition, CheckpointMismatch
from streaming.engine.lifecycle.repartition import divide
from streaming.engine.ownership.checkpoint import check_state_partitions
from tests.unit.streaming.engine.memory_files import MemoryFiles

MARK = "inflight.repartition"


class Checkpoint(MemoryFiles):
    """With what Spark does to it."""

    def has(self, partitions: int, batch_id: int, *, committed: bool = True) -> "Checkpoint":
        metadata = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(partitions)}})
        self.found[f"offsets/{batch_id}"] = f"v1\n{metadata}".encode()
        self.planned(batch_id, committed=committed)
        return self

    def names(self) -> list[str]:
        return [name for name in super().names() if "/" not in name]


def folders(partitions: int) -> MemoryFiles:
    """What is in the folder of the operator."""
    return MemoryFiles(found=dict.fromkeys(["_metadata", *map(str, range(partitions))], b""))


def numbers(state: MemoryFiles) -> list[str]:
    return sorted(state.found.keys() - {"_metadata"})


def spark(
    files: Checkpoint, state: MemoryFiles, old: int, new: int, *, folders: int | None = None, committed: bool = True
) -> Callable[[], None]:
    """Its part. committed: False = killed, when so many folders have been made."""

    def work() -> None:
        assert len(numbers(state)) == old, "it reads a state store in each folder"
        with pytest.raises(CheckpointMismatch, match=f"run `inflight sessions repartition {new}` again"):
            check_state_partitions(files, new)
        state.found |= dict.fromkeys(map(str, range(new if folders is None else folders)), b"")
        files.has(new, 8, committed=committed)
        if not committed:
            raise KeyboardInterrupt

    return work


def nothing() -> None:
    raise AssertionError("Spark has nothing to do")


@pytest.mark.parametrize(("old", "new"), [(2, 5), (12, 3)])
def test_the_checkpoint_of_a_stopped_engine_is_divided_and_then_fits_the_new_number_only(old: int, new: int) -> None:
    files, state = Checkpoint().has(old, 7), folders(old)
    divide(files, state, new, spark(files, state, old, new))
    assert MARK not in files.found
    assert numbers(state) == sorted(map(str, range(new)))
    assert "_metadata" in state.found
    check_state_partitions(files, new)
    with pytest.raises(CheckpointMismatch, match=f"`inflight sessions repartition {old}`"):
        check_state_partitions(files, old)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (Checkpoint(), "there are no sessions"),
        (Checkpoint().has(5, 7), "has 5 state partitions already"),
        (Checkpoint().has(2, 7, committed=False), "start the engine once more, with engine.state_partitions = 2, and stop it"),
        (Checkpoint(found={MARK: b"2 4"}).has(2, 7), "is being divided into 4 state partitions: finish that first"),
    ],
)
def test_what_does_not_fit_changes_nothing_and_says_what_to_do(files: Checkpoint, said: str) -> None:
    before, state = dict(files.found), folders(7)
    with pytest.raises(CannotRepartition, match=said):
        divide(files, state, 5, nothing)
    assert (files.found, len(numbers(state))) == (before, 7)


@pytest.mark.parametrize("made", [2, 3, 5])
def test_after_a_kill_the_same_command_finishes_the_work(made: int) -> None:
    files, state = Checkpoint().has(2, 7), folders(2)
    with pytest.raises(KeyboardInterrupt):
        divide(files, state, 5, spark(files, state, 2, 5, folders=made, committed=False))
    divide(files, state, 5, spark(files, state, 2, 5))
    assert MARK not in files.found
    check_state_partitions(files, 5)


@pytest.mark.parametrize("begun", [False, True])
def test_when_spark_refuses_an_engine_goes_on_with_the_old_number_unless_spark_has_begun(begun: bool) -> None:
    files, state = Checkpoint().has(2, 7), folders(2)

    def refuse() -> None:
        if begun:
            files.has(5, 8, committed=False)
        raise CannotRepartition

    with pytest.raises(CannotRepartition):
        divide(files, state, 5, refuse)
    if begun:
        with pytest.raises(CheckpointMismatch, match="run `inflight sessions repartition 5` again"):
            check_state_partitions(files, 2)
    else:
        check_state_partitions(files, 2)


def test_after_a_kill_when_spark_was_ready_the_rest_is_done() -> None:
    files, state = Checkpoint(found={MARK: b"5 2"}).has(2, 8), folders(4)
    divide(files, state, 2, nothing)
    assert numbers(state) == ["0", "1"]
    assert MARK not in files.found
    check_state_partitions(files, 2)
