"""The jar cache, with a stand-in for Ivy: what is resolved, when, and what a failure leaves behind."""

import multiprocessing
import os
from pathlib import Path

import pytest

from inflight.local import jars
from inflight.local.errors import JarResolutionFailed
from inflight.local.jars import artifact_name, ensure_jars, pyspark_jars

pytestmark = pytest.mark.processes

FAKE_IVY = """#!/bin/sh
# Called as: java -cp JARS org.apache.ivy.Main -ivy FILE -retrieve PATTERN
[ "$1" = "-version" ] && { echo 'openjdk version "17.0.1"' >&2; exit 0; }
pattern="$7"
directory="${pattern%%/\\[conf\\]*}"
echo run >> "$FAKE_IVY_RUNS"
if [ -n "$FAKE_IVY_FAILS" ]; then echo "	:::: UNRESOLVED DEPENDENCIES ::::"; echo "	:: io.delta#delta: not found"; exit 1; fi
mkdir -p "$directory/spark" "$directory/kafka"
for jar in spark/delta-spark_4.2_2.13-4.4.0 spark/hadoop-bare-naked-local-fs-0.1.0 spark/scala-library-2.13.18 \
           spark/kafka-clients-3.9.2 kafka/kafka_2.13-4.2.0 kafka/scala-library-2.13.17; do
  echo "	found something in public"
  echo "$jar" > "$directory/$jar.jar"
done
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with one line for each run of the stand-in; the cache is empty."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_IVY)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_IVY_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FAKE_IVY_FAILS", raising=False)
    return tmp_path / "runs"


def number_of(runs: Path) -> int:
    return len(runs.read_text().splitlines()) if runs.exists() else 0


def test_jars_that_pyspark_ships_stay_off_the_spark_classpath_and_on_kafkas(runs: Path) -> None:
    found = ensure_jars(progress=False)
    assert {artifact_name(jar) for jar in found.spark} == {"delta-spark_4.2_2.13", "kafka-clients"}
    assert {artifact_name(jar) for jar in found.kafka} == {"kafka_2.13", "scala-library"}
    assert found.local_fs.name == "hadoop-bare-naked-local-fs-0.1.0.jar"
    assert all(jar.is_file() for jar in (*found.spark, *found.kafka, found.local_fs))


def test_a_complete_cache_is_not_resolved_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_jars(progress=False)
    monkeypatch.setenv("FAKE_IVY_FAILS", "1")
    assert ensure_jars(progress=False) == first
    assert number_of(runs) == 1


def test_a_jar_that_was_deleted_or_cut_short_is_fetched_again(runs: Path) -> None:
    found = ensure_jars(progress=False)
    found.spark[0].unlink()
    found.kafka[0].write_bytes(b"")
    assert ensure_jars(progress=False) == found
    assert found.spark[0].is_file()
    assert found.kafka[0].stat().st_size > 0
    assert number_of(runs) == 2


def test_another_ivy_file_is_another_cache(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ensure_jars(progress=False)
    other = tmp_path / "ivy.xml"
    other.write_text("<ivy-module/>")
    monkeypatch.setattr(jars, "conf_file", lambda name: other)
    assert ensure_jars(progress=False).local_fs.parent != before.local_fs.parent
    assert number_of(runs) == 2


def test_a_failure_shows_ivys_last_lines_and_leaves_nothing_behind(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_IVY_FAILS", "1")
    with pytest.raises(JarResolutionFailed, match=r"(?s)exit status 1.*io.delta#delta: not found.*run `inflight jars` again"):
        ensure_jars(progress=False)
    assert [path for path in (tmp_path / "cache" / "jars").iterdir() if path.is_dir()] == []
    monkeypatch.delenv("FAKE_IVY_FAILS")
    assert ensure_jars(progress=False).spark


def _resolve(_: int) -> int:
    return len(ensure_jars(progress=False).spark)


def test_processes_that_start_together_resolve_once(runs: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(_resolve, range(4)) == [2, 2, 2, 2]
    assert number_of(runs) == 1


def test_the_cache_of_a_checkout_is_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFLIGHT_CACHE", raising=False)
    from streaming.config.resources import cache_directory

    assert cache_directory() == Path(jars.__file__).resolve().parents[2] / ".cache"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("scala-library-2.13.18.jar", "scala-library"),
        ("delta-spark_4.2_2.13-4.4.0.jar", "delta-spark_4.2_2.13"),
        ("jackson-core-2.13.5.jar", "jackson-core"),
        ("netty-transport-native-epoll-4.1.118.Final-linux-x86_64.jar", "netty-transport-native-epoll"),
    ],
)
def test_the_artifact_is_the_file_name_up_to_its_version(file: str, name: str) -> None:
    assert artifact_name(Path(file)) == name


def test_pyspark_is_found_without_importing_it() -> None:
    assert any(pyspark_jars().glob("ivy-*.jar"))
    assert os.access(pyspark_jars(), os.R_OK)
