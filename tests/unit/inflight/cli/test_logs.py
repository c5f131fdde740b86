"""What the processes say, also where nobody can hear it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PROGRAM = """
import logging
import structlog
from inflight.cli.logs import configure_logging

configure_logging(json={json})
for _ in range(3):
    structlog.get_logger().info("ours", word="value")
    logging.getLogger("foreign").warning("theirs")
print("goes on")
"""


def run(stderr: Path, *, json: bool) -> str:
    with stderr.open("wb") as log:
        command = [sys.executable, "-c", PROGRAM.format(json=json)]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=60, check=False).stdout


@pytest.mark.parametrize("json", [False, True])
def test_a_log_on_a_full_disk_fails_nobody(json: bool) -> None:
    assert run(Path("/dev/full"), json=json) == "goes on\n"


@pytest.mark.parametrize("json", [False, True])
def test_each_line_is_written_once(tmp_path: Path, json: bool) -> None:
    log = tmp_path / "log"
    assert run(log, json=json) == "goes on\n"
    lines = log.read_text().splitlines()
    assert [("ours" in line and "value" in line, "theirs" in line) for line in lines] == [(True, False), (False, True)] * 3
