"""Gives each micro-batch of a query its own settings (lifecycle/settings_log.py).

Spark tells each task which micro-batch it belongs to. A worker process serves many micro-batches, and Spark unpickles the
function for every task. So unpickling chooses the settings, once for a task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql.streaming.state import GroupState

from streaming.engine.operator.cells import Frames
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.reported_backlogs import BacklogsAccumulator
from streaming.engine.operator.reported_counts import CountsAccumulator
from streaming.engine.operator.reported_deadlines import Reports
from streaming.engine.operator.reported_drops import DropsAccumulator
from streaming.engine.operator.session_operator import TaskOperator, operator_in_worker

BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's name of a local property of every task of a streaming query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The settings of a query's micro-batches.

    Attributes:
        current: In force from the micro-batch `from_batch` on.
        before: In force for the micro-batch before that, which is executed again; None if it is committed or has the same
            settings.
    """

    current: PipelineSettings
    from_batch: int = 0
    before: PipelineSettings | None = None

    def of(self, batch_id: int) -> PipelineSettings:
        return self.current if self.before is None or batch_id >= self.from_batch else self.before


class OperatorByBatch:
    """The function for `applyInPandasWithState`; each task unpickles it as a `TaskOperator` with its micro-batch's settings.

    Args:
        deadlines: Gets those of the called sessions; None = nobody asks for them.
        drops: Gets what these sessions drop; None = nobody asks for it.
        backlogs: Gets the large queues of these sessions; None = nobody asks for them.
        counts: Gets the counts of what these sessions write; None = nobody asks for them.
    """

    def __init__(
        self,
        settings: BatchSettings,
        deadlines: Accumulator[Reports] | None = None,
        drops: DropsAccumulator | None = None,
        backlogs: BacklogsAccumulator | None = None,
        counts: CountsAccumulator | None = None,
    ) -> None:
        self._arguments = settings, deadlines, drops, backlogs, counts

    def __reduce__(self) -> tuple[Callable[..., TaskOperator], tuple[object, ...]]:
        return operator_of_task, self._arguments

    def __call__(self, key: tuple[str, ...], frames: Frames, state: GroupState) -> Frames:
        raise NotImplementedError("Spark calls the object that this is unpickled as")


def operator_of_task(
    settings: BatchSettings,
    deadlines: Accumulator[Reports] | None = None,
    drops: DropsAccumulator | None = None,
    backlogs: BacklogsAccumulator | None = None,
    counts: CountsAccumulator | None = None,
) -> TaskOperator:
    """Makes the operator of the current task. Raises RuntimeError outside of a task of a streaming query."""
    context = TaskContext.get()
    batch_id = None if context is None else context.getLocalProperty(BATCH_ID)
    if batch_id is None:
        raise RuntimeError(f"Spark does not say which micro-batch this is: the task has no {BATCH_ID}")
    return operator_in_worker(settings.of(int(batch_id)), deadlines, drops, backlogs, counts)
