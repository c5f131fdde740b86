"""Runs a Kafka, `inflight engine` and `inflight gateway` as an operator does, for tests that restart gateways properly."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inflight.local.child_process import free_port, start_child, tail
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from streaming.config.settings import load_settings
from streaming.topics import ensure_topics
from tests.support.waiting import wait_until

_START_S = 180.0
_STOP_S = 60.0


@dataclass
class Command:
    """`inflight NAME`, which can be started again."""

    name: str
    overrides: Sequence[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    _starts: int = 0

    def start(self) -> None:
        """Starts the process. Returns when it is ready."""
        self._starts += 1
        said = self.log.with_suffix(f".{self._starts}.out")
        flags = [word for override in self.overrides for word in ("--set", override)]
        with self.log.open("ab") as log, said.open("wb") as out:
            self.process = process = start_child([sys.executable, "-m", "inflight", self.name, *flags], stdout=out, stderr=log)

        def is_ready() -> bool:
            assert process.poll() is None, f"{self.name} has ended:\n{tail(self.log)}"
            return said.read_text().startswith("ready ")

        wait_until(is_ready, lambda: f"{self.name} is ready:\n{tail(self.log)}", within_s=_START_S)

    def stop(self) -> float:
        """Stops the process with SIGTERM, as an operator does. Returns the seconds that it took."""
        assert self.process is not None
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(_STOP_S)
        assert status == 0, f"{self.name} has ended with status {status}:\n{tail(self.log)}"
        return time.monotonic() - began_s

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Site:
    """Kafka and an engine; gateways are made of it."""

    def __init__(self, directory: Path, kafka: EmbeddedKafka) -> None:
        self.bootstrap_servers = kafka.bootstrap_servers
        self.data_dir = directory / "data"
        self._directory = directory
        ensure_topics(load_settings(None, self._overrides))
        self.engine = self._command("engine", "engine")

    @contextmanager
    def gateways(self, *settings: Sequence[str]) -> Iterator[list[tuple[Command, tuple[str, int]]]]:
        """Yields a running gateway for each of the settings, with its address."""
        made = []
        for own in settings:
            port = free_port()
            made.append((self._command(f"gateway-{port}", "gateway", f"gateway.port={port}", *own), ("127.0.0.1", port)))
        try:
            for command, _ in made:
                command.start()
            yield made
        finally:
            for command, _ in made:
                command.kill()

    @property
    def _overrides(self) -> list[str]:
        return [f"kafka.bootstrap_servers={self.bootstrap_servers}", f"engine.data_dir={self.data_dir}"]

    def _command(self, log: str, name: str, *overrides: str) -> Command:
        return Command(name, [*self._overrides, *overrides], self._directory / f"{log}.log")


@contextmanager
def running_site(directory: Path, jars: Jars) -> Iterator[Site]:
    with EmbeddedKafka(directory, jars=jars) as kafka:
        site = Site(directory, kafka)
        try:
            site.engine.start()
            yield site
        finally:
            site.engine.kill()
