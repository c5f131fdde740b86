"""Starts a Mosquitto on a free port, and `inflight bridge` behind it; all of them can be killed or frozen."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from inflight.local.child_process import free_port, start_child, tail
from inflight.local.errors import ChildProcessFailed, MissingPrerequisite

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_CONF: Final = """\
# As many people run it: no persistence, so that a restart forgets sessions, queues and retained messages.
listener {port} {host}
allow_anonymous {anonymous}
persistence false
{extra}
"""


def find_mosquitto() -> str:
    """Raises MissingPrerequisite."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise MissingPrerequisite(
            "Mosquitto was not found. Install it (Debian, Ubuntu: sudo apt-get install mosquitto) and try again."
        )
    return found


def _is_missing() -> bool:
    try:
        find_mosquitto()
    except MissingPrerequisite:
        return True
    return False


needs_mosquitto = pytest.mark.skipif(_is_missing(), reason="Mosquitto was not found: make test-interop installs it")


class ChildProcess(ABC):
    """A child that can be killed or frozen. log: the file for its standard error."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Returns the process id, or None before the first start."""
        return None if self._process is None else self._process.pid

    @abstractmethod
    def is_ready(self) -> bool: ...

    def wait_until_ready(self) -> None:
        """Raises ChildProcessFailed with the end of its log."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.is_ready():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise ChildProcessFailed(f"{self._log.stem} is not ready. The end of its log:\n{tail(self._log)}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Sends SIGTERM, as a person would; SIGKILL if that does not end it."""
        self._signal(signal.SIGTERM)
        try:
            self._wait()
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is not None:
            self._process.wait(_STOP_TIMEOUT_S)


class Mosquitto(ChildProcess):
    """A broker on a free port of its own, without persistence. extra: more lines for its configuration."""

    def __init__(self, data_dir: Path, *, anonymous: bool = True, extra: str = "") -> None:
        super().__init__(data_dir / "mosquitto.log")
        self.host = _HOST
        self.port = free_port()
        self._conf = data_dir / "mosquitto.conf"
        text = _CONF.format(host=_HOST, port=self.port, anonymous=str(anonymous).lower(), extra=extra)
        self._conf.write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Returns when it answers. Raises ChildProcessFailed, MissingPrerequisite."""
        with self._log.open("ab") as log:
            self._process = start_child([find_mosquitto(), "-c", str(self._conf)], stdout=log, stderr=log)
        self.wait_until_ready()

    def freeze(self) -> None:
        """Stops the process, which keeps its sockets."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def is_ready(self) -> bool:
        """True when it accepts connections."""
        try:
            socket.create_connection((_HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


class BridgeProcess(ChildProcess):
    """`inflight bridge` as a child. settings: `key=value` of section [bridge]."""

    def __init__(self, name: str, data_dir: Path, *, kafka: str, broker: Mosquitto, settings: tuple[str, ...] = ()) -> None:
        super().__init__(data_dir / "logs" / f"{name}.log")
        self.name = name
        self._output = self._log.with_suffix(".out")
        overrides = (f"bridge.name={name}", f"bridge.group_instance_id={name}", f"bridge.port={broker.port}", *settings)
        arguments = [word for override in (f"kafka.bootstrap_servers={kafka}", *overrides) for word in ("--set", override)]
        self._command = [sys.executable, "-m", "inflight", "bridge", *arguments]

    def start(self) -> None:
        """Starts the bridge without waiting: see `wait_until_ready`."""
        with self._output.open("wb") as output, self._log.open("ab") as log:
            self._process = start_child(self._command, stdout=output, stderr=log)

    def is_ready(self) -> bool:
        """True when it has printed its ready line."""
        return self._output.read_bytes().startswith(b"ready")

    def words(self) -> dict[str, str]:
        """Returns the `key=value` words of its ready line; to be called after `wait_until_ready`."""
        return dict(word.split("=", 1) for word in self._output.read_text().split() if "=" in word)
