"""Gives Spark's JVM what this machine has for it: the jars, and the options that make it start faster."""

from inflight.local.class_data_sharing import archive_options
from inflight.local.jars import ensure_jars
from streaming.engine.spark_options import SparkJars


def spark_jars(*, progress: bool = True) -> SparkJars:
    """Fetches the jars if they are not there.

    Args:
        progress: Show on standard error what is going on.

    Raises:
        JarsNotFetched: A jar cannot be had, or is not the one of the list.
        MissingPrerequisite: There is no Java.
    """
    jars = ensure_jars(progress)
    return SparkJars(connectors=jars.spark, local_fs=jars.local_fs, java_options=archive_options("spark", jars))
