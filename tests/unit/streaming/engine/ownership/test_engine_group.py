import json
from uuid import UUID

import pytest

from streaming.engine.ownership.engine_group import checkpoint_id, starting_offsets
from streaming.engine.progress import batch_progress
from tests.unit.streaming.engine.memory_files import MemoryFiles


def test_a_new_checkpoint_begins_where_the_last_micro_batch_ended_and_new_partitions_from_their_beginning() -> None:
    document = {
        "batchId": 7,
        "timestamp": "2026-11-22T00:00:00Z",
        "durationMs": {},
        "sources": [{"endOffset": {"inflight.events": {"0": 5}}}, {"endOffset": {"inflight.messages": {"0": 3, "1": 0}}}],
    }
    committed = batch_progress(document).end_offsets
    assert json.loads(starting_offsets("inflight.messages", 3, committed)) == {"inflight.messages": {"0": 3, "1": 0, "2": -2}}
    assert json.loads(starting_offsets("inflight.events", 1, committed)) == {"inflight.events": {"0": 5}}


def test_the_first_engine_of_all_begins_with_the_oldest_record() -> None:
    assert starting_offsets("inflight.messages", 3, {}) == "earliest"


def test_a_checkpoint_keeps_the_name_that_it_got_first() -> None:
    files = MemoryFiles()
    name = checkpoint_id(files)
    assert str(UUID(name)) == name
    assert checkpoint_id(files) == name
    assert files.written == ["inflight.id"]


@pytest.mark.parametrize("torn", [b"", b"0b3f4a52-6c1d", b"\0" * 36, b"\xff"])
def test_a_checkpoint_whose_name_was_half_written_gets_a_new_one(torn: bytes) -> None:
    files = MemoryFiles(found={"inflight.id": torn})
    name = checkpoint_id(files)
    assert str(UUID(name)) == name
    assert checkpoint_id(files) == name
