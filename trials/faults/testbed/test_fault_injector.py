"""trials/faults/testbed/fault_injector.py: what is done is undone, also when the run ends early, and is noted."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import psutil
import pytest

from tests.support.waiting import until
from trials.faults.plan.faults import Fault, Incident, Kind, Part, Victim
from trials.faults.testbed.fault_injector import FaultInjector
from trials.faults.testbed.testbed import Testbed

SHORT_S = 0.05
LONG_S = 60.0


class Calls:
    """Notes every call, with the name of its receiver. A call returns when it may."""

    def __init__(self, testbed: "FakeTestbed", name: str) -> None:
        self._testbed, self._name = testbed, name

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: object) -> None:
            self._testbed.calls.append(" ".join(map(str, (self._name, verb, *arguments))))
            assert self._testbed.may_go_on.wait(LONG_S)

        return call


class FakeTestbed:
    def __init__(self, process: psutil.Process | None = None) -> None:
        self.calls: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._process = process
        self.working_engine = self.next_engine = Victim.ENGINE
        self.has_standby = False

    async def until_engine_works(self, since_s: float) -> float:
        self.calls.append("the engine works")
        self.working_engine = self.next_engine
        return since_s + 2

    async def processes(self, fault: Fault) -> list[psutil.Process]:
        assert self._process is not None
        return [self._process]

    def proxy(self, fault: Fault) -> Calls:
        return Calls(self, f"proxy of {fault.victim}")

    def disk(self, victim: Victim) -> Calls:
        return Calls(self, f"disk of {victim}")

    def clock(self, victim: Victim) -> Calls:
        return Calls(self, f"clock of {victim}")

    def transaction(self) -> Calls:
        return Calls(self, "transaction")


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        yield psutil.Process(child.pid)
        child.kill()


def fault(kind: Kind, *, victim: Victim = Victim.GATEWAY_A, lasts_s: float = SHORT_S, by_s: float = 0.0) -> Fault:
    return Fault(victim=victim, kind=kind, part=Part.KAFKA, lasts_s=lasts_s, by_s=by_s)


def inject(testbed: FakeTestbed, *faults: Fault) -> FaultInjector:
    injector = FaultInjector(cast(Testbed, testbed))
    asyncio.run(injector.inject(Incident(faults=faults, rest_s=0.0)))
    return injector


@pytest.mark.parametrize(
    ("done", "began", "ended"),
    [
        (fault(Kind.CUT), "proxy of gateway a cut", "proxy of gateway a mend"),
        (fault(Kind.STALL), "proxy of gateway a stall", "proxy of gateway a mend"),
        (fault(Kind.DELAY, by_s=0.5), "proxy of gateway a delay 0.5", "proxy of gateway a mend"),
        (fault(Kind.FULL_DISK), "disk of gateway a fill", "disk of gateway a free"),
        (fault(Kind.OPEN_TRANSACTION), "transaction begin", "transaction abort"),
        (fault(Kind.CLOCK_STEP, by_s=-7.0), "clock of gateway a step -7.0", "clock of gateway a step 0.0"),
    ],
)
def test_what_lasts_begins_and_ends_and_then_the_engine_has_to_work(done: Fault, began: str, ended: str) -> None:
    testbed = FakeTestbed()
    injector = inject(testbed, done)
    assert testbed.calls == [began, ended, "the engine works"]
    (suffered,) = injector.suffered
    assert suffered.fault is done
    assert suffered.alone
    assert suffered.ended_s - suffered.began_s >= SHORT_S
    assert injector.outages == [], "a gateway keeps no engine from its work"


def test_two_faults_of_an_incident_are_a_pair_and_one_outage() -> None:
    injector = inject(FakeTestbed(), fault(Kind.CUT, victim=Victim.ENGINE), fault(Kind.FULL_DISK, victim=Victim.KAFKA))
    assert [suffered.alone for suffered in injector.suffered] == [False, False]
    assert len(injector.outages) == 1


@pytest.mark.processes
def test_the_time_of_a_takeover_counts_from_the_kill(process: psutil.Process) -> None:
    testbed = FakeTestbed(process)
    testbed.has_standby, testbed.next_engine = True, Victim.STANDBY
    killed = fault(Kind.KILL, victim=Victim.ENGINE)
    (takeover,) = inject(testbed, killed).takeovers
    assert takeover.by_standby
    assert takeover.works_s - takeover.died_s == pytest.approx(2)
    assert not inject(testbed, killed).takeovers[0].by_standby, "the same engine was back"
    assert inject(testbed, killed, fault(Kind.CUT)).takeovers == []
    assert inject(testbed, fault(Kind.FREEZE, victim=Victim.ENGINE)).takeovers == []


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.FULL_DISK, Kind.CLOCK_STEP, Kind.OPEN_TRANSACTION])
def test_a_run_that_ends_early_leaves_nothing_behind(kind: Kind) -> None:
    testbed = FakeTestbed()

    async def run() -> None:
        injector = FaultInjector(cast(Testbed, testbed))
        injecting = asyncio.create_task(injector.inject(Incident(faults=(fault(kind, lasts_s=LONG_S),), rest_s=0.0)))
        await until(lambda: testbed.calls, "it has begun")
        injecting.cancel()
        await asyncio.gather(injecting, return_exceptions=True)

    asyncio.run(run())
    assert len(testbed.calls) == 2


@pytest.mark.parametrize(("kind", "done"), [(Kind.FULL_DISK, ["fill", "free"]), (Kind.OPEN_TRANSACTION, ["begin", "abort"])])
def test_a_run_that_ends_while_a_fault_begins_leaves_nothing_behind(kind: Kind, done: list[str]) -> None:
    testbed = FakeTestbed()
    testbed.may_go_on.clear()

    async def run() -> None:
        injector = FaultInjector(cast(Testbed, testbed))
        injecting = asyncio.create_task(injector.inject(Incident(faults=(fault(kind, lasts_s=LONG_S),), rest_s=0.0)))
        await until(lambda: testbed.calls, "it begins")
        injecting.cancel()
        await asyncio.wait([injecting], timeout=SHORT_S)
        testbed.may_go_on.set()
        await asyncio.gather(injecting, return_exceptions=True)

    asyncio.run(run())
    assert [call.rpartition(" ")[2] for call in testbed.calls] == done


@pytest.mark.processes
@pytest.mark.parametrize("kind", [Kind.KILL, Kind.FREEZE_AND_KILL])
def test_a_process_is_killed(kind: Kind, process: psutil.Process) -> None:
    inject(FakeTestbed(process), fault(kind))
    assert process.wait(10) is not None


@pytest.mark.processes
def test_a_frozen_process_goes_on(process: psutil.Process) -> None:
    async def run() -> str:
        incident = Incident(faults=(fault(Kind.FREEZE, lasts_s=1.0),), rest_s=0.0)
        freezing = asyncio.create_task(FaultInjector(cast(Testbed, FakeTestbed(process))).inject(incident))
        await until(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still")
        await freezing
        return process.status()

    assert asyncio.run(run()) != psutil.STATUS_STOPPED
