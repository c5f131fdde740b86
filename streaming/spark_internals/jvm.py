"""Starts and ends the JVM of this process, and names the errors of a call into Spark.

Tried with PySpark 4.2.0. It uses `SparkContext._gateway`, `SparkContext._ensure_initialized`, `pyspark.java_gateway` and
`pyspark.daemon`. A version without one of them raises AttributeError or ImportError when Spark is started, before any query runs.
"""

import logging
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Errors that a call into Spark may raise: Spark refuses what was asked, or the JVM failed or is gone."""

_LOGS_OF_ERRORS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark logs each error of a query as JSON with the stack of the JVM, and raises it too."""


def under_spark_submit() -> bool:
    """Returns True if spark-submit started this process: then the JVM exists already, with its master and its jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def java_environment() -> dict[str, str]:
    """Returns the environment for a JVM. In another locale than UTF-8 Java cannot open files whose names are not ASCII."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def quoted_java_option(option: str) -> str:
    """Returns one option for a list such as `spark.driver.extraJavaOptions`, whatever characters it has."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def start_jvm(options: Mapping[str, str], *, stderr: int | None = None) -> None:
    """Starts the JVM if this process has none.

    PySpark passes `options` as flags, which every user of the machine can read. Secrets must not be among them.
    stderr: a file descriptor for the JVM's standard error; None = ours.
    """
    os.environ.update(java_environment())  # PySpark gives the JVM the environment of this process
    conf = SparkConf()
    for name, value in options.items():
        conf.set(name, value)
    gateway = None
    if SparkContext._gateway is None and stderr is not None:
        from pyspark.java_gateway import launch_gateway

        gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(conf=conf, gateway=gateway)
    for name in _LOGS_OF_ERRORS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def end_jvm(timeout_s: float) -> None:
    """Ends the JVM of this process and waits for its exit. Stop Spark first."""
    gateway = SparkContext._gateway
    if gateway is None:
        raise AssertionError("the engine has started a JVM")
    jvm = gateway.proc
    gateway.shutdown()
    jvm.stdin.close()  # the JVM exits when its standard input ends
    jvm.wait(timeout_s)


def await_jvm_exit(timeout_s: float) -> None:
    """Closes the standard input of the JVM, if there is one, and waits for its exit, at most `timeout_s`."""
    jvm = getattr(SparkContext._gateway, "proc", None)
    if jvm is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            jvm.stdin.close()
            jvm.wait(timeout_s)


def serve_python_workers() -> None:
    """Runs PySpark's daemon, which forks a Python worker whenever the JVM asks for one. Returns when the JVM is gone."""
    from pyspark import daemon

    daemon.manager()
