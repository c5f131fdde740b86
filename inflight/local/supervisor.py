"""`inflight up`: Kafka, engine, gateway and console as child processes, in order, until somebody says stop.

Start: 1. lock the data directory; 2. Kafka; 3. topics; 4. engine and gateway together; 5. say `ready`; 6. the console.
Stop: console, gateway (devices see a goodbye), engine (its last micro-batch ends), Kafka.

A child that ends although nobody stopped it is started again, after a pause that doubles up to half a minute; the engine goes on
from its checkpoint, the gateway's devices reconnect, Kafka keeps its port. Only a child that never became ready the first time
ends everything: then it is not bad luck but something to mend. Without a console the others go on. A child that is not ready
after three minutes is killed, unless it works: the engine is ready after its first micro-batch, and one with very many timers in
it takes as long as it takes.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from inflight.local.child_process import bound_to_parent, free_port, tail
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.endpoints import Endpoints
from inflight.local.errors import ChildProcessFailed, DataDirectoryInUse
from inflight.local.jars import Jars
from streaming.config.settings import load_settings
from streaming.config.topics import ensure_topics
from streaming.engine.lifecycle.full_disk import is_full
from streaming.engine.lifecycle.watching.hang import HUNG
from streaming.engine.lifecycle.watching.processes import AT_WORK, processor_seconds

READY: Final = "ready"
"""The first word of the line by which a child says that it works; `key=value` words may follow."""

_READY_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LAST_WORDS_S: Final = 1.0
_KAFKA_POLL_S: Final = 0.2
_LOG_LIMIT_BYTES: Final = 16 << 20
_LONGEST_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """data_dir: everything is kept there. mqtt_port: None = as configured; 0 = any free one, for both ports.

    config, overrides: passed on to the children, so that all read the same configuration. defaults: overrides that give way to
    those. console: whether the page is served. nice: how much the engine stands back behind the gateway, which is what somebody
    waits for.
    """

    data_dir: Path
    mqtt_port: int | None = None
    kafka_port: int = 0
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    console: bool = False
    nice: int = 0


@dataclass(slots=True, kw_only=True)
class Child:
    """One supervised Python process. arguments: of `inflight`, made anew for each start. words: of its last ready line.

    nice: how much it stands back behind the others. failed_starts: in a row, with the present one for as long as it is not ready.
    """

    name: str
    arguments: Callable[[], Sequence[str]]
    log: Path
    nice: int = 0
    process: asyncio.subprocess.Process | None = None
    words: dict[str, str] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    failed_starts: int = 0


class Supervisor:
    """Runs everything. say: told what happens, for people; announce: told once, when a device can connect."""

    def __init__(
        self, options: UpOptions, jars: Jars, *, say: Callable[[str], None], announce: Callable[[Endpoints], None]
    ) -> None:
        self._options = options
        self._data_dir = options.data_dir.absolute()
        self._logs = self._data_dir / "logs"
        self._say = say
        self._announce = announce
        self._stop = asyncio.Event()
        self._kafka = EmbeddedKafka(self._data_dir, port=options.kafka_port, jars=jars)
        self._engine = Child(name="engine", arguments=self._engine_arguments, log=self._logs / "engine.log", nice=options.nice)
        self._gateway = Child(name="gateway", arguments=self._gateway_arguments, log=self._logs / "gateway.log")
        self._console = Child(name="console", arguments=self._console_arguments, log=self._logs / "console.log")

    async def run(self) -> None:
        """Returns after a clean stop (SIGINT, SIGTERM). Raises InflightError when something could not be started."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        with locked(self._data_dir):  # 1
            for number in signal.SIGINT, signal.SIGTERM:
                loop.add_signal_handler(number, self._stop.set)
            self._logs.mkdir(parents=True, exist_ok=True)
            try:
                await self._until_stopped(self._start_kafka())  # 2, 3
                if not self._stop.is_set():
                    self._say("starting the engine and the gateway")
                    children = [self._supervise(self._engine), self._supervise(self._gateway)]  # 4
                    children += [self._report_ready(started), self._serve_console()]  # 5, 6
                    await self._until_stopped(self._watch_kafka(), *children)
            finally:
                await self._stop_all()

    async def _until_stopped(self, *work: Coroutine[Any, Any, None]) -> None:
        """Returns when all of it is done or stop is asked for; raises the first thing that goes wrong."""
        tasks = [asyncio.create_task(item) for item in work]
        stop = asyncio.create_task(self._stop.wait())
        pending = {stop, *tasks}
        try:
            while stop in pending and len(pending) > 1:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _start_kafka(self) -> None:
        self._say("starting Kafka (one broker: its data survives killed processes, not a lost disk)")
        # The pool's threads live until the loop is closed, so the thread that starts the broker outlives it (child_process.py).
        await asyncio.to_thread(self._kafka.start)
        settings = load_settings(self._options.config, self._overrides())
        report = await asyncio.to_thread(ensure_topics, settings)
        for warning in report.warnings:
            self._say(f"warning: {warning}")

    async def _report_ready(self, started: float) -> None:
        await self._devices_can_connect()
        self._write_endpoints()
        self._say(f"ready after {time.monotonic() - started:.1f} s; logs are in {self._logs}; stop with Ctrl-C")
        self._announce(self._endpoints())

    async def _devices_can_connect(self) -> None:
        for child in self._engine, self._gateway:
            await child.ready.wait()

    async def _serve_console(self) -> None:
        """Not before the others are ready: it would only slow them. They go on without it."""
        if not self._options.console:
            return
        await self._devices_can_connect()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._supervise(self._console))
                tasks.create_task(self._report_console())
        except* ChildProcessFailed as failed:
            self._say(f"warning: there is no console: {failed.exceptions[0]}")

    async def _report_console(self) -> None:
        await self._console.ready.wait()
        self._write_endpoints()
        self._say(f"the console is at {self._console.words['console']}")

    async def _supervise(self, child: Child) -> None:
        """Starts the child again and again. Raises ChildProcessFailed when it does not become ready the first time."""
        while True:
            status = await self._run_once(child)
            if not child.ready.is_set():
                raise ChildProcessFailed(
                    f"the {child.name} ended ({explain_status(status)}) before it was ready. "
                    f"The end of {child.log}:\n{tail(child.log)}\n"
                    "Mend what it says there and start again; nothing is lost."
                )
            self._write_endpoints()
            # What was ready and died is needed at once; what cannot start would only burn the machine.
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(child.failed_starts, 10), _LONGEST_PAUSE_S)
            self._say(
                f"the {child.name} ended unexpectedly ({explain_status(status)}), starting it again in {pause_s:g} s; "
                f"see {child.log}{self._full_disk()}"
            )
            await asyncio.sleep(pause_s)
            child.failed_starts += 1

    async def _run_once(self, child: Child) -> int:
        """Starts the child, waits until it ends, and returns its status."""
        rotate(child.log)
        with child.log.open("ab", buffering=0) as log:
            command = bound_to_parent([sys.executable, "-m", "inflight", *child.arguments()], nice=child.nice)
            child.process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal reaches only us, and we stop the children in order
                limit=_LONGEST_LINE_BYTES,
            )
            reader = asyncio.create_task(self._read_output(child, process, log))
            try:
                status = await process.wait()
                child.process = None
                # What the child has started itself (Spark's JVM) must not work on the same checkpoint beside its successor.
                kill_group(process.pid)
                await asyncio.wait([reader], timeout=_LAST_WORDS_S)
            finally:
                reader.cancel()
            return status

    async def _read_output(self, child: Child, process: asyncio.subprocess.Process, log: BinaryIO) -> None:
        """Standard output of a child: its ready line, and whatever else for its log."""
        if process.stdout is None:
            raise AssertionError("stdout is a pipe")

        too_late = asyncio.create_task(kill_when_stuck(child.name, process.pid, say=self._say))
        try:
            started = time.monotonic()
            async for line in process.stdout:
                words = line.decode(errors="replace").split()
                if words[:1] != [READY]:
                    with contextlib.suppress(OSError):  # a full disk
                        log.write(line)
                    continue
                too_late.cancel()
                child.failed_starts = 0
                child.words = dict(word.split("=", 1) for word in words[1:] if "=" in word)
                if child.ready.is_set():
                    self._write_endpoints()
                    self._say(f"the {child.name} is back after {time.monotonic() - started:.1f} s")
                child.ready.set()
        finally:
            too_late.cancel()

    async def _watch_kafka(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            while self._kafka.is_running:  # noqa: ASYNC110 - a process, nothing that could set an event
                await asyncio.sleep(_KAFKA_POLL_S)
            self._say(f"Kafka ended unexpectedly, starting it again with its data; see {self._kafka.log_file}{self._full_disk()}")
            self._write_endpoints()
            try:
                await asyncio.to_thread(self._kafka.start)
            except ChildProcessFailed as error:
                self._say(f"{error}\nTrying again in {pause_s:g} s.")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                pause_s = _FIRST_PAUSE_S
                self._write_endpoints()
                self._say("Kafka is back")

    async def _stop_all(self) -> None:
        """Console, gateway, engine, Kafka: each only when the one that writes to it has gone."""
        for child in self._console, self._gateway, self._engine:
            process = child.process
            if process is None or process.returncode is not None:
                continue
            self._say(f"stopping the {child.name}")
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                self._say(
                    f"the {child.name} did not stop within {_STOP_TIMEOUT_S:g} s and is killed; it recovers at the next start"
                )
            kill_group(process.pid)
        self._say("stopping Kafka")
        await asyncio.to_thread(self._kafka.stop)
        Endpoints.remove(self._data_dir)

    def _full_disk(self) -> str:
        """For people, because a log on a full disk says nothing; empty when there is room."""
        places = (self._data_dir, self._data_dir / "kafka" / "data", self._data_dir / "checkpoint")
        full = next((place for place in places if is_full(str(place))), None)
        return "" if full is None else f". The disk of {full} is full: make room there, and it goes on by itself"

    def _engine_arguments(self) -> list[str]:
        return ["engine", *self._common_arguments()]

    def _gateway_arguments(self) -> list[str]:
        # A restarted gateway listens where the first one did, although any free port was asked for: devices come back there.
        port = self._gateway.words.get("mqtt", "").rpartition(":")[2] or self._options.mqtt_port
        if port == 0:
            port = free_port()
        return ["gateway", *self._common_arguments(), *([] if port is None else ["--set", f"gateway.port={port}"])]

    def _console_arguments(self) -> list[str]:
        # As the gateway: a page that is open finds the next one where the first one was.
        port = self._console.words.get("console", "").rstrip("/").rpartition(":")[2]
        return ["console", *self._common_arguments(), *(["--set", f"console.port={port}"] if port else [])]

    def _common_arguments(self) -> list[str]:
        config = [] if self._options.config is None else ["--config", str(self._options.config)]
        return [*config, *(word for override in self._overrides() for word in ("--set", override))]

    def _overrides(self) -> list[str]:
        return [
            # A gateway that comes back under its old name gets its partitions at once; a flag of the user comes later and wins.
            "gateway.group_instance_id=up",
            "gateway.drain_ms=0",  # there is no other gateway that its devices could go to
            *self._options.defaults,
            *self._options.overrides,
            f"engine.data_dir={self._data_dir}",
            f"kafka.bootstrap_servers={self._kafka.bootstrap_servers}",
            "kafka.security_protocol=PLAINTEXT",
        ]

    def _endpoints(self) -> Endpoints:
        running = {child.name: child.process.pid for child in self._children() if child.process is not None}
        if self._kafka.is_running:
            running["kafka"] = self._kafka.pid
        return Endpoints(
            mqtt=self._gateway.words.get("mqtt", ""),
            kafka=self._kafka.bootstrap_servers,
            pids={"up": os.getpid(), **running},
            metrics={child.name: child.words["metrics"] for child in self._children() if "metrics" in child.words},
            console="" if self._console.process is None else self._console.words.get("console", ""),
        )

    def _children(self) -> Sequence[Child]:
        return self._engine, self._gateway, self._console

    def _write_endpoints(self) -> None:
        """Only once everything has been ready: the file says that there is something to talk to."""
        if self._engine.ready.is_set() and self._gateway.ready.is_set():
            try:
                self._endpoints().write(self._data_dir)
            except OSError as error:
                self._say(f"warning: {error}; `inflight status` does not see which processes run until the next one is ready")


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Holds DATA_DIR/lock; the kernel lets go of it when the process ends, however it ends. Raises DataDirectoryInUse."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "lock").open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise DataDirectoryInUse(
                f"{data_dir} is in use by another `inflight up` (process {file.read().strip() or 'unknown'}). "
                "Stop that one, or give another --data-dir."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


async def kill_when_stuck(name: str, pid: int, *, say: Callable[[str], None], patience_s: float = _READY_TIMEOUT_S) -> None:
    """To be cancelled when the child is ready. Kills it, with its group, when it has done nothing for the time of patience."""
    used_s, waited_s = 0.0, 0.0
    while True:
        await asyncio.sleep(patience_s)
        waited_s += patience_s
        before_s, used_s = used_s, processor_seconds(pid)
        if used_s - before_s < AT_WORK * patience_s:
            say(f"the {name} was not ready within {waited_s:g} s and is killed")
            kill_group(pid)
            return
        say(f"the {name} is not ready after {waited_s:g} s, but it works; see its log")


def rotate(log: Path) -> None:
    """Puts a long log aside as LOG.1, so that a machine that runs for years keeps at most two."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))


def kill_group(pid: int) -> None:
    """SIGKILL for a child and all that it started; each child leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def explain_status(status: int) -> str:
    """`signal SIGKILL` or `exit status 1`."""
    if status == HUNG:
        return f"exit status {status}: the watchdog of the engine, whose query hung"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
