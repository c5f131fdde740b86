import importlib.util
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from streaming.engine.spark_options import SparkJars, SparkSettings, launch_options, spark_options, temporary_options

JARS = SparkJars(connectors=(Path("/jars/kafka.jar"),), local_fs=Path("/jars/fs.jar"), java_options=())


@pytest.mark.parametrize(("master", "jars"), [("local[*]", JARS), ("spark://master:7077", JARS), (None, None)])
def test_no_task_is_started_twice_wherever_spark_runs(master: str | None, jars: SparkJars | None) -> None:
    """A second copy of a task would write its records to Kafka a second time."""
    settings = SparkSettings(checkpoint_location="/checkpoint", log_file=Path("/logs/spark.log"), master=master)
    assert spark_options(settings, jars)["spark.speculation"] == "false"


@pytest.mark.parametrize(("master", "jars"), [("local[*]", JARS), ("spark://master:7077", JARS), (None, None)])
def test_workers_are_talked_to_without_tcp_wherever_spark_runs(master: str | None, jars: SparkJars | None) -> None:
    """Over TCP a micro-batch waits twice for a delayed acknowledgement."""
    settings = SparkSettings(checkpoint_location="/checkpoint", log_file=Path("/logs/spark.log"), master=master)
    assert spark_options(settings, jars)["spark.python.unix.domain.socket.enabled"] == "true"


def test_workers_are_forked_with_our_packages_where_the_daemon_finds_them() -> None:
    local = SparkSettings(checkpoint_location="/checkpoint", log_file=Path("/logs/spark.log"), master="local[*]")
    module = spark_options(local, JARS)["spark.python.daemon.module"]
    assert importlib.util.find_spec(module) is not None
    assert "spark.python.daemon.module" not in spark_options(replace(local, master="spark://master:7077"), JARS)


def test_configured_spark_settings_win() -> None:
    settings = SparkSettings(checkpoint_location="/c", log_file=Path("/l"), extra={"spark.sql.session.timeZone": "CET"})
    assert spark_options(settings, JARS)["spark.sql.session.timeZone"] == "CET"


@pytest.mark.parametrize(
    ("master", "name", "joined"),
    [
        ("spark://master:7077", "spark.jars", "file:///jars/kafka.jar,/mine/s3a.jar"),
        ("local[*]", "spark.jars", "/mine/s3a.jar"),
        ("local[*]", "spark.driver.extraClassPath", "/jars/fs.jar:/jars/kafka.jar:/mine/s3a.jar"),
    ],
)
def test_configured_jars_are_added_to_ours(master: str, name: str, joined: str) -> None:
    settings = SparkSettings(checkpoint_location="/c", log_file=Path("/l"), master=master, extra={name: "/mine/s3a.jar"})
    assert spark_options(settings, JARS)[name] == joined


@pytest.mark.parametrize("master", ["local[*]", "spark://master:7077"])
def test_configured_jvm_options_come_after_ours(master: str) -> None:
    """Java uses the later of two opposite options."""
    name = "spark.driver.extraJavaOptions"
    settings = SparkSettings(checkpoint_location="/c", log_file=Path("/l"), master=master, java_options="-XX:TieredStopAtLevel=1")
    ours = spark_options(settings, JARS)[name]
    theirs = replace(settings, extra={name: "-XX:TieredStopAtLevel=4"})
    assert spark_options(theirs, JARS)[name] == f"{ours} -XX:TieredStopAtLevel=4"
    assert ("-XX:TieredStopAtLevel=1" in ours) == (master == "local[*]")


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.azure.sas.container.account",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.auth.service.account.private.key",
        "spark.driver.secret",
        "spark.an.option.of.tomorrow",
    ],
)
def test_only_what_starts_the_jvm_is_in_its_command_line(name: str) -> None:
    settings = SparkSettings(checkpoint_location="/c", log_file=Path("/l"), extra={name: "hunter2", "spark.driver.memory": "3g"})
    options = spark_options(settings, JARS)
    assert options[name] == "hunter2"
    flags = launch_options(options)
    assert "hunter2" not in flags.values()
    assert flags["spark.driver.memory"] == "3g"
    assert flags["spark.driver.extraJavaOptions"] == options["spark.driver.extraJavaOptions"]


def test_temporary_files_of_java_and_sockets_are_in_the_directory() -> None:
    options = temporary_options(Path("/tmp/mine"), "-Da=b")
    assert options == {"spark.driver.extraJavaOptions": '"-Djava.io.tmpdir=/tmp/mine" -Da=b'}


def test_a_socket_gets_no_path_that_is_too_long() -> None:
    options = temporary_options(Path("/tmp") / ("x" * 80), "")
    assert options["spark.python.unix.domain.socket.dir"] == tempfile.gettempdir()


@pytest.mark.parametrize("name", ["plain", "a b'c\"d,e\\f%20g ü$x#&{y}[z]*?~:@!"])
def test_any_directory_is_one_word_of_the_jvm(name: str) -> None:
    """Spark's launcher splits the options as a shell does."""
    settings = SparkSettings(checkpoint_location="/c", log_file=Path("/", name, "spark.log"))
    jars = replace(JARS, java_options=(f"-XX:SharedArchiveFile=/{name}/spark.jsa",))
    words = shlex.split(spark_options(settings, jars)["spark.driver.extraJavaOptions"])
    assert f"-Dinflight.spark.log=/{name}/spark.log" in words
    assert f"-XX:SharedArchiveFile=/{name}/spark.jsa" in words
    assert f"-Djava.io.tmpdir=/{name}" in shlex.split(temporary_options(Path("/", name), "")["spark.driver.extraJavaOptions"])
