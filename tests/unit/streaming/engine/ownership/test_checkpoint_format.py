import pytest

from streaming.engine.errors import NewerCheckpoint
from streaming.engine.ownership.checkpoint_format import CHECKPOINT_FORMAT, check_format, record_format
from tests.unit.streaming.engine.memory_files import MemoryFiles

FILE = "inflight.format"


@pytest.mark.promise("newer-checkpoint")
def test_a_checkpoint_of_a_newer_format_is_refused_with_what_to_start() -> None:
    files = MemoryFiles(found={FILE: b'{"format": 6, "inflight": "0.9.0", "a field of tomorrow": 1}'})
    said = r"Inflight 0\.9\.0 and has format 6; .* reads up to format 5.* start Inflight 0\.9\.0"
    with pytest.raises(NewerCheckpoint, match=said):
        check_format(files)
    assert not files.written


def test_a_checkpoint_without_a_format_record_is_accepted_and_gets_one() -> None:
    files = MemoryFiles()
    check_format(files)
    assert not files.written
    record_format(files)
    assert files.found[FILE].startswith(b'{"format":5,"inflight":"')
    check_format(files)
    record_format(files)
    assert files.written == [FILE]


def test_a_start_raises_an_older_format_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    record_format(files)
    module = "streaming.engine.ownership.checkpoint_format.CHECKPOINT_FORMAT"
    monkeypatch.setattr(module, CHECKPOINT_FORMAT + 1)
    check_format(files)
    record_format(files)
    monkeypatch.undo()
    with pytest.raises(NewerCheckpoint):
        check_format(files)


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_record_is_replaced(damaged: bytes) -> None:
    files = MemoryFiles(found={FILE: damaged})
    check_format(files)
    record_format(files)
    assert files.found[FILE].startswith(b'{"format":5')
