import os
import socket
from pathlib import Path

import msgspec
import pytest

from inflight.local.engine_addresses import announced_engine, engine_addresses

NOBODY = (1 << 31) - 1
"""No process has this id."""


def put(data_dir: Path, pid: int, *, machine: str = "", metrics: str = "127.0.0.1:9") -> Path:
    file = data_dir / "engines" / f"{pid}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(msgspec.json.encode({"machine": machine or socket.gethostname(), "metrics": metrics}))
    return file


def test_an_engine_is_announced_while_it_runs(tmp_path: Path) -> None:
    with announced_engine(tmp_path, " metrics=127.0.0.1:40123"):
        assert engine_addresses(tmp_path) == ["127.0.0.1:40123"]
    assert engine_addresses(tmp_path) == []
    assert list((tmp_path / "engines").iterdir()) == []


def test_an_engine_without_metrics_is_not_announced(tmp_path: Path) -> None:
    with announced_engine(tmp_path, ""):
        assert list(tmp_path.iterdir()) == []


def test_a_killed_engine_and_one_of_another_machine_are_ignored(tmp_path: Path) -> None:
    killed, elsewhere = put(tmp_path, NOBODY), put(tmp_path, os.getppid(), machine="another")
    (tmp_path / "engines" / "broken.json").write_text("{")
    assert engine_addresses(tmp_path) == []
    with announced_engine(tmp_path, " metrics=127.0.0.1:40123"):
        assert not killed.exists(), "the next engine removes it"
        assert elsewhere.exists()


def test_an_engine_that_cannot_be_announced_works_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "engines").write_text("no folder")
    with announced_engine(tmp_path, " metrics=127.0.0.1:40123"):
        assert "engine_not_announced" in "".join(capsys.readouterr()), "where logs go depends on what is configured"
