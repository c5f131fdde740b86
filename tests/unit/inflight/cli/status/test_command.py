import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inflight.cli import app
from inflight.cli.status.command import _interrupts


def test_top_without_a_terminal_says_what_to_use(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["top", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "this is none: use `inflight status`" in " ".join(done.output.replace("│", "").split())


def test_an_interrupt_waits_for_the_end_of_a_measurement() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _interrupts() as interrupted:
        assert not interrupted(0.0)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted(60.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
