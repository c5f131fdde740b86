"""Makes the spans of a message from its receipt. Equal receipts give equal spans, ids included, so a copy changes nothing.

A message has one span, whose parent is the backend's. Below it are its stations:

| span | from | to |
|---|---|---|
| `inflight deliver` | Kafka stored the message | its outcome |
| `inflight queue` | Kafka stored the message | it was first sent, or its outcome |
| `inflight exchange` | it was first sent | its outcome |
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from state.model import Outcome
from state.records.receipts import Receipt

DELIVER: Final = "inflight deliver"
QUEUE: Final = "inflight queue"
EXCHANGE: Final = "inflight exchange"

_SAMPLED: Final = 0x01
_SUCCESS: Final = frozenset((Outcome.DELIVERED, Outcome.SENT))
_ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StationSpan:
    """A span. Times are milliseconds since 1970.

    Attributes:
        error: What went wrong, for people; None = nothing did.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    begin_ms: int
    end_ms: int
    attributes: Mapping[str, str | int | bool]
    error: str | None


def spans_of(receipt: Receipt) -> tuple[StationSpan, ...]:
    """Returns the spans of a message, the outer one first; none for a message without a trace, or one that is not sampled."""
    if receipt.traceparent is None:
        return ()
    _, trace, parent, flags = receipt.traceparent.split("-")[:4]
    if not int(flags, 16) & _SAMPLED:
        return ()
    end_ms = max(receipt.outcome_ms, receipt.accepted_ms)
    sent_ms = end_ms if receipt.first_sent_ms is None else min(max(receipt.first_sent_ms, receipt.accepted_ms), end_ms)
    error = None if receipt.outcome in _SUCCESS else f"{receipt.outcome}: {receipt.detail}".removesuffix(": ")
    deliver_id = _span_id(receipt, DELIVER)

    def span(name: str, span_id: int, parent_id: int, begin_ms: int, end_ms: int, error: str | None) -> StationSpan:
        return StationSpan(
            name=name,
            trace_id=int(trace, 16),
            span_id=span_id,
            parent_id=parent_id,
            begin_ms=begin_ms,
            end_ms=end_ms,
            attributes=_attributes(receipt) if name == DELIVER else {},
            error=error,
        )

    spans = [
        span(DELIVER, deliver_id, int(parent, 16), receipt.accepted_ms, end_ms, error),
        span(QUEUE, _span_id(receipt, QUEUE), deliver_id, receipt.accepted_ms, sent_ms, None),
    ]
    if receipt.first_sent_ms is not None:
        spans.append(span(EXCHANGE, _span_id(receipt, EXCHANGE), deliver_id, sent_ms, end_ms, error))
    return tuple(spans)


def _attributes(receipt: Receipt) -> Mapping[str, str | int | bool]:
    return {
        "messaging.system": "mqtt",
        "messaging.message.id": receipt.message_id,
        "messaging.client.id": receipt.client_id,
        "inflight.outcome": str(receipt.outcome),
        "inflight.reason_code": receipt.reason_code,
        "inflight.attempts": receipt.attempts,
        "inflight.deaths": receipt.deaths,
        "inflight.fast_path": receipt.fast_path,
    }


def _span_id(receipt: Receipt, name: str) -> int:
    """Returns eight bytes, not all zeros. A message that died in several queues has spans of its own for each."""
    key = f"{receipt.traceparent}\0{receipt.client_id}\0{receipt.message_id}\0{receipt.deaths}\0{receipt.recorded_ms}\0{name}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=_ID_BYTES).digest()) or 1
