"""streaming.engine.ownership.checkpoint_lineage: what needs no Kafka. With an engine: tests/spark/test_restored_checkpoint.py."""

import pytest
from structlog.testing import capture_logs

from streaming.engine.ownership.checkpoint_lineage import checkpoint_lineage
from streaming.spark_internals.checkpoint import Offsets
from tests.unit.streaming.engine.memory_files import MemoryFiles


def checkpoint(*, committed: bool = True) -> MemoryFiles:
    """Micro-batch 3 was planned last."""
    files = MemoryFiles(found={"offsets/2": b'v1\n{}\n{"e":{"0":5}}\n{"m":{"0":5,"1":3}}'})
    files.found["offsets/3"] = b'v1\n{}\n{"e":{"0":7}}\n{"m":{"0":6,"1":3}}'
    files.planned(3, committed=committed)
    return files


def check(files: MemoryFiles, committed: Offsets) -> tuple[str, bool]:
    """The lineage, and whether the log says that the checkpoint is older."""
    with capture_logs() as logs:
        lineage = checkpoint_lineage(files, committed)
    assert [line["event"] for line in logs] in ([], ["checkpoint_is_older"])
    return lineage, bool(logs)


def test_an_untouched_checkpoint_continues_without_a_warning() -> None:
    end = {"e": {0: 7}, "m": {0: 6, 1: 3}}
    assert check(checkpoint(), committed=end) == ("", False)
    before = {"e": {0: 5}, "m": {0: 5, 1: 3}}
    assert check(checkpoint(committed=False), committed=before) == ("", False)
    more = {"e": {0: 7, 1: 9}, "other": {0: 9}}  # partitions that were added
    assert check(checkpoint(), committed=more) == ("", False)


def test_a_new_checkpoint_has_nothing_to_miss() -> None:
    files = MemoryFiles()
    assert check(files, {"m": {0: 9}}) == ("", False)
    files.planned(0, committed=False)
    assert check(files, {"m": {0: 9}}) == ("", False)


@pytest.mark.promise("restored-checkpoint")
def test_an_older_copy_continues_with_a_new_lineage() -> None:
    files = checkpoint()
    first, said = check(files, {"e": {0: 8}})
    assert first
    assert said
    files.found["offsets/4"] = b'v1\n{}\n{"e":{"0":8}}\n{"m":{"0":6,"1":3}}'
    files.planned(4, committed=True)
    assert check(files, {"e": {0: 8}}) == (first, False)
    again, said = check(files, {"e": {0: 9}})
    assert said
    assert again not in ("", first)
