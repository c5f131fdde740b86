"""Runs Kafka, the engine and two gateways or bridges. Each is a process of its own that is restarted whenever it ends.

A proxy is on each connection to Kafka, and between each gateway and its devices, or each bridge and the broker.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from datetime import datetime
from pathlib import Path

import psutil

from inflight.local.child_process import free_port, tail
from streaming.config.settings import load_settings
from streaming.engine.progress import last_progress
from streaming.topics import ensure_topics
from tests.integration.engine.spark_cluster import SparkCluster
from tests.support.mosquitto import Mosquitto
from tests.support.small_disk import SmallDisk
from tests.support.waiting import until
from trials.faults.plan.faults import ENGINES, SUFFERS, Fault, Kind, Part, Victim
from trials.faults.testbed.clock import Clock, compiler
from trials.faults.testbed.kafka import SupervisedKafka
from trials.faults.testbed.open_transaction import OpenTransaction
from trials.faults.testbed.proxy import HOST, Proxy
from trials.faults.testbed.recreated_topic import recreate_topic
from trials.faults.testbed.shape import PROFILES, Shape, end_commands, engine_commands
from trials.faults.testbed.supervised import Supervised

RECOVERY_S = 240.0
_DISKS = {Victim.KAFKA: Path("kafka/data"), Victim.ENGINE: Path("engine")}
_DISK_BYTES = 1 << 30


class Testbed:
    """Runs all processes of a run, in a directory of their own. shape: which they are."""

    __test__ = False  # its name begins as pytest's test classes do

    def __init__(self, directory: Path, shape: Shape = Shape.LOCAL) -> None:
        """Raises MissingPrerequisite where Mosquitto is needed and not installed."""
        self.directory = directory
        self.engine_dir = directory / "engine"
        self.shape = shape
        self._logs = directory / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._kafka = SupervisedKafka(directory, shape.on_kafka)
        self._broker = Mosquitto(directory) if shape is Shape.BRIDGE else None
        self._ports = {end: free_port() if self._broker is None else self._broker.port for end in shape.ends}
        self._proxies = {end: Proxy(port) for end, port in self._ports.items()}
        self._processes: dict[Victim, Supervised] = {}
        self._clocks: dict[Victim, Clock] = {}
        self._disks: dict[Victim, SmallDisk] = {}
        self._cluster: SparkCluster | None = None
        self._has_disks = SmallDisk.can_be_mounted()

    @property
    def impossible(self) -> Mapping[Kind, str]:
        """Kinds of faults that this machine does not have, and why, for people."""
        missing = {} if self._has_disks else {Kind.FULL_DISK: "only root may mount a tmpfs"}
        return missing if compiler() else missing | {Kind.CLOCK_STEP: "no C compiler was found (cc, gcc)"}

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Returns the addresses for devices: of the gateways, or of the broker."""
        if self._broker is not None:
            return {Victim.BROKER: (self._broker.host, self._broker.port)}
        return {end: proxy.address for end, proxy in self._proxies.items()}

    @property
    def bootstrap_servers(self) -> str:
        """Returns the address for the account's consumers: no fault but Kafka's own reaches them."""
        return self._kafka.bootstrap_servers

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with ExitStack() as disks:
            self._mount(disks)
            if self._broker is not None:
                disks.enter_context(self._broker)
            async with AsyncExitStack() as stack:
                for proxy in self._proxies.values():
                    await stack.enter_async_context(proxy)
                await stack.enter_async_context(self._kafka)
                if self.shape is Shape.CLUSTER:
                    self._cluster = disks.enter_context(SparkCluster(self.directory / "cluster", workers=2))
                await self._start(stack)
                yield

    def _mount(self, stack: ExitStack) -> None:
        for victim, place in _DISKS.items() if self._has_disks else ():
            self._disks[victim] = stack.enter_context(SmallDisk(self.directory / place, size_bytes=_DISK_BYTES))

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self.directory / "inflight.toml"
        config.write_text(PROFILES, encoding="utf-8")
        settings = load_settings(config, [*self.shape.overrides, f"kafka.bootstrap_servers={self.bootstrap_servers}"])
        self._messages = settings.topics.messages
        await asyncio.to_thread(ensure_topics, settings)
        to_broker = self._ports if self._broker is None else {end: proxy.port for end, proxy in self._proxies.items()}
        master = "" if self._cluster is None else self._cluster.url
        commands = engine_commands(self.shape, self.engine_dir, master)
        options = ["--standby"] if len(commands) > 1 else []
        engines = tuple(commands)
        commands |= end_commands(self.shape, to_broker)
        for victim, (command, *overrides) in commands.items():
            overrides = [*self.shape.overrides, f"kafka.bootstrap_servers={HOST}:{self._kafka.ways[victim].port}", *overrides]
            arguments = [command, "--config", str(config), *(word for override in overrides for word in ("--set", override))]
            arguments += options if victim in engines else []
            log = self._logs / f"{victim}.log"
            self._processes[victim] = Supervised(victim, arguments, log, environment=self._clock(victim))
        for victim, process in self._processes.items():
            if victim is Victim.STANDBY:
                await self._processes[Victim.ENGINE].until_ready()
            supervised = asyncio.create_task(process.run())
            stack.push_async_callback(_end, supervised)
        for process in self._processes.values():
            await process.until_ready()

    def _clock(self, victim: Victim) -> Mapping[str, str]:
        if Kind.CLOCK_STEP not in SUFFERS[victim] or not compiler():
            return {}
        self._clocks[victim] = Clock(self.directory / f"{victim}.clock")
        return self._clocks[victim].environment

    # --- what a fault is done to ------------------------------------------------------------------------------------------------

    async def processes(self, fault: Fault) -> list[psutil.Process]:
        """The victim's; waits for one that is just being restarted. Empty: it has just died."""
        if fault.victim is Victim.EXECUTOR:
            cluster = self._cluster
            assert cluster is not None
            return await until(lambda: cluster.executors()[:1], "an executor runs", within_s=RECOVERY_S)
        pid = await until(lambda: self._pid(fault.victim), f"{fault.victim} runs", within_s=RECOVERY_S)
        try:
            process = psutil.Process(pid)
            family = process.children(recursive=True) if fault.victim in ENGINES else []
            jvm = [child for child in family if "java" in child.name()]
        except psutil.NoSuchProcess:
            return []
        if fault.part is Part.JVM and jvm:
            return jvm
        return [process, *family] if fault.part is Part.ALL else [process]

    def proxy(self, fault: Fault) -> Proxy:
        return self._kafka.ways[self._in_role(fault.victim)] if fault.part is Part.KAFKA else self._proxies[fault.victim]

    def disk(self, victim: Victim) -> SmallDisk:
        return self._disks[victim]

    def clock(self, victim: Victim) -> Clock:
        return self._clocks[victim]

    def transaction(self) -> OpenTransaction:
        return OpenTransaction(self.bootstrap_servers, self._messages)

    @property
    def working_engine(self) -> Victim | None:
        """Returns the name under which the engine began that works now; None = it has not said so yet, or an earlier one has not
        ended yet."""
        found = [victim for victim in ENGINES if self._role(victim) == Victim.ENGINE]
        return found[0] if len(found) == 1 else None

    @property
    def has_standby(self) -> bool:
        """Says that an engine waits, warm."""
        return any(self._role(victim) == Victim.STANDBY for victim in ENGINES)

    def _role(self, victim: Victim) -> str:
        process = self._processes.get(victim)
        return "" if process is None else process.role

    async def until_engine_works(self, since_s: float) -> float:
        """Two micro-batches have begun and ended since then: the first one after a kill repeats the one that was interrupted, and
        the next one reads what has come meanwhile. Returns when the first one began. The engine has said that it works."""
        first: list[tuple[float, int]] = []

        def works() -> float | None:
            batch = last_progress(self.engine_dir)
            began_s = 0.0 if batch is None else datetime.fromisoformat(batch.started).timestamp()
            if batch is None or began_s <= since_s or not self.working_engine:
                return None
            if not first:
                first.append((began_s, batch.batch_id))
            return first[0][0] if batch.batch_id > first[0][1] else None

        def log() -> str:
            return f"the engine works again:\n{tail(self._logs / f'{self._in_role(Victim.ENGINE)}.log')}"

        began_s = await until(works, log, within_s=RECOVERY_S)
        assert began_s is not None
        return began_s

    async def until_engine_refuses_a_new_topic(self) -> str:
        """Deletes the topic of the messages and makes it anew. Returns what the engine says when it stops.

        Raises AssertionError if it goes on.
        """
        log = self._logs / f"{self._in_role(Victim.ENGINE)}.log"
        known_bytes = log.stat().st_size
        await asyncio.to_thread(recreate_topic, self.bootstrap_servers, self._messages)

        def refusal() -> str | None:
            with log.open("rb") as file:
                file.seek(known_bytes)
                lines = file.read().decode(errors="replace").splitlines()
            return next((line.strip() for line in lines if f"{self._messages}: deleted and made anew" in line), None)

        found = await until(refusal, lambda: f"the engine refuses the new topic:\n{tail(log)}", within_s=RECOVERY_S)
        assert found is not None
        return found

    def _pid(self, victim: Victim) -> int | None:
        if victim is Victim.BROKER:
            return None if self._broker is None else self._broker.pid
        return self._kafka.pid if victim is Victim.KAFKA else self._processes[self._in_role(victim)].pid

    def _in_role(self, victim: Victim) -> Victim:
        """Returns the name under which the process began that has this role now."""
        if victim not in ENGINES or self._role(Victim.STANDBY) != Victim.ENGINE:
            return victim
        return Victim.STANDBY if victim is Victim.ENGINE else Victim.ENGINE


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
