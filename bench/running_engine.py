"""Runs `inflight engine` as an operator does, for benchmarks that stop it, kill it and start it again."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from rich.progress import Progress

from inflight.local.child_process import start_child, tail
from state.commands import GatewayCommand
from state.records.commands import decode_command_batch
from streaming.config.settings import load_settings
from streaming.engine.progress import PROGRESS_FILE, BatchProgress
from streaming.topics import ensure_topics

LOOK_S = 0.5
"""Time between two expensive measurements: the file of the micro-batches, the memory of the processes."""
JVM, WORKERS = "jvm_bytes", "workers_bytes"
_PAUSE_S = 0.02
_ORPHANS_S = 60.0


class RunningEngine:
    """Starts nothing on creation; at the end of its `with` all its processes have ended.

    overrides: as for --set. options: the same and the data directory, for other commands too. memory: the maximum that was
    resident since `measure_memory`, as measured by `check`. Memory that workers share with their parent process counts for each
    of them.
    """

    def __init__(self, directory: Path, overrides: Sequence[str]) -> None:
        self.data_dir = directory / "data"
        self.memory = {JVM: 0, WORKERS: 0}
        self._directory = directory
        self.options = ["--data-dir", str(self.data_dir), *(word for override in overrides for word in ("--set", override))]
        self._log, self._said = directory / "engine.log", directory / "engine.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._began_s = self._looked_s = self._read_s = 0.0
        self._ready_s: float | None = None
        self._family: dict[int, psutil.Process] = {}
        self._batches: dict[int, BatchProgress] = {}

    def start(self) -> None:
        """Starts the engine and returns at once."""
        command = [sys.executable, "-m", "inflight", "engine", *self.options]
        # Files left behind by a killed Spark are deleted with this directory.
        environment = os.environ | {"SPARK_LOCAL_DIRS": str(self._directory / "spark")}
        self._ready_s = None
        self.measure_memory()
        with self._log.open("ab") as log, self._said.open("wb") as said:
            self._began_s = time.monotonic()
            self._process = start_child(command, stdout=said, stderr=log, environment=environment)

    def since_start_s(self) -> float:
        return time.monotonic() - self._began_s

    def ready_s(self) -> float | None:
        """Returns the seconds from the start to the ready line, as of the first call after it; None = not yet."""
        if self._ready_s is None and self._said.read_text(encoding="utf-8").startswith("ready "):
            self._ready_s = self.since_start_s()
        return self._ready_s

    def is_ready(self) -> bool:
        return self.ready_s() is not None

    def check(self) -> None:
        """Measures, at most every `LOOK_S`; call it often. Raises RuntimeError when the engine has ended."""
        if time.monotonic() >= self._looked_s + LOOK_S:
            self._look()
        if self._started.poll() is not None:
            raise RuntimeError(f"the engine has ended with status {self._started.returncode}:\n{tail(self._log)}")

    def stop(self, within_s: float) -> float:
        """Sends SIGTERM and returns the seconds until the end. Raises RuntimeError if it did not end, or ended with an error."""
        began_s = time.monotonic()
        self._started.send_signal(signal.SIGTERM)
        try:
            status = self._started.wait(within_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the engine has not stopped within {within_s:,.0f} s:\n{tail(self._log)}") from None
        if status:
            raise RuntimeError(f"the engine has stopped with status {status}:\n{tail(self._log)}")
        return time.monotonic() - began_s

    def kill(self) -> None:
        """Sends SIGKILL. The JVM detects the end of its parent and exits; the next engine waits for its lock."""
        if self._process is None or self._process.poll() is not None:
            return
        self._look()
        self._process.kill()
        self._process.wait()

    def measure_memory(self) -> None:
        """Restarts the measurement of memory."""
        self.memory = {JVM: 0, WORKERS: 0}

    def batches(self, after: int = -1) -> list[BatchProgress]:
        """Returns the completed micro-batches with a higher id, at most `LOOK_S` old."""
        if (now_s := time.monotonic()) >= self._read_s + LOOK_S:
            self._read_s = now_s
            # In this order, because the first file may become the second meanwhile.
            for name in (PROGRESS_FILE, f"{PROGRESS_FILE}.1"):
                with contextlib.suppress(FileNotFoundError):
                    for line in (self.data_dir / name).read_bytes().splitlines(keepends=True):
                        if line.endswith(b"\n"):
                            batch = msgspec.json.decode(line, type=BatchProgress)
                            self._batches[batch.batch_id] = batch
        return [batch for number, batch in sorted(self._batches.items()) if number > after]

    def last_batch_id(self) -> int:
        return max((batch.batch_id for batch in self.batches()), default=-1)

    def taken(self, topic: str, ends: Mapping[int, int]) -> int:
        """Returns how many of the records before `ends`, offsets by partition, are in committed micro-batches."""
        found = self.batches()
        offsets = found[-1].end_offsets.get(topic, {}) if found else {}
        return sum(min(offsets.get(partition, 0), end) for partition, end in ends.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for orphan in psutil.wait_procs(self._family.values(), timeout=_ORPHANS_S)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()

    def _look(self) -> None:
        """Finds the processes of the engine, its JVM and the JVM's workers, and measures their memory."""
        self._looked_s = time.monotonic()
        now = {JVM: 0, WORKERS: 0}
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._started.pid).children(recursive=True)
            self._family = {pid: process for pid, process in self._family.items() if process.is_running()}
            self._family |= {process.pid: process for process in found}
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    now[JVM if process.name() == "java" else WORKERS] += process.memory_info().rss
        self.memory = {name: max(most, now[name]) for name, most in self.memory.items()}

    @property
    def _started(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "call start() first"
        return self._process


def disk_bytes(directory: Path) -> int:
    """Returns the size of the files on the disk. Some may be deleted meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_blocks * 512
    return total


class Kafka:
    """Acts as the backend and the gateways."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", linger_ms=5, batch_size=1 << 17)
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False, fetch_max_wait_ms=20)

    def ends(self, topic: str) -> dict[int, int]:
        """Returns, by partition, the offset behind the newest record."""
        partitions = [TopicPartition(topic, number) for number in self._consumer.partitions_for_topic(topic) or ()]
        return {partition.partition: end for partition, end in self._consumer.end_offsets(partitions).items()}

    def follow(self, topic: str, *partitions: int) -> None:
        """Makes `commands` read these partitions, from their beginning."""
        self._consumer.assign([TopicPartition(topic, number) for number in partitions])
        self._consumer.seek_to_beginning()

    def commands(self) -> Iterator[tuple[bytes, GatewayCommand]]:
        """Yields new commands, each with its client."""
        for records in self._consumer.poll(timeout_ms=20).values():
            for record in records:
                for command in decode_command_batch(record.value).commands:
                    yield record.key, command

    def close(self) -> None:
        self.producer.close()
        self._consumer.close()


