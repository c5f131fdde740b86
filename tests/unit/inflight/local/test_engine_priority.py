import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from inflight.local.engine_priority import EnginePriority, OtherPrograms
from streaming.engine.watching.processes import machine_seconds, processor_seconds, session_nice
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

HAS_AUTOGROUPS = session_nice(0) is not None


def readings(*rows: tuple[float, float, float]) -> OtherPrograms:
    """Each row: seconds of the machine, of ours, of the clock."""
    columns = zip(*rows, strict=True)
    machine, own, clock = (iter(column) for column in columns)
    return OtherPrograms(lambda: next(machine), lambda: next(own), lambda: next(clock))


def test_what_others_use_is_what_the_machine_does_beside_us() -> None:
    others = readings((10.0, 4.0, 100.0), (13.0, 5.0, 102.0), (14.0, 6.5, 104.0))
    assert others.processors() == 1.0
    assert others.processors() == 0.0, "rounding makes no time negative"


def test_a_process_of_ours_that_has_ended_does_not_count_as_another_program() -> None:
    others = readings((10.0, 4.0, 100.0), (12.0, 1.0, 102.0), (14.0, 1.5, 104.0))
    assert others.processors() == 0.0
    assert others.processors() == 0.75


def test_a_child_of_ours_is_no_other_program() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            with_it = OtherPrograms(machine_seconds, lambda: 0.0)
            without_it = OtherPrograms(machine_seconds, lambda: processor_seconds(os.getpid()))
            wait_until(lambda: processor_seconds(loop.pid) > 0.5, "it works")
            assert with_it.processors() > without_it.processors() + 0.05
        finally:
            loop.kill()


@pytest.fixture
def engine() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


class Scripted(OtherPrograms):
    def __init__(self, processors: Callable[[], float]) -> None:
        self._processors = processors

    def processors(self) -> float:
        return self._processors()


@pytest.mark.skipif(not HAS_AUTOGROUPS, reason="this kernel shares the processor among processes, whatever their session")
def test_the_engine_stands_back_unless_others_are_busy(engine: int) -> None:
    found: list[float] = []
    priority = EnginePriority(10, lambda: engine, Scripted(lambda: found.pop(0)))

    def looked(*processors: float) -> int | None:
        found.extend(processors)
        while found:
            priority.look()
        return session_nice(engine)

    def settled(nice: int, processors: float) -> bool:
        """The kernel allows ten changes a second on the whole machine, so the next look may have to change it."""
        return looked(processors) == nice

    wait_until(lambda: settled(10, 0.1), "it stands back")
    assert looked(1.0, 1.0, 0.1, 1.0, 1.0) == 10, "a program that only starts is not busy"
    wait_until(lambda: settled(0, 1.0), "it does not behind others")
    assert looked(0.1, 0.1, 0.1, 0.1) == 0, "they may be busy again at once"
    wait_until(lambda: settled(10, 0.1), "it stands back again")


@pytest.mark.skipif(not HAS_AUTOGROUPS, reason="this kernel shares the processor among processes, whatever their session")
def test_an_engine_that_starts_is_left_alone() -> None:
    before = session_nice(0)
    EnginePriority(10, lambda: None, Scripted(lambda: 0.0)).look()
    assert session_nice(0) == before


async def test_there_is_nothing_to_do_without_a_nice_value() -> None:
    await EnginePriority(0, lambda: None, Scripted(lambda: 0.0)).run()
