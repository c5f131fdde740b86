"""The state row of a client: its columns are those of the schema."""

import pytest

from state.errors import UnreadableRecord
from streaming.engine.operator.state_row import (
    QUARANTINED_ROW_VERSION,
    STATE_ROW_VERSION,
    STATE_SCHEMA,
    StateRow,
    check_version,
    new_quarantine,
    quarantined_row,
    store,
    stored_quarantine,
)
from tests.unit.streaming.engine.operator.operator_host import NOW, group_state

ROW = StateRow(
    version=STATE_ROW_VERSION,
    connected=True,
    inflight=2,
    queued=3,
    queued_bytes=4,
    oldest_unacked_ms=NOW,
    next_deadline_ms=NOW + 7,
    blob=b"b",
)


def test_the_columns_are_those_of_the_schema() -> None:
    assert tuple(column.split()[0] for column in STATE_SCHEMA.split(", ")) == StateRow._fields


@pytest.mark.parametrize("deadline_ms", [NOW + 7, NOW - 7, 2**62, None])
def test_a_row_is_stored_as_it_is(deadline_ms: int | None) -> None:
    state = group_state()
    row = ROW._replace(next_deadline_ms=deadline_ms)
    store(row, state)
    assert tuple(state.get) == row


def test_without_a_row_there_is_no_state() -> None:
    state = group_state(ROW)
    store(None, state)
    assert not state.exists


@pytest.mark.parametrize("version", [None, 0, STATE_ROW_VERSION + 1, QUARANTINED_ROW_VERSION])
def test_a_row_of_another_version_is_refused_with_an_instruction(version: int | None) -> None:
    with pytest.raises(UnreadableRecord, match="start the version that wrote the checkpoint"):
        check_version(version)


def test_a_quarantined_row_keeps_the_counts_and_the_blob() -> None:
    state = group_state(ROW)
    assert stored_quarantine(state) is None
    held = new_quarantine(ValueError("x"), state, NOW + 1)
    store(quarantined_row(held, state), state)
    assert tuple(state.get)[:7] == (QUARANTINED_ROW_VERSION, False, 2, 3, 4, None, None)
    assert stored_quarantine(state) == held
    assert (held.row_version, held.blob, held.since_ms) == (STATE_ROW_VERSION, b"b", NOW + 1)


def test_a_session_that_was_never_stored_is_quarantined_with_an_empty_blob() -> None:
    held = new_quarantine(ValueError("x"), group_state(), NOW)
    assert (held.row_version, held.blob) == (0, b"")
    assert quarantined_row(held, group_state())[:5] == (QUARANTINED_ROW_VERSION, False, 0, 0, 0)
