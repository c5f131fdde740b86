"""Finds the micro-batch that read a record, with and without the engine's own word."""

from itertools import pairwise

from state.records.ledger import LedgerRow
from streaming.engine.batch_record import batch_row
from streaming.spark_internals.checkpoint import LoggedBatch
from streaming.what_if.micro_batches import MicroBatches

PLACE = ("events", 0)


def rows(*ends: tuple[int, int], begin: int = 0) -> list[LedgerRow]:
    batches = [LoggedBatch(0, {"events": {0: begin}}), *(LoggedBatch(at_ms, {"events": {0: end}}) for at_ms, end in ends)]
    found = [batch_row(batch, before) for before, batch in pairwise(batches)]
    return [row for row in found if row is not None]


def test_a_record_belongs_to_the_micro_batch_that_read_its_offset() -> None:
    batches = MicroBatches.of(rows((1_000, 3), (2_000, 5)))
    assert [batches.time_of(PLACE, offset, 0) for offset in range(6)] == [1_000, 1_000, 1_000, 2_000, 2_000, None]


def test_copies_of_rows_in_any_order_change_nothing() -> None:
    recorded = rows((1_000, 3), (2_000, 5))
    assert MicroBatches.of([*reversed(recorded), *recorded]) == MicroBatches.of(recorded)


def test_a_record_from_before_the_rows_is_cut_by_its_time() -> None:
    batches = MicroBatches.of(rows((5_000, 12), begin=10), (1_000, 2_000))
    assert not batches.covers(PLACE, 4)
    assert [batches.time_of(PLACE, 4, time_ms) for time_ms in (900, 1_000, 1_001)] == [1_000, 1_000, 2_000]
    assert batches.time_of(PLACE, 11, 900) == 5_000


def test_nothing_is_read_after_the_end_of_the_period() -> None:
    batches = MicroBatches.of(rows((1_000, 3), (2_000, 5)), until_ms=1_500)
    assert (batches.time_of(PLACE, 2, 0), batches.time_of(PLACE, 3, 0)) == (1_000, None)


def test_a_timer_is_called_by_the_first_later_micro_batch() -> None:
    batches = MicroBatches.of(rows((1_000, 3), (2_000, 5)))
    assert [batches.first_after(time_ms) for time_ms in (999, 1_000, 2_000)] == [1_000, 2_000, None]
