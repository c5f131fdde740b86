"""inflight.local.start_watch: a slow start is not a dead one."""

import pytest

from inflight.local import start_watch
from inflight.local.start_watch import StartWatch


class Machine:
    """A clock, and what a process of it has used so far, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.worked_s = self.waited_s = 0.0
        monkeypatch.setattr(start_watch, "processor_seconds", lambda pid: self.worked_s)
        monkeypatch.setattr(start_watch, "runnable_seconds", lambda pid: self.worked_s + self.waited_s)

    def watch(self) -> StartWatch:
        return StartWatch(1, patience_s=180, monotonic_s=lambda: self.now_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_start_that_works_has_more_time(machine: Machine) -> None:
    watch = machine.watch()
    for _ in range(10):
        machine.now_s += 180
        machine.worked_s += 60
        assert watch.is_stuck() is False
    assert watch.waited_s == 1_800


def test_a_start_that_waits_for_a_processor_has_more_time(machine: Machine) -> None:
    """At load 20 on two processors, and with a nice value of 10, it gets one percent of them."""
    watch = machine.watch()
    for _ in range(10):
        machine.now_s += 180
        machine.worked_s += 2
        machine.waited_s += 170
        assert watch.is_stuck() is False


def test_a_start_that_stops_to_work_is_stuck(machine: Machine) -> None:
    watch = machine.watch()
    machine.now_s, machine.worked_s = 180, 60
    assert watch.is_stuck() is False
    machine.now_s, machine.worked_s, machine.waited_s = 360, 61, 2
    assert watch.is_stuck() is True


def test_threads_that_have_ended_do_not_make_a_start_stuck(machine: Machine) -> None:
    watch = machine.watch()
    machine.now_s, machine.worked_s, machine.waited_s = 180, 60, 100
    assert watch.is_stuck() is False
    machine.now_s, machine.worked_s, machine.waited_s = 360, 90, -80
    assert watch.is_stuck() is False


def test_nobody_is_judged_before_the_patience_is_over(machine: Machine) -> None:
    watch = machine.watch()
    machine.now_s = 179.9
    assert watch.is_stuck() is None
