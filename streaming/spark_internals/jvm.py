"""Connects PySpark to the JVM of this process, ends it, and names the errors of a call into Spark.

Tried with PySpark 4.2.0. It uses `SparkContext._gateway`, `SparkContext._ensure_initialized`, `pyspark.java_gateway` and
`pyspark.daemon`. A version without one of them raises AttributeError or ImportError when Spark is started, before any query runs.
"""

import logging
import os
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger

from streaming.spark_internals.jvm_launch import LaunchedJvm, launched_jvm

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Errors that a call into Spark may raise: Spark refuses what was asked, or the JVM failed or is gone."""

_LOGS_OF_ERRORS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark logs each error of a query as JSON with the stack of the JVM, and raises it too."""
_LOG_OF_CALLBACKS: Final = "py4j.clientserver"
"""Py4J logs what a function for `foreachBatch` raises, with its traceback. Spark makes it the error of the query too."""


def connect_jvm() -> None:
    """Connects PySpark to the JVM that `launch_jvm` has started, or to that of spark-submit."""
    launched = launched_jvm()
    gateway = None
    if SparkContext._gateway is None and launched is not None:
        gateway = _connected(launched)
    SparkContext._ensure_initialized(gateway=gateway)
    for name in _LOGS_OF_ERRORS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger(_LOG_OF_CALLBACKS).setLevel(logging.CRITICAL)


def end_jvm(timeout_s: float) -> None:
    """Ends the JVM of this process and waits for its exit. Stop Spark first."""
    launched = launched_jvm()
    if SparkContext._gateway is None or launched is None or launched.process.stdin is None:
        raise AssertionError("the engine has started a JVM")
    SparkContext._gateway.shutdown()
    launched.process.stdin.close()  # the JVM exits when its standard input ends
    launched.process.wait(timeout_s)


def serve_python_workers() -> None:
    """Runs PySpark's daemon, which forks a Python worker whenever the JVM asks for one. Returns when the JVM is gone."""
    from pyspark import daemon

    daemon.manager()


def _connected(launched: LaunchedJvm) -> Any:
    """Returns PySpark's gateway to a JVM. Raises PySparkRuntimeError if that has ended."""
    from pyspark.java_gateway import launch_gateway

    found = launched.connection()
    if found is None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    port, secret = found
    # The way of spark-submit to name a JVM that runs. Only for this call: the two variables also say that spark-submit was used.
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = launched.process
    return gateway
