"""Starts programs that do not outlive us, and picks ports for them.

This file is also run as a script, as a wrapper around each child: it asks Linux to kill the process when its parent dies
(PR_SET_PDEATHSIG, prctl(2)) and then becomes the program by exec, so the child keeps the process id that the parent saw. A
`preexec_fn` would not do: code between fork and exec may deadlock in a process with threads. The signal is SIGKILL: Kafka and the
checkpoint survive it, and a process that hangs would ignore any other signal.
On other systems only a parent that stops properly stops its children.

The kernel takes the *thread* that started the child for its parent: start children from a thread that lives as long as they may.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_DEFAULT_EPHEMERAL_START: Final = 32_768
_LOWEST_PORT: Final = 15_000
_PORT_ATTEMPTS: Final = 200
_AUTOGROUP_ATTEMPTS: Final = 10
_AUTOGROUP_PAUSE_S: Final = 0.1


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """Returns a command that dies with the calling process."""
    # -I: the wrapper's own directory stays off sys.path, where our settings.py and others would shadow foreign modules.
    return [sys.executable, "-I", __file__, str(os.getpid()), *command]


def start_child(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Starts a child that dies with us, in a session of its own so that Ctrl-C in a terminal reaches only us."""
    return subprocess.Popen(
        bound_to_parent(command),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a TCP port that nobody listens on right now. Another process may take it before you: be ready to try again.

    The port lies below the range that the kernel gives to outgoing connections. A client that keeps dialling a dead port *inside*
    that range can be given the same port as its source, connect to itself, and keep the server from coming back.
    """
    highest = _ephemeral_start() - 1
    for _ in range(_PORT_ATTEMPTS if highest > _LOWEST_PORT else 0):
        port = random.randint(_LOWEST_PORT, highest)  # noqa: S311  # nosec B311
        if is_free(port, host):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True if a listener could be opened on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def tail(path: Path, lines: int = 20, limit_bytes: int = 16_384) -> str:
    """Returns the last lines of a log, indented; a sentence if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"  (there is no {path})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _DEFAULT_EPHEMERAL_START


def _become(parent: int, command: Sequence[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above, and no signal will come
            os._exit(1)
    try:
        os.execvp(command[0], list(command))  # noqa: S606  # nosec B606
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


def lower_priority(nice: int) -> None:
    """Raises the nice value of this process and of its session.

    Linux with autogroups shares the processor among sessions first, and there only the session's value counts (sched(7)).
    """
    os.nice(nice)
    if os.getsid(0) != os.getpid():
        return
    for _ in range(_AUTOGROUP_ATTEMPTS):
        try:
            Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
        except BlockingIOError:  # the kernel allows ten changes a second on the whole machine, more for root
            time.sleep(_AUTOGROUP_PAUSE_S)
        except OSError:  # a kernel without autogroups
            return
        else:
            return


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
