"""Starts the JVM of Spark ahead of everything else, so that it starts while Python imports PySpark and the engine.

The engine does so as soon as it has its configuration. `spark_session` goes on with that JVM, or starts one.
"""

import os
import sys

from streaming.config.settings import Settings
from streaming.engine.spark_options import SparkJars, SparkSettings, all_options, engine_spark_settings, launch_options
from streaming.spark_internals.jvm_launch import launch_jvm, under_spark_submit


def launch_engine_jvm(settings: Settings, jars: SparkJars | None) -> None:
    """Starts the JVM that `start_spark` will use. Does nothing under spark-submit, where jars is None."""
    if jars is not None:
        launch_spark_jvm(engine_spark_settings(settings, is_submitted=False), jars)


def launch_spark_jvm(settings: SparkSettings, jars: SparkJars | None, *, stderr: int | None = None) -> dict[str, str]:
    """Starts the JVM unless this process has one, and returns all settings of Spark. It ends with this process.

    Args:
        jars, stderr: See `spark_session`.
    """
    # PySpark reads only the environment; without this the workers run whatever `python3` is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings.log_file.parent.mkdir(parents=True, exist_ok=True)
    options = all_options(settings, jars)
    if not under_spark_submit():
        launch_jvm(launch_options(options), stderr=stderr)
    return options
