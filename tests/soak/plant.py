"""What is killed and frozen: `inflight up` and a second gateway beside it, as an operator runs it."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path

import psutil

from inflight.demo.up import UpProcess
from inflight.local.child_process import bound_to_parent, free_port, tail
from inflight.local.endpoints import Endpoints
from streaming.engine.progress import last_progress
from tests.soak.facts import Outage
from tests.soak.schedule import EXPIRY_S, LEASE_S, Fault, Harm, Part, Victim
from tests.support.waiting import until

_RESTART_S = 0.5
_RECOVERY_S = 240.0
_REST_S = 5.0
_LOOK_S = 0.1
_NAMES = {Victim.GATEWAY_A: "gateway", Victim.ENGINE: "engine", Victim.KAFKA: "kafka"}
"""Of the processes of `inflight up`."""
_OPTIONS = (
    f"gateway.lease_ms={LEASE_S}s",
    "gateway.group_session_timeout_ms=6s",
    "retry_interval=2s",
    # A queue that drops nothing, and a message that is tried for ever: every other outcome is the end of a session.
    "max_mqueue_len=0",
    "max_mqueue_bytes=0",
    "delivery_limit=-1",
)
_PROFILES = "".join(
    f'[[profiles]]\nclients = "{keeping}-*"\nsession_expiry_interval = "{EXPIRY_S}s"\n' for keeping in ("short", "clean")
)


class SecondGateway:
    """`inflight gateway` under a supervisor of our own. pid: None while it is being restarted."""

    def __init__(self, up: UpProcess, config: Path) -> None:
        self.port = free_port()
        self.pid: int | None = None
        self._log = up.data_dir / "logs" / "gateway-b.log"
        overrides = (*_OPTIONS, f"kafka.bootstrap_servers={up.kafka}", f"gateway.port={self.port}")
        words = [word for override in overrides for word in ("--set", override)]
        self._command = [sys.executable, "-m", "inflight", "gateway", "--config", str(config), *words]

    async def run(self) -> None:
        """Until cancelled; the process ends then, too."""
        while True:
            with self._log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *bound_to_parent(self._command), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
                )
                self.pid = process.pid
                try:
                    await process.wait()
                finally:
                    self.pid = None
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
            await asyncio.sleep(_RESTART_S)

    async def until_ready(self) -> None:
        async def answers() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return True
            return False

        deadline = time.monotonic() + _RECOVERY_S
        while not await answers():
            assert time.monotonic() < deadline, f"the second gateway does not listen:\n{tail(self._log)}"
            await asyncio.sleep(_LOOK_S)


class Plant:
    """All processes of a run. outages: of the engine, by its own account of its micro-batches. done: faults, with their times.

    done: (fault, when it began, when the process ran again or was killed), times in seconds since 1970.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outages: list[Outage] = []
        self.done: list[tuple[Fault, float, float]] = []
        self._frozen: set[psutil.Process] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        config = self.directory / "inflight.toml"
        config.write_text(_PROFILES, encoding="utf-8")
        words = [word for override in _OPTIONS for word in ("--set", override)]
        with UpProcess(self.directory / "data", "--config", str(config), *words) as self.up:
            self._second = SecondGateway(self.up, config)
            supervised = asyncio.create_task(self._second.run())
            try:
                await self._second.until_ready()
                yield
            finally:
                self.thaw_all()
                supervised.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await supervised

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        return {Victim.GATEWAY_A: self.up.mqtt, Victim.GATEWAY_B: ("127.0.0.1", self._second.port)}

    def logs(self) -> Iterable[Path]:
        return sorted((self.up.data_dir / "logs").glob("*.log"))

    async def harm(self, fault: Fault) -> None:
        """Carries a fault out, and returns when the victim works again, the engine, which needs Kafka, for some seconds."""
        processes = await self._processes(fault)
        began_s = time.time()
        if fault.harm is not Harm.KILL:
            self._signal(processes, signal.SIGSTOP)
            self._frozen.update(processes)
            try:
                await asyncio.sleep(fault.frozen_s)
            finally:
                if fault.harm is Harm.FREEZE:
                    self._signal(processes, signal.SIGCONT)
                self._frozen.difference_update(processes)
        if fault.harm is not Harm.FREEZE:
            self._signal(processes, signal.SIGKILL)
        ended_s = time.time()
        self.done.append((fault, began_s, ended_s))
        if fault.victim in (Victim.ENGINE, Victim.KAFKA):
            await self.until_engine_works(ended_s)
            self.outages.append(Outage(began_s=began_s, ended_s=time.time()))
            await asyncio.sleep(_REST_S)

    async def until_engine_works(self, since_s: float) -> None:
        """A micro-batch has begun and ended since then."""

        def works() -> bool:
            batch = last_progress(self.up.data_dir)
            return batch is not None and datetime.fromisoformat(batch.started).timestamp() > since_s

        await until(works, lambda: f"the engine works again:\n{self.up.log_tail('engine')}", within_s=_RECOVERY_S)

    def thaw_all(self) -> None:
        """Nothing stays frozen when a run ends early."""
        self._signal(self._frozen, signal.SIGCONT)
        self._frozen.clear()

    async def _processes(self, fault: Fault) -> list[psutil.Process]:
        """The victim's; waits for one that is just being restarted."""
        await until(lambda: self._pid(fault.victim) is not None, f"{fault.victim} runs", within_s=_RECOVERY_S)
        try:
            process = psutil.Process(self._pid(fault.victim))
            family = process.children(recursive=True) if fault.victim is Victim.ENGINE else []
            jvm = [child for child in family if "java" in child.name()]
        except psutil.NoSuchProcess:
            return []
        if fault.part is Part.JVM and jvm:
            return jvm
        return [process, *family] if fault.part is Part.ALL else [process]

    def _pid(self, victim: Victim) -> int | None:
        if victim is Victim.GATEWAY_B:
            return self._second.pid
        pid = Endpoints.read(self.up.data_dir).pids.get(_NAMES[victim])
        return pid if pid is not None and _runs(pid) else None

    @staticmethod
    def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.send_signal(number)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
