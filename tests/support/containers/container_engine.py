"""Finds the container engine that `make test-containers` uses: the one of this machine, or a dockerd of its own.

The own one has its data under a directory of the caller, which stays for the next run, and its sockets under /tmp. It is ended by
its process id. A run that was killed leaves it behind; the next run takes it over and ends it.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
GIB: Final = 1 << 30
NEEDED_BYTES: Final = 10 * GIB
"""Free space for images and volumes, while both files of Compose run one after the other."""
MOST_KEPT_BYTES: Final = 15 * GIB
"""Data of an own engine that is larger is deleted at the end, with all images."""
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"
_STARTS_WITHIN_S: Final = 60.0
_ENDS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.2
_TAIL_LINES: Final = 12
_WITHOUT: Final = "`make lint-containers` checks what can be checked without a container engine."


class CannotRunContainers(Exception):
    """This machine runs no containers; the text says what to do."""


class CommandFailed(AssertionError):
    """A command of Docker or of Compose failed; the text has the end of what it printed."""


@dataclass
class ContainerEngine:
    """A container engine that answers.

    Attributes:
        environment: What its clients need beside the environment of this process.
        is_own: True for a dockerd that was started here.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    is_own: bool = False

    def run(self, *command: str, within_s: float = 60.0) -> str:
        """Returns the standard output of a client of the engine. Raises CommandFailed."""
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(f"{' '.join(command)}: {error}") from error
        if done.returncode:
            raise CommandFailed(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4_000:]}{done.stderr[-4_000:]}")
        return done.stdout

    def docker(self, *arguments: str, within_s: float = 60.0) -> str:
        return self.run("docker", *arguments, within_s=within_s)

    def answers(self) -> bool:
        with suppress(CommandFailed):
            self.docker("version", within_s=20)
            return True
        return False


@contextmanager
def container_engine(directory: Path) -> Iterator[ContainerEngine]:
    """Yields the engine of this machine if one answers, else one of its own, which ends with the block.

    Args:
        directory: Data of an own engine, which stays.

    Raises:
        CannotRunContainers: None answers, and none can be started.
    """
    theirs = ContainerEngine()
    if theirs.answers():
        yield theirs
        return
    sockets = sockets_directory(directory)
    own = ContainerEngine({"DOCKER_HOST": f"unix://{sockets / 'docker.sock'}"}, is_own=True)
    refuse_without_dockerd(shutil.which("dockerd", path=search_path()), os.geteuid(), _free_bytes(directory))
    try:
        if not own.answers():
            _start(own, directory, sockets)
        yield own
        own.docker("image", "prune", "--force", within_s=120)
    finally:
        end_engine(sockets)
        if size_bytes(directory / "data") > MOST_KEPT_BYTES:
            shutil.rmtree(directory / "data")


def sockets_directory(directory: Path) -> Path:
    """The directory of sockets and process id: the same one for the same data. A socket's path must be short."""
    return Path("/tmp") / f"inflight-dockerd-{hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:12]}"


def search_path() -> str:
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"


def refuse_without_dockerd(dockerd: str | None, user_id: int, free_bytes: int) -> None:
    """Raises CannotRunContainers, with what to do, if this machine cannot start an engine."""
    if dockerd is None:
        raise CannotRunContainers(
            "No container engine answers, and there is no dockerd. Start Docker, or install it (Debian: apt-get install "
            f"docker.io). {_WITHOUT}"
        )
    if user_id != 0:
        raise CannotRunContainers(
            "No container engine answers, and only root may start dockerd. Start Docker and join its group (adduser $USER "
            f"docker), or run this as root. {_WITHOUT}"
        )
    if free_bytes < NEEDED_BYTES:
        raise CannotRunContainers(
            f"The images need {NEEDED_BYTES // GIB} GiB of disk, and {free_bytes / GIB:.1f} GiB are free. Make room, "
            "or name another directory: make test-containers CONTAINERS=DIR."
        )


def size_bytes(directory: Path) -> int:
    """Bytes on disk of all files below a directory; 0 if it does not exist."""
    if not directory.is_dir():
        return 0
    counted = subprocess.run(["du", "-sk", str(directory)], capture_output=True, text=True, check=False)
    return int(counted.stdout.split()[0]) * 1_024 if counted.stdout else 0


def _free_bytes(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(directory).free + size_bytes(directory / "data")


def _start(engine: ContainerEngine, directory: Path, sockets: Path) -> None:
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = directory / "dockerd.log"
    command = [
        "dockerd",
        *("--data-root", str(directory.absolute() / "data")),
        *("--exec-root", str(sockets / "exec")),
        *("--pidfile", str(sockets / "pid")),
        *("--host", engine.environment["DOCKER_HOST"]),
        *("--log-opt", "max-size=20m"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PATH": search_path()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is not for it: its containers end first
        )
    deadline_s = time.monotonic() + _STARTS_WITHIN_S
    while not engine.answers():
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            said = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise CannotRunContainers(
                f"dockerd does not start here. Its last words ({log}):\n{said}\nIn a container it needs all privileges (docker "
                "run --privileged); on a virtual machine, a kernel with overlayfs, control groups, bridges and iptables. "
                f"{_WITHOUT}"
            )
        time.sleep(_POLL_S)


def end_engine(sockets: Path) -> None:
    """Ends the own dockerd by its process id; it ends its containerd. Leaves alone another process that has this id now."""
    with suppress(OSError, ValueError):
        pid = int((sockets / "pid").read_text())
        if str(sockets).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            _end_process(pid)
    shutil.rmtree(sockets, ignore_errors=True)


def _end_process(pid: int) -> None:
    """Returns when the process is gone. Kills it if it takes too long. Raises ProcessLookupError if it is gone already."""
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    os.kill(pid, signal.SIGTERM)
    while time.monotonic() < deadline_s:
        with suppress(ChildProcessError):  # a run that was killed has started it
            os.waitpid(pid, os.WNOHANG)
        os.kill(pid, 0)
        time.sleep(_POLL_S)
    os.kill(pid, signal.SIGKILL)
