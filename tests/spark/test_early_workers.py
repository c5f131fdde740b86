"""The Python workers are started before the query needs them, and it uses them."""

from pathlib import Path

from pyspark.sql import SparkSession

from streaming.engine.lifecycle.early_workers import start_workers_early
from streaming.engine.operator import worker_daemon
from streaming.engine.watching.processes import descendants
from tests.spark.conftest import Pipeline
from tests.support.waiting import DEADLINE_S


def daemons(spark: SparkSession) -> list[int]:
    """Returns the processes that fork workers, not the workers."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    family = {pid: Path(f"/proc/{pid}/cmdline").read_text(encoding="ascii").split("\0") for pid in descendants(jvm)}
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1]) for pid in family}
    return [pid for pid, words in family.items() if worker_daemon.__name__ in words and parents[pid] == jvm]


def test_the_operator_uses_the_workers_that_were_started_early(spark: SparkSession, pipeline: Pipeline) -> None:
    thread = start_workers_early(spark)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    early = daemons(spark)
    assert len(early) == 1
    pipeline.start()
    pipeline.connect("c")
    pipeline.send_message("c", b"x", ("mqtt-qos", b"1"))
    assert [publish.payload for publish in pipeline.publishes(1)] == [b"x"]
    assert daemons(spark) == early
