"""The class archives that `make jars` has made, with the Java of this machine."""

import subprocess

from inflight.local.class_data_sharing import archive_options, ensure_class_archives
from inflight.local.jars import Jars, kafka_classpath
from inflight.local.java import find_java


def test_the_archive_fits_the_java_of_this_machine_and_the_jars_of_kafka(jars: Jars) -> None:
    ensure_class_archives(jars, print)
    options = [
        *archive_options("kafka", jars),
        "-Xshare:on",
        "-XX:-UseSerialGC",
        "-XX:+UseParallelGC",
        "-cp",
        kafka_classpath(jars),
    ]
    # With -Xshare:on a JVM ends when it cannot map the archive.
    subprocess.run([find_java().executable, *options, "-version"], check=True, timeout=60)


def test_a_jvm_that_the_archive_does_not_fit_starts_without_it(jars: Jars) -> None:
    ensure_class_archives(jars, print)
    options = [*archive_options("kafka", jars), "-cp", "elsewhere.jar"]
    done = subprocess.run([find_java().executable, *options, "-version"], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == ""
