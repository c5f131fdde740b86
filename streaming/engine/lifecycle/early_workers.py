"""Starts the Python workers while the query is still being prepared, so that its first micro-batch does not wait for them.

Spark starts their daemon (streaming/engine/operator/worker_daemon.py) for the first task that needs a worker. Its imports then
take a second, while the other processor has little to do. A query of one row needs a worker as soon as there is a Spark session.
"""

import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log: Final = structlog.get_logger(__name__)


def start_workers_early(spark: "SparkSession") -> threading.Thread | None:
    """Runs the query on a thread of its own, and returns that. After a failure the first micro-batch starts the workers.

    Returns None without a query if the executors are elsewhere, because none of them is known yet.
    """
    if not (spark.sparkContext.master or "").startswith("local"):
        return None
    thread = threading.Thread(target=_start, args=(spark,), name="inflight-early-workers", daemon=True)
    thread.start()
    return thread


def _start(spark: "SparkSession") -> None:
    began_s = time.monotonic()
    try:
        # With Arrow like the operator: Spark shares a daemon among the workers of one kind.
        spark.range(1, numPartitions=1).mapInArrow(lambda batches: batches, "id long").collect()
    except Exception as error:  # noqa: BLE001 - also a session that is stopped meanwhile
        _log.debug("workers_not_started_early", error=repr(error))
    else:
        _log.debug("workers_started_early", seconds=round(time.monotonic() - began_s, 1))
