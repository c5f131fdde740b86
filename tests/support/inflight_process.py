"""Runs `inflight engine`, `inflight gateway` and other commands as separate child processes, as on machines of their own."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from inflight.local.child_process import start_child, tail
from tests.support.waiting import wait_until

_READY_S = 240.0
_READY = "ready "


class InflightProcess:
    """A command that stays. Back from `with` when it is ready; killed at the end, with what it has started.

    directory: of its log. ready: the words of its ready line, such as {"mqtt": "127.0.0.1:1883"}.
    """

    def __init__(self, directory: Path, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.ready: dict[str, str] = {}
        self._log = directory / f"{name}.log"
        self._command = [sys.executable, "-m", "inflight", *arguments]
        self._environment = environment
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = start_child(self._command, stdout=log, stderr=log, environment=self._environment)
        try:
            line = wait_until(self._ready_line, lambda: f"it is ready: {self.log_tail()}", within_s=_READY_S, check=self.check)
        except BaseException:
            self.kill()
            raise
        self.ready = dict(word.split("=", 1) for word in line.split() if "=" in word)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def address(self, name: str) -> tuple[str, int]:
        host, _, port = self.ready[name].rpartition(":")
        return host, int(port)

    def check(self) -> None:
        """Checks that the process runs."""
        assert self._process.poll() is None, f"it has ended with {self._process.returncode}: {self.log_tail()}"

    def kill(self) -> None:
        """Sends SIGKILL to the process and its children."""
        if self._process.poll() is None:
            for process in (*psutil.Process(self._process.pid).children(recursive=True), self._process):
                process.kill()
        self._process.wait()

    def log_tail(self) -> str:
        return tail(self._log, 40)

    def _ready_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        return next((line for line in lines if line.startswith(_READY) and line.endswith("\n")), "")