class Run:
    """An engine with its own topics. within_s: the deadline of each wait."""

    def __init__(self, directory: Path, bootstrap_servers: str, bar: Progress, within_s: float, overrides: list[str]) -> None:
        overrides = [f"kafka.bootstrap_servers={bootstrap_servers}", *overrides]
        self.engine = RunningEngine(directory, overrides)
        settings = load_settings(None, [*overrides, f"engine.data_dir={self.engine.data_dir}"])
        ensure_topics(settings)
        self.topics, self.checkpoint = settings.topics, Path(settings.checkpoint_location)
        self.kafka = Kafka(bootstrap_servers)
        self.within_s, self._bar = within_s, bar

    def wait(self, what: str, count: Callable[[], float], total: float, *, without_engine: bool = False) -> None:
        """Returns when `count` has reached `total`. Raises TimeoutError; RuntimeError when the engine ends meanwhile."""
        task = self._bar.add_task(what, total=total)
        deadline = time.monotonic() + self.within_s
        while (done := count()) < total:
            if not without_engine:
                self.engine.check()
            self._bar.update(task, completed=done)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {done:,.0f} of {total:,.0f} within {self.within_s:,.0f} s")
            time.sleep(_PAUSE_S)
        self._bar.update(task, completed=total)

    def start(self) -> float:
        """Starts the engine and returns the seconds until it is ready."""
        self.engine.start()
        self.wait("the engine is ready", self.engine.is_ready, 1)
        return self.engine.ready_s() or 0.0

    def stop(self) -> float:
        return self.engine.stop(self.within_s)

    def send(self, what: str, count: int, send: Callable[[int], None]) -> None:
        """Writes records. send: called with each number below `count`."""
        for number in self._bar.track(range(count), description=f"{what}: written to Kafka"):
            send(number)
        self.kafka.producer.flush(timeout=self.within_s)

    def await_taken(self, what: str, topic: str) -> None:
        """Returns when all current records of the topic are in a committed micro-batch."""
        ends = self.kafka.ends(topic)
        self.wait(f"{what}: taken by the engine", lambda: self.engine.taken(topic, ends), sum(ends.values()))
