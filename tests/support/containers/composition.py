"""Starts what a file of Compose describes, kills its containers, and asks about them."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.containers.container_engine import CommandFailed, ContainerEngine

_POLL_S: Final = 0.5
_READY: Final = re.compile(r"^ready (engine|standby)\b", re.MULTILINE)
_STARTED_WITHIN_S: Final = 900.0
_LOG_LINES: Final = "40"


def compose_command(engine: ContainerEngine) -> tuple[str, ...]:
    """Returns Compose as a part of Docker, or as the program of its own that Debian has. Raises CommandFailed without both."""
    try:
        engine.docker("compose", "version")
    except CommandFailed:
        engine.run("docker-compose", "version")
        return ("docker-compose",)
    return ("docker", "compose")


class Composition:
    """The containers of one file of Compose."""

    def __init__(self, engine: ContainerEngine, file: Path, project: str) -> None:
        self.file = file
        self._engine = engine
        self._project = project
        self._command = (*compose_command(engine), "--project-name", project, "--file", str(file))

    def compose(self, *arguments: str, within_s: float = 120.0) -> str:
        return self._engine.run(*self._command, *arguments, within_s=within_s)

    def up(self, *services: str) -> None:
        """Starts services with what they depend on, from the images that are there. Raises CommandFailed."""
        self.compose("up", "--detach", "--no-build", *services, within_s=_STARTED_WITHIN_S)

    def down(self) -> None:
        """Ends and removes all containers and volumes."""
        with suppress(CommandFailed):
            self.compose("kill")  # a clean stop takes longer; it fails where nothing runs
        self.compose("down", "--volumes", within_s=300)

    def kill(self, service: str) -> None:
        """Sends SIGKILL to the container. Docker's restart policy does not start it again."""
        self._engine.docker("kill", self._container(service))

    def start(self, service: str) -> None:
        self._engine.docker("start", self._container(service))

    def crash(self, service: str) -> None:
        """Kills the processes of Inflight in the container from within it, as the kernel does when memory is short."""
        self.execute(service, "pkill", "-KILL", "-f", "inflight")

    def execute(self, service: str, *command: str) -> str:
        return self._engine.docker("exec", self._container(service), *command)

    def restarts(self, service: str) -> int:
        """How often the restart policy has started the container again."""
        return int(self._inspected(service, "{{.RestartCount}}"))

    def exit_code(self, service: str) -> int:
        return int(self._inspected(service, "{{.State.ExitCode}}"))

    def is_running(self, service: str) -> bool:
        return self._inspected(service, "{{.State.Running}}") == "true"

    def health(self, service: str) -> str:
        """Returns `healthy`, `unhealthy` or `starting`."""
        return self._inspected(service, "{{.State.Health.Status}}")

    def logs(self, *services: str) -> str:
        """Returns the end of what the containers have written."""
        try:
            return self.compose("logs", "--no-color", "--tail", _LOG_LINES, *services)
        except CommandFailed as error:
            return f"no logs: {error}"

    def role(self, service: str) -> str:
        """Returns what a running engine has said last of itself: `engine` if it works, `standby` if it waits; else nothing."""
        if not self.is_running(service):
            return ""
        since = self._inspected(service, "{{.State.StartedAt}}")
        return last_role(self._engine.docker("logs", "--since", since, self._container(service)))

    def wait_until(self, condition: Callable[[], bool], what: str, *, within_s: float = 300.0) -> None:
        """Asks twice a second. Raises AssertionError with the logs."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {within_s:.0f} s: {what}\n{self.logs()}"
            time.sleep(_POLL_S)

    def _container(self, service: str) -> str:
        labels = {"project": self._project, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        found = self._engine.docker("ps", "--all", "--quiet", *filters).split()
        assert found, f"{service} was never started"
        return found[0]

    def _inspected(self, service: str, template: str) -> str:
        return self._engine.docker("inspect", "--format", template, self._container(service)).strip()


def last_role(log: str) -> str:
    """Returns the last role in what an engine has written: `engine`, `standby` or nothing."""
    found = _READY.findall(log)
    return str(found[-1]) if found else ""
