"""A unit test starts no process unless it is marked."""

import subprocess
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, *arguments: Any, **options: Any) -> None:
        raise AssertionError("a unit test that starts processes has the marker `processes`")

    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
