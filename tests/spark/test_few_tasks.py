"""The tasks in which a micro-batch of a local engine reads Kafka."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, spark_partition_id

from streaming.engine.query import in_few_tasks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

_MESSAGES_FROM = 1_000


@pytest.mark.parametrize(("partitions", "tasks"), [(4, 2), (4, 4), (8, 2), (16, 6), (1, 1)])
def test_no_task_reads_much_more_of_a_burst_than_the_others(spark: SparkSession, partitions: int, tasks: int) -> None:
    """A burst is many messages in each partition, beside some events in each."""
    size = 100 * partitions
    events = spark.range(0, size, 1, partitions)
    messages = spark.range(_MESSAGES_FROM * size, (_MESSAGES_FROM + 10) * size, 1, partitions)
    read = in_few_tasks(events, messages, tasks).groupBy(spark_partition_id().alias("task"), col("id") < size).count()
    rows = read.toPandas()
    assert rows["count"].sum() == 11 * size, "each record once"
    assert set(rows["task"]) == set(range(tasks))
    of_messages = rows[~rows.iloc[:, 1]]["count"]
    most = -(-(partitions + max(1, tasks // 2)) // tasks)  # the events count as one partition for every second task
    assert of_messages.max() <= most * 10 * 100
