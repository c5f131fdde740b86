"""inflight.local.supervisor: what needs no process. With processes: tests/integration/up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.local.supervisor import Supervisor, UpOptions


def no_jars() -> Any:
    return None


@pytest.mark.parametrize("accept_loss", [True, False])
def test_only_the_first_engine_of_an_up_accepts_a_loss(tmp_path: Path, accept_loss: bool) -> None:
    options = UpOptions(data_dir=tmp_path, standby=True, accept_loss=accept_loss)
    supervisor = Supervisor(options, no_jars(), say=lambda text: None, announce=lambda endpoints: None)
    engine, standby = supervisor._engine, supervisor._standby
    supervisor._common_arguments = list  # type: ignore[method-assign]
    assert ("--accept-loss" in engine._arguments()) is accept_loss
    engine.ready.set()
    assert engine._arguments() == standby._arguments() == ["engine", "--standby"]


def test_after_a_takeover_the_second_engine_is_the_engine(tmp_path: Path) -> None:
    supervisor = Supervisor(
        UpOptions(data_dir=tmp_path, standby=True), no_jars(), say=lambda text: None, announce=lambda endpoints: None
    )
    supervisor._kafka = SimpleNamespace(is_running=False, bootstrap_servers="k:1")  # type: ignore[assignment]
    first, second = supervisor._engine, supervisor._standby
    first.words, second.words = {"metrics": "e:1"}, {"metrics": "e:2"}
    assert supervisor._endpoints().metrics == {"engine": "e:1"}, "the standby is being started"
    second._process = SimpleNamespace(pid=7)  # type: ignore[assignment]
    second.role = "standby"
    assert supervisor._endpoints().metrics == {"engine": "e:1", "standby": "e:2"}
    second.role = "engine"
    assert supervisor._endpoints().metrics == {"engine": "e:2"}, "the first one is being started again"
    first.role = "standby"
    assert supervisor._endpoints().metrics == {"engine": "e:2", "standby": "e:1"}
