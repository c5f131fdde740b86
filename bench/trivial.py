"""A minimal state operator: it counts its records and answers with one record. Its cost is that of Spark.

It reads the same cells, and writes the same columns, the same state row and the same topics as the session. So the difference is
the cost of the session.
"""

from collections.abc import Iterator
from functools import lru_cache

import pandas as pd
from pyspark.sql.streaming.state import GroupState

from state.records.record import SinkRecord
from streaming.engine.operator.cells import cells_of, sorted_records
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import _operator_of_process
from streaming.engine.operator.sink_columns import frames_of


class TrivialOperator:
    """Forwards the payloads of a group, in one record per group."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings

    def __reduce__(self):
        return _in_worker, (self._settings,)

    def __call__(self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        (client_id,) = key
        records = sorted_records(cells_of(frames))
        count = (state.get[2] if state.exists else 0) + len(records)
        state.update((1, True, count, 0, 0, None, None, b""))
        payloads = [record.value or b"" for record in records if record.source == 1]
        if not payloads:
            return iter(())
        value = b"".join(len(payload).to_bytes(4) + payload for payload in payloads)
        record = SinkRecord(self._settings.topics.commands, client_id.encode(), value, partition=0)
        return frames_of([record])


@lru_cache(maxsize=1)
def _in_worker(settings: PipelineSettings) -> TrivialOperator:
    _operator_of_process(settings)  # the same garbage collector settings
    return TrivialOperator(settings)
