"""The JVM is started without PySpark, with a shell script as spark-submit."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.spark_internals import jvm_launch
from streaming.spark_internals.jvm_launch import await_jvm_exit, launch_jvm, launched_jvm

pytestmark = pytest.mark.processes

_CONNECTION = r'''printf "\000\000\061\062\000\000\000\003key" >made; mv made "$_PYSPARK_DRIVER_CONN_INFO_PATH"'''
Submit = Callable[[str], None]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    monkeypatch.setattr(jvm_launch, "_launched", None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.chdir(tmp_path)

    def write(script: str) -> None:
        program = tmp_path / "bin" / "spark-submit"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >>words\n{script}\n')
        program.chmod(0o755)

    return write


def test_the_port_and_the_secret_are_what_the_jvm_wrote(submit: Submit, tmp_path: Path) -> None:
    submit(f"{_CONNECTION}\nread line")
    launch_jvm({"spark.driver.memory": "1g"})
    launched = launched_jvm()
    assert launched is not None
    assert launched.connection() == (0x3132, "key")
    assert not launched.folder.exists()
    assert (tmp_path / "words").read_text() == "--conf|spark.driver.memory=1g|pyspark-shell|"
    await_jvm_exit(10)
    assert launched.process.poll() is not None, "it ends with its standard input"


def test_a_process_has_one_jvm(submit: Submit, tmp_path: Path) -> None:
    submit("read line")
    launch_jvm({})
    first = launched_jvm()
    launch_jvm({})
    assert launched_jvm() is first
    await_jvm_exit(10)


def test_a_jvm_that_cannot_start_has_no_connection(submit: Submit) -> None:
    submit("exit 1")
    launch_jvm({})
    launched = launched_jvm()
    assert launched is not None
    assert launched.connection() is None
    assert not launched.folder.exists()


def test_a_jvm_that_is_not_used_can_say_how_to_connect_until_it_ends(submit: Submit, tmp_path: Path) -> None:
    submit(f"read line\n{_CONNECTION} && touch written")
    launch_jvm({})
    launched = launched_jvm()
    assert launched is not None
    await_jvm_exit(10)
    assert (tmp_path / "written").exists()
    assert not launched.folder.exists()


def test_a_jvm_that_outlives_its_standard_input_is_killed(submit: Submit) -> None:
    submit("exec sleep 60")
    launch_jvm({})
    launched = launched_jvm()
    assert launched is not None
    await_jvm_exit(0.1)
    assert launched.process.poll() == -signal.SIGKILL
