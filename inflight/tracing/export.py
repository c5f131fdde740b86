"""Reads receipts as a consumer group, and hands the spans of sampled messages to a collector."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from inflight.tracing.spans import StationSpan, spans_of
from state.records.receipts import Receipt

_AGAIN_S: Final = 5.0
_STEP_S: Final = 0.2

_log: Final = structlog.get_logger(__name__)


class Collector(Protocol):
    """Takes spans. Tests have one in memory."""

    def accepts(self, spans: Sequence[StationSpan]) -> bool: ...


def export_spans(batches: Iterator[list[Receipt]], collector: Collector, *, is_stopping: Callable[[], bool]) -> int:
    """Exports until the batches end. Returns the number of messages whose spans were exported.

    A batch that the collector does not accept is offered again, and its offsets are not committed: receipts wait in Kafka.
    """
    exported = 0
    for batch in batches:
        trees = [tree for receipt in batch if (tree := spans_of(receipt))]
        spans = [span for tree in trees for span in tree]
        while spans and not collector.accepts(spans):
            _log.warning("collector_accepts_nothing", spans=len(spans), again_s=_AGAIN_S)
            again_s = time.monotonic() + _AGAIN_S
            while time.monotonic() < again_s:
                if is_stopping():
                    return exported
                time.sleep(_STEP_S)
        exported += len(trees)
    return exported
