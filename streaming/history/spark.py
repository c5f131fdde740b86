"""Starts Spark for one question."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from streaming.engine.spark_options import SparkJars, SparkSettings
from streaming.engine.spark_session import spark_session

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_STDERR: Final = 2
_WARNING: Final = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Spark's launcher asks for this module, and every JVM warns of it."""


def history_spark(settings: "Settings", jars: SparkJars, *, brief: bool = False) -> SparkSession:
    """Starts Spark, which takes about five seconds. The caller stops it.

    Args:
        brief: The answer is small, so Java does not spend a third of the time on optimising code.
    """
    engine = settings.engine
    spark_settings = SparkSettings(
        checkpoint_location=settings.checkpoint_location,
        log_file=engine.data_dir.absolute() / "logs" / "history.log",
        master=engine.master,
        state_partitions=engine.state_partitions,
        java_options=_BRIEF if brief else "",
        app_name="inflight history",
        extra={
            "spark.log.level": "ERROR",
            "spark.sql.adaptive.enabled": "true",
            "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        },
    )
    with _without_warning(_STDERR) as stderr:
        return spark_session(spark_settings, jars, stderr=stderr)


@contextmanager
def _without_warning(out: int) -> Iterator[int]:
    """Gives a file descriptor for the standard error of a JVM that is started in the block.

    What the JVM writes is copied to `out` as long as it lives, progress bars too, without a warning that every JVM gives.
    """
    read, write = os.pipe()
    threading.Thread(target=_relay, args=(read, out), name="jvm-stderr", daemon=True).start()
    try:
        yield write
    finally:
        os.close(write)


def _relay(read: int, out: int) -> None:
    # Not `sys.stderr`: its lock, held by this thread when the process ends, would break the ending.
    # The question goes on if nobody reads `out` or its disk is full.
    with open(read, "rb") as said, suppress(OSError):
        while part := said.read1(io.DEFAULT_BUFFER_SIZE):
            os.write(out, part.replace(_WARNING, b""))  # Java writes whole lines
