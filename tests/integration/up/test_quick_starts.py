"""The class archives that `make jars` has made, with the Java of this machine."""

import os
import subprocess
from typing import Final

import pytest

from inflight.local.class_data_sharing import Program, archive_options, ensure_class_archives
from inflight.local.jars import Jars, kafka_classpath, pyspark_jars
from inflight.local.java import find_java

_COLLECTORS: Final = {"kafka": ("-XX:-UseSerialGC", "-XX:+UseParallelGC"), "spark": ()}


def class_path(program: Program, jars: Jars) -> str:
    if program == "kafka":
        return kafka_classpath(jars)
    # As Spark's launcher has it: what engine/spark_options.py puts before everything, its configuration, its jars.
    connectors = os.pathsep.join(map(str, (jars.local_fs, *jars.spark)))
    first, *_ = pyspark_jars().glob("slf4j-api-*.jar")
    return os.pathsep.join((connectors, f"{pyspark_jars().parent / 'conf'}{os.sep}", str(first), str(pyspark_jars() / "*")))


@pytest.mark.parametrize(("program", "main"), [("kafka", "kafka.Kafka"), ("spark", "org.apache.spark.deploy.SparkSubmit")])
def test_classes_come_from_the_archive(program: Program, main: str, jars: Jars) -> None:
    """A JVM says nothing about an archive that does not fit, for instance because the jars were elsewhere when it was made."""
    ensure_class_archives(jars, print)
    options = [*archive_options(program, jars), *_COLLECTORS[program], "-Xlog:class+load", "-cp", class_path(program, jars)]
    done = subprocess.run([find_java().executable, *options, main, "--version"], timeout=60, capture_output=True, text=True)
    loaded = next(line for line in done.stdout.splitlines() if f"{main} source:" in line)
    assert "shared objects file (top)" in loaded


def test_a_jvm_that_the_archive_does_not_fit_starts_without_it(jars: Jars) -> None:
    ensure_class_archives(jars, print)
    options = [*archive_options("kafka", jars), "-cp", "elsewhere.jar"]
    done = subprocess.run([find_java().executable, *options, "-version"], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == ""
