"""Engine, gateway and commands of Inflight on a broker with ACLs, each as a principal of its own, with a password of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from inflight.local.child_process import bound_to_parent
from streaming.config.settings import Settings, load_settings
from tests.integration.kafka.security.secure_kafka import SecureKafka, password_of

PREFIX: Final = "acl"
BOUND_TOPIC: Final = "lamps.parked"
"""A topic of a dead letter binding."""

CONFIGURATION: Final = """
[kafka]
bootstrap_servers = "{servers}"
security_protocol = "SASL_SSL"
ssl_cafile = "{authority}"
sasl_username = "{user}"
[topics]
prefix = "{prefix}"
[engine]
data_dir = "{directory}"
driver_memory = "512m"
master = "local[2]"
[archive]
enabled = true
trigger_interval_ms = "1s"
[gateway]
port = 0
lease_ms = "2s"
group_session_timeout_ms = "6s"
[[exchanges]]
name = "parking"
type = "fanout"
bindings = [{{ to = "topic:{bound}" }}]
[[policies]]
name = "lamps"
clients = "lamp-*"
dead_letter_exchange = "parking"
"""


class Testbed:
    """directory: of the data, configurations and logs. Processes are killed at the end."""

    __test__ = False

    def __init__(self, broker: SecureKafka, directory: Path) -> None:
        self.directory = directory
        self.broker = broker
        self._running: dict[str, subprocess.Popen[str]] = {}
        self.command_lines: set[str] = set()

    def add(self, user: str) -> None:
        """A principal, which may do nothing yet."""
        self.broker.add_user(user)
        text = CONFIGURATION.format(
            servers=self.broker.login,
            authority=self.broker.authority.file,
            user=user,
            prefix=PREFIX,
            directory=self.directory / "data",
            bound=BOUND_TOPIC,
        )
        self._configuration(user).write_text(text, encoding="utf-8")

    def settings(self, user: str) -> Settings:
        """Loads the settings of `user` in this process."""
        file = self.directory / f"{user}.password"
        file.write_text(f"{password_of(user)}\n")
        return load_settings(self._configuration(user), [f"kafka.sasl_password_file={file}"])

    def run(self, user: str, *arguments: str) -> str:
        """Runs a command to its end. Returns its standard output. Raises AssertionError when the command fails."""
        command = [*self._command(user, arguments)]
        done = subprocess.run(command, env=self._environment(user), capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{arguments} of {user}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def documents(self, user: str, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(user, *arguments).splitlines() if line.startswith("{")]

    def start(self, user: str, *arguments: str, name: str | None = None) -> dict[str, str]:
        """A process that stays; back when it is ready, with the words of its ready line. name: the user's, unless given."""
        name = name or user
        with self.log(name).open("wb") as log:
            process = self._running[name] = subprocess.Popen(
                bound_to_parent(self._command(user, arguments)),
                env=self._environment(user),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        line = process.stdout.readline() if process.stdout else ""
        assert line.startswith("ready"), f"{name}: {line!r} {self.log(name).read_text()[-4_000:]}"
        self.note_command_lines()
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def note_command_lines(self) -> None:
        """Notes the command lines of all child processes and their children: JVMs, Python workers."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.command_lines.add("\0".join(process.cmdline()))

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.communicate()

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        process.communicate(timeout=60)

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def _configuration(self, user: str) -> Path:
        return self.directory / f"{user}.toml"

    def _command(self, user: str, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "inflight", *arguments, "--config", str(self._configuration(user))]

    def _environment(self, user: str) -> dict[str, str]:
        return os.environ | {"INFLIGHT__KAFKA__SASL_PASSWORD": password_of(user)}


@contextlib.contextmanager
def running_testbed(broker: SecureKafka, directory: Path) -> Iterator[Testbed]:
    made = Testbed(broker, directory)
    try:
        yield made
    finally:
        made.close()
