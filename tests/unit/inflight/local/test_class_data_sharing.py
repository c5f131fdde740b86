"""Class archives are used if they are there, made once, and never in the way; with a stand-in for the warm-up."""

import os
import sys
from pathlib import Path

import pytest

from inflight.local import class_data_sharing as class_archive
from inflight.local.class_data_sharing import archive_options, ensure_class_archives
from inflight.local.jars import Jars

pytestmark = pytest.mark.processes


@pytest.fixture
def jars(tmp_path: Path) -> Jars:
    home = tmp_path / "jars"
    (home / "spark").mkdir(parents=True)
    (home / "spark" / "local-fs.jar").touch()
    return Jars(spark=(), kafka=(), local_fs=home / "spark" / "local-fs.jar")


def warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a shell script in the place of `python -m inflight.local.warm_up`."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def test_without_an_archive_a_jvm_gets_no_option(jars: Jars) -> None:
    assert archive_options("spark", jars) == archive_options("kafka", jars) == ()


def test_archives_are_made_once_and_named_from_then_on(jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    dump = 'touch "$INFLIGHT_DUMP_CLASSES_TO/spark.jsa" "$INFLIGHT_DUMP_CLASSES_TO/kafka.jsa"'
    warm_up(tmp_path, monkeypatch, dump)
    for _ in range(2):
        ensure_class_archives(jars, said.append)
    assert (runs(tmp_path), len(said)) == (1, 1)
    for program in ("spark", "kafka"):
        option, _ = archive_options(program, jars)  # type: ignore[arg-type]
        name, _, path = option.partition("=")
        assert name == "-XX:SharedArchiveFile"
        assert Path(path).is_file()
    assert sorted(path.suffix for path in (tmp_path / "jars").iterdir()) == ["", ".jsa", ".jsa", ".lock"], "nothing else is left"


def test_options_of_the_environment_do_not_ask_for_another_archive(
    jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set()
    said = ("mixed mode, sharing", "mixed mode, emulated-client, sharing")
    for number, options in enumerate(said):
        java = tmp_path / str(number) / "bin" / "java"
        java.parent.mkdir(parents=True)
        lines = "NOTE: Picked up JDK_JAVA_OPTIONS" if number else "", 'openjdk version "17.0.1"', f"VM (build 17.0.1, {options})"
        java.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines if line))
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
        class_archive._made_from.cache_clear()
        names.add(class_archive._made_from("kafka", jars))
    class_archive._made_from.cache_clear()
    assert len(names) == 1


def test_an_archive_of_other_jars_is_made_anew(jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = 'touch "$INFLIGHT_DUMP_CLASSES_TO/spark.jsa" "$INFLIGHT_DUMP_CLASSES_TO/kafka.jsa"'
    warm_up(tmp_path, monkeypatch, dump)
    ensure_class_archives(jars, lambda text: None)
    moved = Jars(spark=(), kafka=(), local_fs=tmp_path / "moved" / "spark" / "local-fs.jar")
    (tmp_path / "jars").rename(tmp_path / "moved")
    assert archive_options("spark", moved) == (), "Java would silently ignore the one of the old path"
    ensure_class_archives(moved, lambda text: None)
    assert len(archive_options("spark", moved)) == 2


def test_what_a_killed_run_has_left_is_removed(jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars" / "warm-up-killed" / "data").mkdir(parents=True)
    warm_up(tmp_path, monkeypatch, "exit 1")
    ensure_class_archives(jars, lambda text: None)
    assert not (tmp_path / "jars" / "warm-up-killed").exists()


def test_a_failed_warm_up_is_reported_and_leaves_nothing(jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    warm_up(tmp_path, monkeypatch, "echo no space left >&2; exit 1")
    ensure_class_archives(jars, said.append)
    assert "no space left" in said[-1]
    assert archive_options("spark", jars) == ()
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == ["class-archives.lock", "spark"]


def test_a_warm_up_that_hangs_is_given_up(jars: Jars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(class_archive, "_TIMEOUT_S", 0.2)
    warm_up(tmp_path, monkeypatch, "exec sleep 60")
    ensure_class_archives(jars, said.append)
    assert "start as slowly as before" in said[-1]


def test_in_a_warm_up_each_jvm_writes_its_class_archive(jars: Jars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_DUMP_CLASSES_TO", os.sep + "there")
    assert archive_options("kafka", jars)[0] == "-XX:ArchiveClassesAtExit=/there/kafka.jsa"
