"""The span tree of a message, and what a collector gets of it."""

import msgspec
import pytest

from inflight.tracing import export
from inflight.tracing.export import export_spans
from inflight.tracing.otlp import OtlpCollector
from inflight.tracing.spans import spans_of
from state.model import Outcome
from state.records.receipts import Receipt
from tests.support.collector import KeepingCollector

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACE = f"00-{TRACE_ID}-{PARENT_ID}-01"
RECEIPT = Receipt(
    message_id="m", client_id="lamp", outcome=Outcome.DELIVERED, reason_code=0, attempts=2, accepted_ms=1_000,
    first_sent_ms=1_300, outcome_ms=1_900, recorded_ms=2_500, detail="", final=True, destinations=(), deaths=0,
    correlation_data=None, fast_path=True, traceparent=TRACE,
)  # fmt: skip


def changed(**fields: object) -> Receipt:
    return msgspec.structs.replace(RECEIPT, **fields)


@pytest.mark.promise("tracing")
def test_a_message_is_one_tree_below_the_span_of_the_backend() -> None:
    whole, queue, exchange = spans_of(RECEIPT)
    assert (whole.name, queue.name, exchange.name) == ("inflight deliver", "inflight queue", "inflight exchange")
    assert {f"{span.trace_id:032x}" for span in (whole, queue, exchange)} == {TRACE_ID}
    assert f"{whole.parent_id:016x}" == PARENT_ID
    assert queue.parent_id == exchange.parent_id == whole.span_id
    assert [(span.begin_ms, span.end_ms) for span in (whole, queue, exchange)] == [(1000, 1900), (1000, 1300), (1300, 1900)]
    assert (whole.attributes["inflight.attempts"], whole.attributes["messaging.client.id"], whole.error) == (2, "lamp", None)


def test_a_copy_of_a_receipt_has_the_same_ids_and_another_one_has_not() -> None:
    ids = {span.span_id for span in spans_of(RECEIPT)}
    assert len(ids) == 3
    assert {span.span_id for span in spans_of(changed(detail="a copy"))} == ids
    others = changed(client_id="lamp-2"), changed(message_id="n"), changed(deaths=1), changed(recorded_ms=2_501)
    assert all(not ids & {span.span_id for span in spans_of(other)} for other in others)


def test_a_message_that_was_never_sent_waited_until_its_end() -> None:
    whole, queue = spans_of(changed(outcome=Outcome.EXPIRED, first_sent_ms=None, detail="too late"))
    assert (queue.end_ms, queue.error, whole.error) == (1900, None, "expired: too late")


def test_the_clock_of_a_gateway_makes_no_span_that_ends_before_it_begins() -> None:
    for first_sent_ms, outcome_ms in ((900, 1_900), (2_500, 1_900), (1_300, 900)):
        for span in spans_of(changed(first_sent_ms=first_sent_ms, outcome_ms=outcome_ms)):
            assert span.begin_ms <= span.end_ms


@pytest.mark.parametrize("trace", [None, f"00-{TRACE_ID}-{PARENT_ID}-00", f"00-{TRACE_ID}-{PARENT_ID}-fe"])
def test_only_sampled_messages_have_spans(trace: str | None) -> None:
    assert spans_of(changed(traceparent=trace)) == ()


def test_a_collector_gets_every_batch_until_it_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_AGAIN_S", 0.01)
    monkeypatch.setattr(export, "_STEP_S", 0.01)
    with KeepingCollector(refuses=1) as keeper:
        collector = OtlpCollector(keeper.endpoint)
        batches = iter([[changed(traceparent=None)], [RECEIPT, changed(message_id="n", outcome=Outcome.EXPIRED)]])
        assert export_spans(batches, collector, is_stopping=lambda: False) == 2
        collector.close()
    assert [span.name for span in keeper.spans] == ["inflight deliver", "inflight queue", "inflight exchange"] * 2
    whole, queue, *_ = keeper.of_trace(TRACE_ID)
    assert (whole.parent_span_id.hex(), queue.parent_span_id) == (PARENT_ID, whole.span_id)
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (1_000_000_000, 1_900_000_000)
    assert [span.status.code for span in keeper.spans] == [0, 0, 0, 2, 0, 2]
    assert keeper.services == {"inflight"}


def test_an_export_that_is_stopped_leaves_its_batch_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with KeepingCollector(refuses=100) as keeper:
        collector = OtlpCollector(keeper.endpoint)
        assert export_spans(iter([[RECEIPT]]), collector, is_stopping=lambda: True) == 0
        collector.close()
    assert keeper.spans == []
