"""Engines as child processes, to be killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

READY_S = 150.0
"""Ten times what a start takes here."""


class Engine:
    """The engine as a process."""

    def __init__(self, settings: dict[str, Any], *options: str) -> None:
        root = str(Path(__file__).parents[2])
        command = [sys.executable, "-m", "tests.spark.engine_process", json.dumps(settings), *options]
        environment = os.environ | {"PYTHONPATH": root}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root, env=environment
        )

    def await_ready(self, within_s: float, *, line: str = "ready") -> None:
        assert self.process.stdout is not None
        too_late = threading.Timer(within_s, self.process.kill)
        too_late.start()
        said = self.process.stdout.readline()
        too_late.cancel()
        if said != f"{line}\n":
            self.process.kill()  # its standard error ends
            errors = self.process.communicate()[1][-4_000:]
            raise AssertionError(f"the engine was not {line} within {within_s:g} s, or died; it said {said!r}:\n{errors}")

    def kill(self) -> None:
        """Sends SIGKILL. The JVM detects the end of its parent and exits; the next engine waits for its lock."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to it and all that it has started, its JVM first."""
        process = psutil.Process(self.process.pid)
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)

    def read_log(self) -> str:
        """Returns its log when it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def await_failure(self) -> str:
        """Waits until the engine fails. Returns its log."""
        log = self.read_log()
        assert self.process.wait(READY_S) != 0
        return log


@contextmanager
def engine(settings: dict[str, Any], *options: str, ready_within_s: float = READY_S) -> Iterator[Engine]:
    """Yields an engine that has finished its first micro-batch. options: those of engine_process.py."""
    made = Engine(settings, *options)
    try:
        made.await_ready(ready_within_s)
        yield made
    finally:
        if made.process.poll() is None:
            made.kill()


@contextmanager
def standby(settings: dict[str, Any]) -> Iterator[Engine]:
    """Yields an engine that waits for another one to be gone."""
    made = Engine(settings, "standby")
    try:
        made.await_ready(READY_S, line="standby")
        yield made
    finally:
        if made.process.poll() is None:
            made.kill()
