"""Starts Spark on a checkpoint, prints the directory of its temporary files, and ends with its standard input."""

import sys
from pathlib import Path

from inflight.local.spark_jars import spark_jars
from streaming.engine.spark_options import SparkSettings
from streaming.engine.spark_session import spark_session

if __name__ == "__main__":
    checkpoint = Path(sys.argv[1])
    spark = spark_session(
        SparkSettings(checkpoint_location=str(checkpoint), log_file=checkpoint / "spark.log", master="local[1]"), spark_jars()
    )
    print(spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.io.tmpdir')").first()[0], flush=True)  # type: ignore[index]
    sys.stdin.read()
    spark.stop()
