"""docs/guides/scheduling.md on real processes: its commands and its program, and the rate of a profile."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inflight.cli.app import app
from tests.integration.up.conftest import SharedUp
from tests.integration.up.wire_device import Backend, WireDevice
from tests.support.waiting import DEADLINE_S

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "scheduling.md"
PAGE_TEXT = PAGE.read_text(encoding="utf-8")


def environment(up: SharedUp) -> dict[str, str]:
    return {**os.environ, "INFLIGHT__ENGINE__DATA_DIR": str(up.data_dir)}


def run(up: SharedUp, command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command, comments=True), env=environment(up))
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_the_commands_of_the_page_do_what_it_says(up: SharedUp, backend: Backend) -> None:
    lines = re.findall(r"^(?:id=\$\()?inflight (.*?)\)?$", PAGE_TEXT, flags=re.MULTILINE)
    later, first, newest, reboot, cancel, trace = lines
    with WireDevice(up.mqtt, "boiler-1", 5, expiry_s=600):
        pass
    began = time.monotonic()
    later_id = run(up, later)
    replaced_id = run(up, first)
    newest_id = run(up, newest)
    reboot_id = run(up, reboot)
    assert f"inflight trace {reboot_id}" in run(up, cancel.replace("$id", reboot_id))
    assert backend.outcomes([replaced_id, reboot_id]) == ["replaced", "cancelled"]
    with WireDevice(up.mqtt, "boiler-1", 5, expiry_s=600) as device:
        received = []
        for _ in range(2):
            message = device.receive()
            received.append(message.payload)
            device.finish(message)
    assert received == [b"21", b"check the valve"]
    assert time.monotonic() - began >= 5
    assert backend.outcomes([newest_id, later_id]) == ["delivered", "delivered"]
    shown = run(up, trace.replace("$id", reboot_id))
    assert "cancelled" in shown


@pytest.mark.servers
def test_the_program_of_the_page_runs_as_written(up: SharedUp, backend: Backend) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE_TEXT, flags=re.MULTILINE | re.DOTALL)
    ids = "\n    print(later.message_id)\n"
    result = subprocess.run(
        [sys.executable, "-c", program.rstrip() + ids],
        env=environment(up),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert backend.outcome(result.stdout.strip()) == "cancelled"
    with WireDevice(up.mqtt, "boiler-2", 5) as device:
        assert device.receive_payloads(2) == [b"daily", b"21"]


@pytest.mark.promise("scheduling")
def test_a_device_that_comes_back_gets_no_more_than_its_rate(up: SharedUp, backend: Backend) -> None:
    """A profile of conftest.py allows two messages a second."""
    with WireDevice(up.mqtt, "paced-1", 4):
        pass
    names = backend.send("paced-1", *(b"%d" % number for number in range(6)))
    with WireDevice(up.mqtt, "paced-1", 4) as device:
        for _ in names:
            device.finish(device.receive())
    assert backend.outcomes(names) == ["delivered"] * 6
    sent_ms = [receipt["first_sent_ms"] for receipt in map(backend.receipt, names)]
    assert sent_ms == sorted(sent_ms)
    assert sent_ms[-1] - sent_ms[0] >= 2_000, "two at once, then two a second"
    assert not any(receipt["fast_path"] for receipt in map(backend.receipt, names))
