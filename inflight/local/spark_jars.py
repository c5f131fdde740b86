"""What Spark's JVM gets from this machine: the resolved jars, and the options that make it start faster."""

from inflight.local.class_data_sharing import archive_options
from inflight.local.jars import ensure_jars
from streaming.engine.spark_session import SparkJars


def spark_jars(*, progress: bool = True) -> SparkJars:
    """Resolves the jars if they are not there. progress: show it. Raises JarResolutionFailed, MissingPrerequisite."""
    jars = ensure_jars(progress)
    return SparkJars(connectors=jars.spark, local_fs=jars.local_fs, java_options=archive_options("spark", jars))
