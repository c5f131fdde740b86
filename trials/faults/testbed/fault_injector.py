"""Carries out incidents on a testbed, and notes what was done when."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial

import psutil

from trials.faults.account.facts import Outage, Suffered, Takeover
from trials.faults.plan.faults import KILLS, ON_PROCESSES, STOPS_ENGINE, Fault, Incident, Kind, Victim
from trials.faults.testbed.shape import Shape
from trials.faults.testbed.testbed import Testbed


class FaultInjector:
    """suffered: what was done so far. outages: of the engine, by its own account of its micro-batches. takeovers: after kills."""

    def __init__(self, testbed: Testbed) -> None:
        self.suffered: list[Suffered] = []
        self.outages: list[Outage] = []
        self.takeovers: list[Takeover] = []
        self._testbed = testbed

    @property
    def is_complete(self) -> bool:
        """Says that a standby waits, where there is to be one."""
        return self._testbed.has_standby or self._testbed.shape is not Shape.STANDBY

    async def inject(self, incident: Incident) -> None:
        """Returns when it is over and the engine works again. Raises AssertionError when that takes very long."""
        began_s = time.time()
        alone = len(incident.faults) == 1
        worker, has_standby = self._testbed.working_engine, self._testbed.has_standby
        async with asyncio.TaskGroup() as tasks:
            for fault in incident.faults:
                tasks.create_task(self._inject(fault, alone=alone))
        died_s = time.time()
        works_s = await self._testbed.until_engine_works(died_s)
        (first, *_) = incident.faults
        if alone and has_standby and first.victim is Victim.ENGINE and first.kind in KILLS:
            by_standby = self._testbed.working_engine is not worker
            self.takeovers.append(Takeover(died_s=died_s, works_s=works_s, by_standby=by_standby))
        if any(fault.victim in STOPS_ENGINE for fault in incident.faults):
            self.outages.append(Outage(began_s=began_s, ended_s=time.time()))

    async def _inject(self, fault: Fault, *, alone: bool) -> None:
        await asyncio.sleep(fault.after_s)
        if fault.kind in ON_PROCESSES:
            began_s = await self._on_processes(fault)
        else:
            began_s = await self._for_a_while(fault, *self._switch(fault))
        self.suffered.append(Suffered(fault=fault, began_s=began_s, ended_s=time.time(), alone=alone))

    async def _on_processes(self, fault: Fault) -> float:
        """Returns when it began."""
        processes = await self._testbed.processes(fault)
        began_s = time.time()
        if fault.kind is not Kind.KILL:
            _signal(processes, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:  # nothing stays frozen when a run ends early
                _signal(processes, signal.SIGCONT if fault.kind is Kind.FREEZE else signal.SIGKILL)
        else:
            _signal(processes, signal.SIGKILL)
        return began_s

    @staticmethod
    async def _for_a_while(fault: Fault, begin: Callable[[], None], end: Callable[[], None]) -> float:
        """Returns when it began."""
        blocks = fault.kind in (Kind.FULL_DISK, Kind.OPEN_TRANSACTION)

        async def called() -> None:
            await asyncio.to_thread(begin) if blocks else begin()

        beginning = asyncio.create_task(called())
        try:
            await asyncio.shield(beginning)
            began_s = time.time()
            await asyncio.sleep(fault.lasts_s)
        finally:
            await beginning  # a run that ends early does not stop a thread: what it begins now has to end, too
            end()
        return began_s

    def _switch(self, fault: Fault) -> tuple[Callable[[], None], Callable[[], None]]:
        if fault.kind is Kind.FULL_DISK:
            disk = self._testbed.disk(fault.victim)
            return disk.fill, disk.free
        if fault.kind is Kind.CLOCK_STEP:
            clock = self._testbed.clock(fault.victim)
            return partial(clock.step, fault.by_s), partial(clock.step, 0.0)
        if fault.kind is Kind.OPEN_TRANSACTION:
            transaction = self._testbed.transaction()
            return transaction.begin, transaction.abort
        proxy = self._testbed.proxy(fault)
        begin: dict[Kind, Callable[[], None]] = {
            Kind.CUT: proxy.cut,
            Kind.STALL: proxy.stall,
            Kind.DELAY: partial(proxy.delay, fault.by_s),
        }
        return begin[fault.kind], proxy.mend


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(number)
