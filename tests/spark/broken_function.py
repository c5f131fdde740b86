"""The function of tests/spark/test_quarantine.py: Spark's workers import it by the name of this module."""

from typing import Any

from pyspark.sql.streaming.state import GroupState

from state.activation import Activation
from state.events import DeadlineReached
from state.records.events import encode_event
from state.session import Session
from streaming.engine.operator.cells import Frames, cells_of, decode_source_record
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.reported_counts import CountsAccumulator, counts_of
from streaming.engine.operator.session_operator import SessionOperator
from streaming.engine.operator.sink_columns import frames_of
from streaming.engine.operator.state_row import STATE_ROW_VERSION

_CALL = encode_event(DeadlineReached())


class Broken:
    """The session operator with two defects.

    The stored blob of the client `damaged` is no session once a message is in it. Timers of the client `timer` raise an error.
    """

    def __init__(self, settings: PipelineSettings, counts: CountsAccumulator) -> None:
        self.settings = settings
        self.counts = counts
        self.operator = SessionOperator(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Broken, (self.settings, self.counts)

    def __call__(self, key: tuple[str], frames: Frames, state: GroupState) -> Frames:
        pass_time, cells = Session._pass_time, list(cells_of(frames))
        if key == ("timer",) and any(decode_source_record(cell).value == _CALL for cell in cells):
            Session._pass_time = _failing  # type: ignore[method-assign]
        try:
            answer = self.operator.activate(key, cells, state)
        finally:
            # The worker process is used again, by other queries too.
            Session._pass_time = pass_time  # type: ignore[method-assign]
        if key == ("damaged",) and state.exists and state.get[0] == STATE_ROW_VERSION and b"first" in state.get[-1]:
            state.update((*state.get[:-1], b"damaged"))
        self.counts.add(counts_of(answer, self.settings.topics))
        return frames_of(answer)


def _failing(session: Session, activation: Activation) -> None:
    raise ZeroDivisionError("a mistake of ours")
