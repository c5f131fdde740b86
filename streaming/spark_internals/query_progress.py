"""Reads what Spark reports of a query: micro-batches that have ended, and work on one that has not.

Tried with PySpark 4.2.0. The public `recentProgress` fetches a hundred documents on each call, so the reports are read through
their JVM objects. Another version without these objects raises AttributeError or Py4JError: the engine ends with that error when
reports are missing, and its watchdog ignores it when signs of work are missing.
"""

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # processes without Spark read the engine's progress file with streaming/engine/progress.py
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def new_reports(query: "StreamingQuery", *, after_batch_id: int) -> list[dict[str, Any]]:
    """Returns Spark's StreamingQueryProgress of each later micro-batch that has ended, oldest first.

    Spark keeps a hundred reports. An idle report repeats the id of the last micro-batch, so it never counts as new.
    """
    recent: Any = query._jsq.recentProgress()
    found: list[dict[str, Any]] = []
    for index in range(len(recent) - 1, -1, -1):
        if recent[index].batchId() <= after_batch_id:
            break
        document = msgspec.json.decode(recent[index].json())
        if "addBatch" in document["durationMs"]:
            found.append(document)
    return found[::-1]


def executor_work(spark: "SparkSession", run_id: str) -> tuple[int, ...]:
    """Returns numbers that change while Spark's executors work on the newest job of the query with that run id.

    The numbers are the job, its tasks that have ended, and the records that its tasks have read and written. Executors report
    every ten seconds (`spark.executor.heartbeatInterval`). Empty when nothing is known.
    """
    tracker = spark.sparkContext.statusTracker()
    job_id = max(tracker.getJobIdsForGroup(run_id), default=None)
    job = None if job_id is None else tracker.getJobInfo(job_id)
    if job_id is None or job is None:
        return ()
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    numbers = [job_id]
    for stage_id in job.stageIds:
        stage = tracker.getStageInfo(stage_id)
        if stage is None or not (stage.numActiveTasks or stage.numCompletedTasks):
            continue
        data = store.lastStageAttempt(stage_id)
        numbers += [
            stage.numCompletedTasks,
            stage.numFailedTasks,
            data.inputRecords(),
            data.shuffleReadRecords(),
            data.shuffleWriteRecords(),
            data.outputRecords(),
        ]
    return tuple(numbers)
