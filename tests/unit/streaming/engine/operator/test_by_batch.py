"""Each task gets the settings of its own micro-batch, even in a worker process that has run others."""

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark import TaskContext

from streaming.engine.operator.by_batch import BATCH_ID, BatchSettings, OperatorByBatch
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import TaskOperator

NOW = PipelineSettings(commands_partitions=1)
BEFORE = replace(NOW, receipts=False)


class Task(TaskContext):
    """A task with its local properties."""

    def __new__(cls, **_: str) -> "Task":
        return object.__new__(cls)

    def __init__(self, **properties: str) -> None:
        self._localProperties = properties


def settings_in(batch_id: int, settings: BatchSettings) -> PipelineSettings:
    """Returns the settings that a worker gets for a task of this micro-batch."""
    TaskContext._setTaskContext(Task(**{BATCH_ID: str(batch_id)}))
    task = pickle.loads(pickle.dumps(OperatorByBatch(settings)))
    assert isinstance(task, TaskOperator)
    return task.operator._settings


@pytest.fixture(autouse=True)
def no_task() -> Iterator[None]:
    yield
    TaskContext._setTaskContext(None)


def test_a_re_executed_micro_batch_has_its_earlier_settings() -> None:
    settings = BatchSettings(current=NOW, from_batch=8, before=BEFORE)
    assert [settings_in(number, settings) for number in (7, 8, 9, 7, 10)] == [BEFORE, NOW, NOW, BEFORE, NOW]


def test_without_a_re_execution_all_micro_batches_have_current_settings() -> None:
    assert settings_in(7, BatchSettings(current=NOW, from_batch=8)) is settings_in(8, BatchSettings(current=NOW, from_batch=8))


def test_a_worker_process_makes_an_operator_once_for_each_settings() -> None:
    settings = BatchSettings(current=NOW, from_batch=8, before=BEFORE)
    made = []
    for number in (8, 9):
        TaskContext._setTaskContext(Task(**{BATCH_ID: str(number)}))
        made.append(pickle.loads(pickle.dumps(OperatorByBatch(settings))))
    assert made[0].operator is made[1].operator


@pytest.mark.parametrize("task", [None, Task()])
def test_a_task_without_a_micro_batch_number_fails(task: Task | None) -> None:
    TaskContext._setTaskContext(task)
    with pytest.raises(RuntimeError, match=BATCH_ID):
        pickle.loads(pickle.dumps(OperatorByBatch(BatchSettings(current=NOW))))
