"""The command says what to do where an extra is not installed."""

import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from inflight.cli import main
from inflight.cli.extras import ENGINE_PACKAGES, extra_not_installed

PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


@pytest.mark.parametrize("command", ["up", "engine", "demo"])
def test_without_the_extra_a_command_says_what_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(sys, "argv", ["inflight", command])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (1, "")
    assert said.err.count("\n") == 1
    assert "pip install 'inflight[engine]'" in said.err


def test_a_module_of_nobody_is_an_unexpected_error() -> None:
    assert extra_not_installed(ModuleNotFoundError("no such module", name="nowhere.to_be_found")) is None
    found = extra_not_installed(ModuleNotFoundError("no such module", name="pyspark.sql"))
    assert "its package pyspark is not installed" in str(found)
    assert "inflight[tracing]" in str(extra_not_installed(ModuleNotFoundError(name="opentelemetry.sdk")))


def test_the_extra_has_every_package_that_is_asked_for() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    names = {line.partition("=")[0].partition(">")[0] for line in project["optional-dependencies"]["engine"]}
    distributions = packages_distributions()
    asked = {name.replace("_", "-") for package in ENGINE_PACKAGES for name in distributions[package]}
    assert asked - names == {"numpy"}  # pandas brings it
    assert not names & {line.partition("=")[0].partition(">")[0] for line in project["dependencies"]}
