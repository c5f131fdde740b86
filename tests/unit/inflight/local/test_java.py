"""Finding Java: which installation is used, and the error when there is none or an old one."""

from pathlib import Path

import pytest

from inflight.local.errors import MissingPrerequisite
from inflight.local.java import MINIMUM_JAVA, find_java, parse_version

pytestmark = pytest.mark.processes


def fake_java(directory: Path, version: str, status: int = 0) -> Path:
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {status}\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_the_major_version_is_read_from_every_spelling(line: str, major: int | None) -> None:
    assert parse_version(line) == major


def test_java_home_precedes_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=":")
    found = find_java()
    assert (found.executable, found.version) == (at_home, 21)


def test_an_old_java_is_refused_with_how_to_install_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingPrerequisite, match=rf"Java 11, too old.*Install Java {MINIMUM_JAVA} or newer.*apt-get install"):
        find_java()


def test_without_java_the_error_is_one_sentence_with_an_instruction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPrerequisite, match=r"Java was not found\. Install Java") as caught:
        find_java()
    assert "\n" not in str(caught.value)


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingPrerequisite, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        find_java()


def test_a_java_that_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "17", status=3)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingPrerequisite, match="does not run"):
        find_java()
