"""Starts a Mosquitto on a free port, and `inflight bridge` behind it; all of them can be killed or frozen."""

import contextlib
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final, Self

import pytest

from inflight.local.child_process import free_port, start_child, tail
from inflight.local.errors import MissingPrerequisite
from tests.support.inflight_process import InflightProcess
from tests.support.waiting import wait_until

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
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


class Mosquitto:
    """A broker on a free port of its own, without persistence. extra: more lines for its configuration."""

    def __init__(self, data_dir: Path, *, anonymous: bool = True, extra: str = "") -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.host = _HOST
        self.port = free_port()
        self._log = data_dir / "mosquitto.log"
        self._conf = data_dir / "mosquitto.conf"
        text = _CONF.format(host=_HOST, port=self.port, anonymous=str(anonymous).lower(), extra=extra)
        self._conf.write_text(text, encoding="utf-8")
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Returns when it answers. Raises AssertionError with the end of its log, MissingPrerequisite."""
        with self._log.open("ab") as log:
            self._process = start_child([find_mosquitto(), "-c", str(self._conf)], stdout=log, stderr=log)
        wait_until(self._answers, lambda: tail(self._log), within_s=_START_TIMEOUT_S, check=self._check)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Sends SIGTERM, as a person would; SIGKILL if that does not end it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """Stops the process, which keeps its sockets."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _check(self) -> None:
        assert self._process.poll() is None, f"Mosquitto has ended: {tail(self._log)}"

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((_HOST, self.port), timeout=1).close()
            return True
        return False


class BridgeProcess(InflightProcess):
    """`inflight bridge`. settings: `key=value`."""

    def __init__(self, name: str, directory: Path, *, kafka: str, broker: Mosquitto, settings: tuple[str, ...] = ()) -> None:
        own = (f"kafka.bootstrap_servers={kafka}", f"bridge.name={name}", f"bridge.group_instance_id={name}")
        super().__init__(directory, name, "bridge", settings=(*own, f"bridge.port={broker.port}", *settings))
