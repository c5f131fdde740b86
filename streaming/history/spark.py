"""Spark for the length of one question."""

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from streaming.engine.spark_session import SparkJars, SparkSettings, spark_session

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def history_spark(settings: "Settings", jars: SparkJars, *, brief: bool = False) -> SparkSession:
    """Starts it, which takes about five seconds; to be stopped.

    brief: the answer is small and soon there, so Java does not spend a third of the time on optimising code that ends with it.
    """
    engine = settings.engine
    return spark_session(
        SparkSettings(
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
        ),
        jars,
    )
