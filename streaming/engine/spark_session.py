"""Starts the Spark session of the engine (streaming/engine/spark_options.py has its settings)."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from streaming.config.settings import Settings
from streaming.engine.spark_launch import launch_spark_jvm
from streaming.engine.spark_options import SparkJars, SparkSettings, engine_spark_settings
from streaming.spark_internals.jvm import connect_jvm


def start_spark(settings: Settings, jars: SparkJars | None) -> SparkSession:
    """Starts Spark for an engine.

    Args:
        jars: None under spark-submit, which then decides the master, too.
    """
    return spark_session(engine_spark_settings(settings, is_submitted=jars is None), jars)


def spark_session(settings: SparkSettings, jars: SparkJars | None, *, stderr: int | None = None) -> SparkSession:
    """Starts Spark, which takes some seconds. A process has one session: a second call with other settings gets the first JVM.

    Args:
        jars: None under spark-submit, which brings them.
        stderr: A file descriptor for the JVM's standard error; None = ours.
    """
    options = launch_spark_jvm(settings, jars, stderr=stderr)
    connect_jvm()
    builder = SparkSession.builder.appName(settings.app_name)
    for name, value in options.items():
        builder = builder.config(name, value)
    with _own_interrupts():
        return builder.getOrCreate()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Leaves Ctrl-C to this program. PySpark would cancel all jobs at once, so that running micro-batches fail instead of end."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can change it, so PySpark does not
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
