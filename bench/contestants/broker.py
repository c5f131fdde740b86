"""Base of all MQTT brokers: starts and stops them, and has a backend that publishes and subscribes by MQTT."""

import json
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

from bench.contestants.child import Child
from bench.contestants.contestant import TOPIC
from bench.contestants.processor_time import cpu_s, family
from bench.devices import UPLINK, connect_packet
from inflight.local.child_process import free_port, start_child, tail
from inflight.local.errors import ChildProcessFailed

HOST = "127.0.0.1"
_START_S = 60.0
_STOP_S = 20.0
_POLL_S = 0.05
_LOOK_S = 0.25
_AT_REST = 0.2
"""The load at rest, in cores. It is above 0: RabbitMQ counts its connections and Mosquitto writes its database periodically."""


class Broker(ABC):
    """A broker on loopback, without passwords.

    Sessions are kept (clean session 0), and each device subscribes to its own topic.
    """

    title: ClassVar[str]
    subscribe: ClassVar[str] = f"{TOPIC}/%c"
    has_shared_subscriptions: ClassVar[bool] = True
    has_standby: ClassVar[bool] = False
    keeps_sessions: ClassVar[bool] = True

    def __init__(self, directory: Path, settings: list[str], *, standby: bool = False) -> None:
        self.directory = directory
        self.mqtt = (HOST, free_port(HOST))
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._start_again: Callable[[], None] = self.start

    @abstractmethod
    def start(self) -> None:
        """Calls `run` for each of its processes, for the broker last."""

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Starts a process. name: for the processor time of it and its children. Its output goes to NAME.log."""
        with self._log(name).open("ab") as log:
            process = start_child(command, stdout=log, stderr=subprocess.STDOUT, environment=environment, cwd=self.directory)
        self._processes.append((name, process))
        self._start_again = partial(self.run, name, command, environment)

    def kill(self) -> None:
        """Kills the broker, and starts it again with the same data and port."""
        _, broker = self._processes.pop()
        for process in reversed(list(family(broker.pid))):
            process.kill()
        broker.wait()
        self._start_again()

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        for name, started in self._processes:
            for process in family(started.pid):
                yield name, process

    def backend(self) -> Child:
        host, port = self.mqtt
        return Child("bench.contestants.publisher", "--host", host, "--port", str(port))

    def uplink(self, count: int) -> "Subscribed":
        return Subscribed(self.mqtt, count)

    def await_rest(self, within_s: float) -> None:
        """Returns when the broker uses little processor time, because it does not report that it is idle."""
        deadline = time.monotonic() + within_s
        before = cpu_s(self.processes()).total()
        while True:
            time.sleep(_LOOK_S)
            now = cpu_s(self.processes()).total()
            if now - before < _AT_REST * _LOOK_S:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.title} does not come to rest")
            before = now

    def __enter__(self) -> Self:
        try:
            self.start()
            self._await_answer()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _START_S
        while not _accepts(self.mqtt):
            for name, process in self._processes:
                if process.poll() is not None:
                    status = process.returncode
                    raise ChildProcessFailed(f"{name} has ended with status {status}. It said:\n{tail(self._log(name))}")
            if time.monotonic() > deadline:
                name = self._processes[-1][0]
                raise ChildProcessFailed(f"{name} accepts no client within {_START_S:.0f} s. It said:\n{tail(self._log(name))}")
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        for _, process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


class Subscribed:
    """A backend that subscribes to all publications, with a kept session. Without a session a broker would drop them."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._address, self._count = address, count
        self._child: Child | None = None

    def await_all(self, within_s: float) -> dict[str, float]:
        assert self._child is not None
        result = json.loads(self._child.line(within_s))
        if (arrived := result["messages"]) < self._count:
            raise RuntimeError(f"only {arrived:,} of {self._count:,} publications came to the backend, and all are acknowledged")
        return {"backend": result["cpu_s"]}

    def __enter__(self) -> Self:
        options = ("--host", self._address[0], "--port", str(self._address[1]), "--devices", "1", "--prefix", "backend-")
        expected = ("--subscribe", f"{UPLINK}/#", "--qos", "1", "--expect", str(self._count))
        self._child = Child("bench.devices", *options, *expected)
        self._child.first_line(_START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._child is not None:
            self._child.__exit__(kind, error, trace)


def _accepts(address: tuple[str, int]) -> bool:
    """Returns True if the broker answers a CONNECT correctly."""
    try:
        with socket.create_connection(address, timeout=1.0) as connection:
            connection.sendall(connect_packet(b"is-it-ready", clean=True))
            connection.settimeout(5.0)
            return connection.recv(4) == b"\x20\x02\x00\x00"
    except OSError:
        return False
