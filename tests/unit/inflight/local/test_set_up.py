from pathlib import Path

import pytest

from inflight.local import set_up
from inflight.local.set_up import main, packages_of

pytestmark = pytest.mark.processes

REQUIREMENTS = """\
# A header.
numpy==2.4.6 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
pyspark==4.2.0 \\
    --hash=sha256:cc
rich==15.0.0 \\
    --hash=sha256:dd
"""


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text(REQUIREMENTS)
    return path


def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "pip"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(set_up, "_PIP", (str(program),))


def test_a_package_has_its_hashes_over_many_lines() -> None:
    assert [package.partition("==")[0] for package in packages_of(REQUIREMENTS)] == ["numpy", "pyspark", "rich"]
    assert next(packages_of(REQUIREMENTS)).count("--hash") == 2


def test_each_package_is_installed_once_and_only_pyspark_is_built(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    pip(tmp_path, monkeypatch, f'for last; do :; done; {{ echo "$*"; grep == "$last"; }} > {calls}.$$')
    assert main(requirements) == 0
    said = [path.read_text().splitlines() for path in tmp_path.glob("calls.*")]
    assert sorted(line.split("==")[0] for _, *packages in said for line in packages) == ["numpy", "pyspark", "rich"]
    assert [packages[0].split("==")[0] for options, *packages in said if "--config-settings" in options] == ["pyspark"]


def test_a_failed_pip_is_reported_and_ends_the_others(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip(
        tmp_path,
        monkeypatch,
        'for last; do :; done; grep -q pyspark "$last" && { echo HASHES DO NOT MATCH; exit 1; }; exec sleep 600',
    )
    assert main(requirements) == 1
    assert "PySpark:\nHASHES DO NOT MATCH" in capsys.readouterr().err
