"""Runs commands of `inflight` beside a running `inflight up`, as a person would."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from inflight.demo.up import UpProcess
from tests.support.waiting import wait_until


def run_inflight(up: UpProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inflight", *arguments, "--data-dir", str(up.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def inflight(up: UpProcess, *arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Raises AssertionError when the exit code is not as expected."""
    done = run_inflight(up, *arguments)
    assert (done.returncode != 0) is fails, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def documents(up: UpProcess, *arguments: str) -> list[dict[str, Any]]:
    """The answer as JSON."""
    return [json.loads(line) for line in inflight(up, *arguments, "--json").stdout.splitlines()]


def traced(up: UpProcess, message_id: str, complete: Callable[[list[str]], bool]) -> list[dict[str, Any]]:
    """The trace, asked for again until it is complete: the archive is a little behind."""
    done: subprocess.CompletedProcess[str] | None = None

    def steps() -> list[dict[str, Any]] | None:
        nonlocal done
        done = run_inflight(up, "trace", message_id, "--json")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return found if complete([step["step"] for step in found]) else None

    return wait_until(steps, lambda: f"the trace of {message_id} is complete: {done}")
