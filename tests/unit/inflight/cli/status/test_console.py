import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inflight.cli import app
from inflight.local.child_process import free_port
from inflight.local.errors import CannotListen
from tests.support.waiting import DEADLINE_S, wait_until


@pytest.mark.processes
def test_it_serves_the_page_until_it_is_stopped_also_when_nothing_runs(tmp_path: Path) -> None:
    """Ctrl-C stops it here; `inflight up` stops its console by SIGTERM."""
    command = [sys.executable, "-m", "inflight", "console", "--data-dir", str(tmp_path)]
    command += ["--set", f"kafka.bootstrap_servers=127.0.0.1:{free_port()}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready console=http://127.0.0.1:")
        address = line.strip().partition("console=")[2]

        def page() -> str:
            with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
                text: str = answer.read().decode()
                return text

        wait_until(lambda: "does not answer" in page(), "a look at a Kafka that is not there")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=DEADLINE_S) == 0


def test_a_port_in_use_or_turned_off_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.cli.logs.configure_logging", lambda **_: None)  # it is for processes, and these are the tests'
    monkeypatch.setattr("inflight.local.start_checks._FREE_WITHIN_S", 0.1)
    off = CliRunner().invoke(app, ["console", "--set", "console.port=-1"])
    assert off.exit_code == 2
    assert "console.port = -1" in off.output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = CliRunner().invoke(app, ["console", "--set", f"console.port={taken.getsockname()[1]}"])
    assert isinstance(found.exception, CannotListen)
    assert "Choose another console.port" in str(found.exception)
