"""Runs `inflight up`: Kafka, engine, gateway and console as child processes, in order, until it is told to stop.

Start: 1. lock the data directory; 2. Kafka; 3. topics; 4. engine and gateway together; 5. say `ready`; 6. the console, and a
standby if there is to be one. It is an engine like the first one, and whichever of the two is killed waits after its restart.
Stop: console, gateway (devices get DISCONNECT), the engine that waits, the one that works (its last micro-batch ends), Kafka.

A child that ends by itself is started again (inflight/local/supervised_child.py): the engine goes on from its checkpoint, the
gateway's devices reconnect, Kafka keeps its port. If the console cannot be started, the others go on.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inflight.local.child_process import free_port
from inflight.local.data_directory import locked
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.endpoints import Endpoints
from inflight.local.engine_priority import EnginePriority
from inflight.local.errors import ChildProcessFailed
from inflight.local.jars import Jars
from inflight.local.remembered_ports import RememberedPorts
from inflight.local.start_watch import PATIENCE_S
from inflight.local.supervised_child import FIRST_PAUSE_S, LONGEST_PAUSE_S, STANDBY, SupervisedChild, until_stopped
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings, load_settings
from streaming.engine.watching.engine_ends import EngineEnds
from streaming.engine.watching.full_disk import is_full
from streaming.settings import OFF
from streaming.topics import TopicReport, ensure_topics

_ENGINE: Final = "engine"
"""The name of the process, and its role."""
_KAFKA, _CONSOLE = "Kafka", "the console"
"""Names of remembered ports."""
_KAFKA_PORT: Final = 9092
"""The port in the default of kafka.bootstrap_servers."""
_STOP_TIMEOUT_S: Final = 30.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_STATS_INTERVAL: Final = "15s"
_KAFKA_POLL_S: Final = 0.2
_REPORT_WAITING_S: Final = 5.0
_REPEATED_PAUSE_S: Final = 300.0
"""The longest pause before a restart of an engine that has ended several times at the same records."""


def serves_console(settings: Settings) -> bool:
    """True unless the console is turned off."""
    return settings.console.port != OFF


def shown_metrics(settings: Settings) -> tuple[str, ...]:
    """Returns overrides that make engine and gateway serve on loopback the metrics that the console shows.

    Ports that are configured stay as they are.
    """
    metrics = settings.metrics
    if not serves_console(settings) or metrics.host not in _LOOPBACK:
        return ()
    found = [f"metrics.{name}=0" for name in ("engine_port", "gateway_port") if getattr(metrics, name) == OFF]
    if metrics.engine_port == OFF:
        found.append(f"metrics.census_interval={_STATS_INTERVAL}")
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Options of `inflight up`.

    Attributes:
        data_dir: Everything is kept there.
        mqtt_port: None = as configured; 0 = any free port.
        kafka_port: None = that of the last start, at first 9092 if it is free; 0 = any free port.
        config, overrides: Passed on to the children, so that all read the same configuration.
        defaults: Overrides that give way to `overrides`.
        console: True if the page is served.
        is_console_port_free: True if no port is configured for the console, so it has that of the last start.
        nice: Nice value of the engine, so that the gateway, for which devices wait, goes first (engine_priority.py).
        standby: True if a second engine waits.
        accept_loss: As in `run_engine`, until the engine is ready for the first time.
        standby_overrides: Overrides of the second engine alone.
    """

    data_dir: Path
    mqtt_port: int | None = None
    kafka_port: int | None = None
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    console: bool = False
    is_console_port_free: bool = False
    nice: int = 0
    standby: bool = False
    accept_loss: bool = False
    standby_overrides: tuple[str, ...] = ()


