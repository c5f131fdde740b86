"""Runs `inflight engine`, `inflight gateway` and other commands as separate child processes, as on machines of their own."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import psutil

from inflight.local.child_process import start_child, tail
from tests.support.waiting import wait_until

_READY_S = 240.0
_STOP_S = 60.0
_READY = "ready "


class InflightProcess:
    """A command that stays, and can be started again. Killed at the end of `with`, with what it has started.

    directory: of its log. settings: `key=value`. ready: the words of its ready line, such as {"mqtt": "127.0.0.1:1883"}.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *arguments: str,
        settings: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.ready: dict[str, str] = {}
        self.process: subprocess.Popen[bytes]
        self._log = directory / f"{name}.log"
        flags = [word for setting in settings for word in ("--set", setting)]
        self._command = [sys.executable, "-m", "inflight", *arguments, *flags]
        self._environment = environment

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the process. Returns when it is ready."""
        self.spawn()
        self.await_ready()

    def spawn(self) -> None:
        with self._log.open("wb") as log:
            self.process = start_child(self._command, stdout=log, stderr=log, environment=self._environment)

    def await_ready(self) -> None:
        """Raises AssertionError with the end of the log if the process ends instead."""
        try:
            line = wait_until(self._ready_line, lambda: f"it is ready: {self.log_tail()}", within_s=_READY_S, check=self.check)
        except BaseException:
            self.kill()
            raise
        self.ready = dict(word.split("=", 1) for word in line.split() if "=" in word)

    def stop(self) -> float:
        """Stops the process with SIGTERM, as an operator does. Returns the seconds that it took."""
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(_STOP_S)
        assert status == 0, f"it has ended with {status}: {self.log_tail()}"
        return time.monotonic() - began_s

    def address(self, name: str) -> tuple[str, int]:
        host, _, port = self.ready[name].rpartition(":")
        return host, int(port)

    def check(self) -> None:
        """Checks that the process runs."""
        assert self.process.poll() is None, f"it has ended with {self.process.returncode}: {self.log_tail()}"

    def kill(self) -> None:
        """Sends SIGKILL to the process and its children."""
        if self.process.poll() is None:
            for process in (*psutil.Process(self.process.pid).children(recursive=True), self.process):
                process.kill()
        self.process.wait()

    def log_tail(self) -> str:
        return tail(self._log, 40)

    def _ready_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        return next((line for line in lines if line.startswith(_READY) and line.endswith("\n")), "")
