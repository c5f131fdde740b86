"""A Spark standalone cluster on this machine: a master and workers, each a process of its own, with executors to kill."""

import contextlib
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from inflight.local.child_process import start_child, tail
from tests.support.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
_LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 60.0


class SparkCluster:
    """workers: how many, with one core each. url: what `engine.master` wants."""

    def __init__(self, directory: Path, workers: int) -> None:
        self.url = ""
        self._directory = directory
        self._count = workers
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._directory.mkdir(parents=True)
            master = ["org.apache.spark.deploy.master.Master", "--host", _LOOPBACK, "--port", "0", "--webui-port", "0"]
            self._start("master", master)
            self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
            for number in range(self._count):
                name = f"worker-{number}"
                options = ["--host", _LOOPBACK, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
                options += ["--work-dir", str(self._directory / name)]
                self._workers.append(self._start(name, ["org.apache.spark.deploy.worker.Worker", *options, self.url]))
            for number in range(self._count):
                self._said(f"worker-{number}", r"(Successfully registered) with master")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, which are children of the workers."""
        children = [child for worker in self._workers for child in psutil.Process(worker.pid).children()]
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def kill_worker(self) -> None:
        """Sends SIGKILL to a worker and its executors, as when a machine fails."""
        _kill_family(self._workers.pop().pid)

    def _start(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        # Without this variable the worker's machine name decides on the address that executors bind to.
        environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": _LOOPBACK}
        with self._log(name).open("wb") as log:
            process = start_child(
                [str(SPARK_HOME / "bin" / "spark-class"), *command],
                stdout=log,
                stderr=log,
                environment=environment,
                cwd=self._directory,
            )
        self._stack.callback(process.wait)
        self._stack.callback(_kill_family, process.pid)
        return process

    def _said(self, name: str, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, self._log(name).read_text())

        match = wait_until(found, lambda: f"{name} has started:\n{tail(self._log(name))}", within_s=_START_TIMEOUT_S)
        return str(match[1])

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def _kill_family(pid: int) -> None:
    """An executor has a session of its own and would outlive its worker for a while."""
    process = psutil.Process(pid)
    for member in (*process.children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with another one
            member.kill()
