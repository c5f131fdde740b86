"""Spark for the length of one question."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from streaming.engine.spark_session import SparkJars, SparkSettings, spark_session

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_STDERR: Final = 2
_NO_NEWS: Final = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Spark's own launcher asks for that module, and every JVM warns of it."""


def history_spark(settings: "Settings", jars: SparkJars, *, brief: bool = False) -> SparkSession:
    """Starts it, which takes about five seconds; to be stopped.

    brief: the answer is small and soon there, so Java does not spend a third of the time on optimising code that ends with it.
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
    with _news_to(_STDERR) as stderr:
        return spark_session(spark_settings, jars, stderr=stderr)


@contextmanager
def _news_to(out: int) -> Iterator[int]:
    """A file descriptor for the standard error of a JVM that is started within; what it says goes to `out` as long as it lives,
    progress bars too, without what is no news.
    """
    read, write = os.pipe()
    threading.Thread(target=_relay, args=(read, out), name="what the JVM says", daemon=True).start()
    try:
        yield write
    finally:
        os.close(write)


def _relay(read: int, out: int) -> None:
    # Past `sys.stderr`: a thread that has its lock when the process ends would break that.
    # Nobody may be there to read it, or no room for it: what is asked of Spark goes on.
    with open(read, "rb") as words, suppress(OSError):
        while part := words.read1(io.DEFAULT_BUFFER_SIZE):
            os.write(out, part.replace(_NO_NEWS, b""))  # Java writes whole lines
