"""What Spark tells of its work on a micro-batch before that is committed."""

from typing import Any

from pyspark.sql import SparkSession


def spark_work(spark: SparkSession, run_id: str) -> tuple[int, ...]:
    """Numbers that change while Spark's executors get on with the newest job of a query: the job, its tasks that have ended, the
    records that its tasks have read and written. Executors report every ten seconds (`spark.executor.heartbeatInterval`).

    run_id: of the query. Empty when nothing is known. Raises Py4JError.
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
