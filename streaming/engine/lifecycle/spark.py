"""Spark as the configuration wants it."""

import os
from typing import Final

from pyspark.sql import SparkSession

from streaming.config.settings import Settings
from streaming.engine.spark_session import SparkJars, SparkSettings, spark_session

NO_OPTIMIZING_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java's optimizing compiler takes half a core for minutes, from devices that wait, and its code is hardly faster for what we do
(docs/decisions/0031). Without it the code cache would be too small."""

_SLOTS_OF_A_PROCESSOR: Final = 2
"""docs/decisions/0032."""


def start_spark(settings: Settings, jars: SparkJars | None) -> SparkSession:
    """The Spark session of the engine as configured. jars: None under spark-submit, whose business the master is then, too."""
    engine = settings.engine
    return spark_session(
        SparkSettings(
            checkpoint_location=settings.checkpoint_location,
            log_file=engine.data_dir.absolute() / "logs" / "spark.log",
            master=None if jars is None else spark_master(settings),
            state_partitions=engine.state_partitions,
            driver_memory=engine.driver_memory,
            java_options=NO_OPTIMIZING_COMPILER,
            extra={key: _spark_value(value) for key, value in engine.spark.items()},
        ),
        jars,
    )


def spark_master(settings: Settings) -> str:
    """Spark's master: `local[*]` gets two slots for each processor, because tasks wait for Kafka and for Python workers half of
    their time; with the archive on at least one more than the sessions have state partitions.

    A task of the archive runs for seconds. On a machine with few cores it would hold a slot that the sessions' next micro-batch
    needs; with a slot of its own the operating system shares the core between the two.
    """
    if settings.engine.master != "local[*]":
        return settings.engine.master
    slots = _SLOTS_OF_A_PROCESSOR * len(os.sched_getaffinity(0))
    return f"local[{max(slots, settings.engine.state_partitions + 1) if settings.archive.enabled else slots}]"


def _spark_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
