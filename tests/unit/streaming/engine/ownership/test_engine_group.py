import json
from uuid import UUID

import pytest
from kafka.errors import GroupAuthorizationFailedError

from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.engine.errors import EngineRuns
from streaming.engine.ownership import engine_group
from streaming.engine.ownership.engine_group import EngineGroup, await_no_engine, checkpoint_id, starting_offsets
from streaming.engine.progress import batch_progress
from tests.unit.streaming.engine.memory_files import MemoryFiles


def test_a_new_checkpoint_begins_at_the_committed_offsets() -> None:
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


def others(group: EngineGroup) -> list[str]:
    return ["another"]


def none(group: EngineGroup) -> list[str]:
    return []


def locked_out(group: EngineGroup) -> list[str]:
    raise GroupAuthorizationFailedError


def test_offline_work_on_a_checkpoint_waits_until_no_engine_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_group, "_FORGOTTEN_S", 0)
    monkeypatch.setattr(EngineGroup, "_others", none)
    await_no_engine(Settings())
    monkeypatch.setattr(EngineGroup, "_others", others)
    with pytest.raises(EngineRuns, match=r"works on the topics inflight\.\*: stop it first"):
        await_no_engine(Settings())
    monkeypatch.setattr(EngineGroup, "_others", locked_out)
    with pytest.raises(KafkaUnreachable):
        await_no_engine(Settings())