class Supervisor:
    """Runs everything.

    Args:
        say: Told what happens, for people.
        announce: Told once, when a device can connect.
    """

    def __init__(
        self, options: UpOptions, jars: Jars, *, say: Callable[[str], None], announce: Callable[[Endpoints], None]
    ) -> None:
        self._options = options
        self._data_dir = options.data_dir.absolute()
        self._logs = self._data_dir / "logs"
        self._say = say
        self._announce = announce
        self._stop = asyncio.Event()
        self._waiting: asyncio.Task[None]
        self._jars = jars
        self._kafka: EmbeddedKafka
        self._ports = RememberedPorts(self._data_dir, say=say)
        self._engine = self._engine_child(_ENGINE)
        self._standby = self._engine_child(STANDBY, options.standby_overrides)
        self._gateway = self._child("gateway", self._gateway_arguments, hint=self._full_disk)
        self._console = self._child("console", self._console_arguments, hint=self._full_disk)

    async def run(self) -> None:
        """Returns after a clean stop (SIGINT, SIGTERM). Raises InflightError if something could not be started."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        with locked(self._data_dir, say=self._say):  # step 1
            for number in signal.SIGINT, signal.SIGTERM:
                loop.add_signal_handler(number, self._stop.set)
            self._logs.mkdir(parents=True, exist_ok=True)
            self._kafka = self._new_kafka()
            self._waiting = asyncio.create_task(self._report_waiting())
            try:
                await until_stopped(self._stop, self._start_kafka())  # steps 2, 3
                if not self._stop.is_set():
                    self._say("starting the engine and the gateway")
                    children = [self._engine.run(), self._gateway.run()]  # step 4
                    children += [self._report_ready(started), self._serve_console(), self._stand_by()]  # steps 5, 6
                    priority = EnginePriority.of(self._options.nice, os.getpid(), self._working_engine)
                    await until_stopped(self._stop, self._watch_kafka(), priority.run(), *children)
            finally:
                self._waiting.cancel()
                await self._stop_all()

    def _new_kafka(self) -> EmbeddedKafka:
        asked = self._options.kafka_port
        preferred = self._ports.choose(_KAFKA, preferred=_KAFKA_PORT) if asked is None else 0
        return EmbeddedKafka(self._data_dir, port=asked or 0, preferred_port=preferred, jars=self._jars)

    async def _start_kafka(self) -> None:
        self._say("starting Kafka (one broker: its data survives killed processes, not a lost disk)")
        # The pool's threads live until the loop is closed, so the thread that starts the broker outlives it (child_process.py).
        await asyncio.to_thread(self._kafka.start)
        if self._options.kafka_port is None:
            self._ports.remember(_KAFKA, self._kafka.port)
        settings = load_settings(self._options.config, self._overrides())
        report = await asyncio.to_thread(self._ensure_topics, settings)
        for warning in report.warnings:
            self._say(f"warning: {warning}")

    def _ensure_topics(self, settings: Settings) -> TopicReport:
        """Creates the topics. A broker of a busy machine may give its first answers late, so a living one is asked again."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ensure_topics(settings)
            except KafkaUnreachable as error:
                may_pass = getattr(error.__cause__, "retriable", False)
                if not may_pass or not self._kafka.is_running or time.monotonic() > deadline_s:
                    raise
                self._say(f"{error} Trying again.")

    async def _report_waiting(self) -> None:
        """Says every few seconds what is waited for. Cancel it when a device can connect."""
        while True:
            await asyncio.sleep(_REPORT_WAITING_S)
            started = [child for child in (self._engine, self._gateway) if child.pid is not None]
            waiting = [f"the {child.name}" for child in started if not child.ready.is_set()]
            self._say(f"waiting for {' and '.join(waiting) if started else 'Kafka'}")

    async def _report_ready(self, started: float) -> None:
        await self._devices_can_connect()
        self._waiting.cancel()
        self._write_endpoints()
        self._say(f"ready after {time.monotonic() - started:.1f} s; logs are in {self._logs}; stop with Ctrl-C")
        self._announce(self._endpoints())

    async def _devices_can_connect(self) -> None:
        for child in self._engine, self._gateway:
            await child.ready.wait()

    async def _serve_console(self) -> None:
        """Serves the console once the others are ready, because it would slow their start. They go on without it."""
        if not self._options.console:
            return
        await self._devices_can_connect()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._console.run())
                tasks.create_task(self._report_console())
        except* ChildProcessFailed as failed:
            self._say(f"warning: there is no console: {failed.exceptions[0]}")

    async def _stand_by(self) -> None:
        """Starts the standby once the others are ready, because it would slow their start. They go on without it."""
        if not self._options.standby:
            return
        await self._devices_can_connect()
        try:
            await self._standby.run()
        except ChildProcessFailed as error:
            self._say(f"warning: there is no standby: {error}")

    async def _report_console(self) -> None:
        await self._console.ready.wait()
        self._write_endpoints()
        address = self._console.words["console"].rstrip("/")
        if self._options.is_console_port_free:
            self._ports.remember(_CONSOLE, int(address.rpartition(":")[2]))
        self._say(f"the console is at {self._console.words['console']}")

    async def _watch_kafka(self) -> None:
        pause_s = FIRST_PAUSE_S
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
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                self._write_endpoints()
                self._say("Kafka is back")

    async def _stop_all(self) -> None:
        """Stops console, gateway, engines and Kafka, each after the one that writes to it; first the engine that waits."""
        at_work_last = sorted((self._engine, self._standby), key=lambda child: child.role == _ENGINE)
        for child in self._console, self._gateway, *at_work_last:
            await child.stop(_STOP_TIMEOUT_S)
        self._say("stopping Kafka")
        await asyncio.to_thread(self._kafka.stop)
        Endpoints.remove(self._data_dir)

    def _full_disk(self) -> str:
        """Names a full disk, for people, because a log on it says nothing; empty if there is room."""
        folders = (self._data_dir, self._data_dir / "kafka" / "data", self._data_dir / "checkpoint")
        full = next((folder for folder in folders if is_full(str(folder))), None)
        return "" if full is None else f". The disk of {full} is full: make room there, and it goes on by itself"

    def _engine_hint(self) -> str:
        """Names a full disk, or what the engine dies of each time, for people; empty for a single accident."""
        ends = EngineEnds.read(self._data_dir)
        repeated = f". {ends}. To do: {ends.action}. Start `inflight up` again after that" if ends.is_repeated else ""
        return self._full_disk() or repeated

    def _longest_engine_pause_s(self) -> float:
        """Restarts an engine that ends each time at the same records ever more rarely."""
        return _REPEATED_PAUSE_S if EngineEnds.read(self._data_dir).is_repeated else LONGEST_PAUSE_S

    def _gateway_arguments(self) -> list[str]:
        # A restarted gateway listens where the first one did, although any free port was asked for: devices come back there.
        port = self._gateway.words.get("mqtt", "").rpartition(":")[2] or self._options.mqtt_port
        if port == 0:
            port = free_port()
        return ["gateway", *self._common_arguments(), *([] if port is None else ["--set", f"gateway.port={port}"])]

    def _console_arguments(self) -> list[str]:
        # As with the gateway: an open page finds a restarted console where the first one was.
        port = self._console.words.get("console", "").rstrip("/").rpartition(":")[2]
        if not port and self._options.is_console_port_free:
            port = str(self._ports.choose(_CONSOLE))
        return ["console", *self._common_arguments(), *(["--set", f"console.port={port}"] if port else [])]

    def _common_arguments(self) -> list[str]:
        config = [] if self._options.config is None else ["--config", str(self._options.config)]
        return [*config, *(word for override in self._overrides() for word in ("--set", override))]

    def _overrides(self) -> list[str]:
        return [
            # A gateway that comes back under its old name gets its partitions at once; a flag of the user comes later and wins.
            "gateway.group_instance_id=up",
            "gateway.drain_ms=0",  # its devices have no other gateway
            *self._options.defaults,
            *self._options.overrides,
            f"engine.data_dir={self._data_dir}",
            f"kafka.bootstrap_servers={self._kafka.bootstrap_servers}",
            "kafka.security_protocol=PLAINTEXT",
        ]

    def _endpoints(self) -> Endpoints:
        running = {name: child.pid for name, child in self._children().items() if child.pid is not None}
        if self._kafka.is_running:
            running["kafka"] = self._kafka.pid
        return Endpoints(
            mqtt=self._gateway.words.get("mqtt", ""),
            listeners=self._gateway.words.get("listeners", ""),
            kafka=self._kafka.bootstrap_servers,
            pids={"up": os.getpid(), **running},
            metrics={
                served: address
                for name, child in self._children().items()
                if name != STANDBY or child.role  # nobody misses a standby that is being started again
                for served, address in child.metrics(name)
            },
            console="" if self._console.pid is None else self._console.words.get("console", ""),
            config="" if self._options.config is None else str(self._options.config.absolute()),
            overrides=list(self._options.overrides),
        )

    def _child(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        *,
        hint: Callable[[], str],
        nice: int = 0,
        longest_pause_s: Callable[[], float] = lambda: LONGEST_PAUSE_S,
        may_restart: Callable[[], bool] = lambda: True,
    ) -> SupervisedChild:
        return SupervisedChild(
            name,
            arguments,
            say=self._say,
            log=self._logs / f"{name}.log",
            nice=nice,
            on_change=self._write_endpoints,
            hint=hint,
            longest_pause_s=longest_pause_s,
            may_restart=may_restart,
        )

    def _engine_child(self, name: str, overrides: Sequence[str] = ()) -> SupervisedChild:
        own = [word for override in overrides for word in ("--set", override)]
        if self._options.standby:
            own.append("--standby")

        def arguments() -> list[str]:
            """The loss is accepted that an operator knows of, and none that comes while this runs."""
            accepts = self._options.accept_loss and not self._engine.ready.is_set()
            return ["engine", *self._common_arguments(), *own, *(["--accept-loss"] if accepts else [])]

        def is_nobody_about_to_take_over() -> bool:
            """A start beside a takeover would take its processor time."""
            return STANDBY not in (self._engine.role, self._standby.role)

        return self._child(
            name,
            arguments,
            may_restart=is_nobody_about_to_take_over,
            nice=self._options.nice,
            hint=self._engine_hint,
            longest_pause_s=self._longest_engine_pause_s,
        )

    def _children(self) -> Mapping[str, SupervisedChild]:
        """Returns them by what they do now: an engine that has taken over is the engine."""
        has_taken_over = self._standby.pid is not None and self._standby.role == _ENGINE
        engine, standby = (self._standby, self._engine) if has_taken_over else (self._engine, self._standby)
        return {_ENGINE: engine, "gateway": self._gateway, "console": self._console, STANDBY: standby}

    def _working_engine(self) -> int | None:
        """Returns the process that works as the engine; None = none does."""
        return next((child.pid for child in (self._engine, self._standby) if child.role == _ENGINE), None)

    def _write_endpoints(self) -> None:
        """Writes the file once everything has been ready: other processes may then talk to us."""
        if self._engine.ready.is_set() and self._gateway.ready.is_set():
            try:
                self._endpoints().write(self._data_dir)
            except OSError as error:
                self._say(f"warning: {error}; `inflight status` does not see which processes run until the next one is ready")
