"""The jar cache, with a stand-in for Ivy: what is fetched, when, and what a failure leaves behind."""

import hashlib
import multiprocessing
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from inflight.local import jars
from inflight.local.errors import JarsNotFetched
from inflight.local.jars import artifact_name, ensure_jars, pyspark_jars, read_pinned
from streaming.config.resources import conf_file

pytestmark = pytest.mark.processes

FAKE_IVY = r"""#!/bin/sh
# Called as: java -XX:… -cp IVY org.apache.ivy.Main -settings FILE -ivy FILE -retrieve PATTERN
[ "$1" = "-version" ] && { echo 'openjdk version "17.0.1"' >&2; exit 0; }
pattern="${10}"; directory="${pattern%%/\[conf\]*}"
echo run >> "$FAKE_IVY_RUNS"
if [ -n "$FAKE_IVY_FAILS" ]; then echo "	:::: UNRESOLVED DEPENDENCIES ::::"; echo "	:: io.delta#delta: not found"; exit 1; fi
mkdir -p "$directory/spark" "$directory/kafka"
grep -o '<dependency [^>]*>' "$8" | sed 's/.* name="\([^"]*\)" rev="\([^"]*\)" conf="\([^-]*\)-.*/\3 \1 \2/' |
while read -r conf name version; do
  echo "	[SUCCESSFUL ] $name.jar (1ms)"
  printf %s "$name" > "$directory/$conf/$name-$version.jar"
done
"""
LIST = (("spark", "delta", "4.4.0"), ("spark", "hadoop-bare-naked-local-fs", "0.1.0"), ("kafka", "kafka_2.13", "4.2.0"))
IVYS = jars._IVYS


def write_list(path: Path, changed: str = "") -> None:
    """changed: the name of a jar whose hash is another one."""
    lines = (
        f"{conf} org {name} {version} {hashlib.sha256((name + (name == changed) * '!').encode()).hexdigest()}\n"
        for conf, name, version in LIST
    )
    path.write_text("# a list\n" + "".join(lines))


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of jars that is used."""
    path = tmp_path / "jars.txt"
    write_list(path)
    monkeypatch.setattr(jars, "conf_file", lambda name: path if name == "jars.txt" else conf_file(name))
    return path


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


def test_each_class_path_gets_its_jars(runs: Path, listed: Path) -> None:
    found = ensure_jars(progress=False)
    assert [jar.name for jar in found.spark] == ["delta-4.4.0.jar"]
    assert [jar.name for jar in found.kafka] == ["kafka_2.13-4.2.0.jar"]
    assert found.local_fs.name == "hadoop-bare-naked-local-fs-0.1.0.jar"
    assert all(jar.is_file() for jar in (*found.spark, *found.kafka, found.local_fs))


def test_a_complete_cache_is_not_fetched_again(runs: Path, listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_jars(progress=False)
    monkeypatch.setenv("FAKE_IVY_FAILS", "1")
    assert ensure_jars(progress=False) == first
    assert number_of(runs) == IVYS


def test_a_jar_that_was_deleted_or_cut_short_is_fetched_again(runs: Path, listed: Path) -> None:
    found = ensure_jars(progress=False)
    found.spark[0].unlink()
    found.kafka[0].write_bytes(b"")
    assert ensure_jars(progress=False) == found
    assert found.spark[0].is_file()
    assert found.kafka[0].stat().st_size > 0
    assert number_of(runs) == 2 * IVYS


def test_another_list_is_another_cache(runs: Path, listed: Path) -> None:
    before = ensure_jars(progress=False)
    listed.write_text(f"{listed.read_text()}# changed\n")
    assert ensure_jars(progress=False).local_fs.parent != before.local_fs.parent
    assert number_of(runs) == 2 * IVYS


def test_a_jar_with_another_hash_is_refused(runs: Path, listed: Path, tmp_path: Path) -> None:
    write_list(listed, changed="delta")
    with pytest.raises(JarsNotFetched, match=r"delta-4.4.0.jar is not the file of .*jars.txt.*Delete it from Ivy's cache"):
        ensure_jars(progress=False)
    assert [path for path in (tmp_path / "cache" / "jars").iterdir() if path.is_dir()] == []


def test_a_failure_shows_ivys_last_lines_and_leaves_nothing_behind(
    runs: Path, listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_IVY_FAILS", "1")
    with pytest.raises(JarsNotFetched, match=r"(?s)exit status 1.*io.delta#delta: not found.*run `inflight jars` again"):
        ensure_jars(progress=False)
    assert [path for path in (tmp_path / "cache" / "jars").iterdir() if path.is_dir()] == []
    monkeypatch.delenv("FAKE_IVY_FAILS")
    assert ensure_jars(progress=False).spark


def _fetched(listed: Path) -> int:
    jars.conf_file = lambda name: listed if name == "jars.txt" else conf_file(name)
    return len(ensure_jars(progress=False).spark)


def test_processes_that_start_together_fetch_once(runs: Path, listed: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_fetched, [listed] * 2, chunksize=1) == [1] * 2
    assert number_of(runs) == IVYS


def test_the_list_has_no_jar_of_pyspark_and_each_once() -> None:
    pinned = read_pinned(conf_file("jars.txt"))
    shipped = {artifact_name(jar) for jar in pyspark_jars().glob("*.jar")}
    assert {jar.name for jar in pinned if jar.class_path == "spark"}.isdisjoint(shipped)
    assert len({(jar.class_path, jar.name) for jar in pinned}) == len(pinned)
    assert list(pinned) == sorted(pinned)


def test_the_list_has_the_jars_of_ivys_file() -> None:
    pinned = {(jar.organisation, jar.name, jar.version) for jar in read_pinned(conf_file("jars.txt"))}
    asked = ElementTree.parse(conf_file("ivy.xml")).getroot().iter("dependency")
    assert {(each.get("org"), each.get("name"), each.get("rev")) for each in asked} <= pinned


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
