"""inflight.local.supervisor: what needs no process. With processes: tests/integration/up."""

from pathlib import Path
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
