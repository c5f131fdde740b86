"""`inflight up` as a child process: for the demo, and for tests that kill parts of it."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from inflight.local.child_process import bound_to_parent, tail
from inflight.local.endpoints import Endpoints
from state.errors import InflightError

STOP_TIMEOUT_S: Final = 60.0


class UpFailed(InflightError):
    """`inflight up` ended before it was ready."""


def python_of(checkout: Path | None) -> Path:
    """Returns the interpreter of a checkout after `make setup`; None = this one."""
    return Path(sys.executable) if checkout is None else checkout / ".venv" / "bin" / "python"


class UpProcess:
    """Starts `inflight up` without the console on entry, waits until a device can connect, stops it with SIGINT on exit.

    options: further options of the command, such as `--set retry_interval=2s`. exit_code: of the command, once stopped.
    checkout: of another version, set up there; None = this one.
    """

    def __init__(self, data_dir: Path, *options: str, quiet: bool = True, checkout: Path | None = None) -> None:
        self.data_dir = data_dir
        self.exit_code: int | None = None
        self._options = options
        self._quiet = quiet
        self._checkout = checkout
        self._process: subprocess.Popen[str] | None = None
        self._addresses: dict[str, str] = {}

    @property
    def mqtt(self) -> tuple[str, int]:
        host, _, port = self._addresses["mqtt"].rpartition(":")
        return host, int(port)

    @property
    def kafka(self) -> str:
        return self._addresses["kafka"]

    def engine_pid(self) -> int | None:
        """Returns the process id of the running engine, or None while it is being restarted."""
        return Endpoints.read(self.data_dir).pids.get("engine")

    def log_tail(self, part: str) -> str:
        """The last lines of the log of `kafka`, `engine` or `gateway`."""
        return tail(self.data_dir / "logs" / f"{part}.log")

    def __enter__(self) -> Self:
        command = [str(python_of(self._checkout)), "-m", "inflight", "up", "--data-dir", str(self.data_dir)]
        command += ["--mqtt-port", "0", "--kafka-port", "0", "--set", "console.port=-1", *self._options]
        self._process = subprocess.Popen(
            bound_to_parent(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self._quiet else None,
            stdin=subprocess.DEVNULL,
            cwd=self._checkout,
            start_new_session=True,
            text=True,
        )
        for line in self._process.stdout or ():  # ends with the child, which has a deadline for each of its parts
            if line.startswith("ready "):
                self._addresses = dict(part.split("=", 1) for part in line.split()[1:])
                return self
        code = self._process.wait()
        logs = "\n".join(map(self.log_tail, ("kafka", "engine")))
        raise UpFailed(f"`inflight up` ended with exit code {code} before it was ready:\n{logs}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_TIMEOUT_S)
        process.kill()
        self.exit_code = process.wait()
