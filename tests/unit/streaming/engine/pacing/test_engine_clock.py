import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from streaming.engine.pacing.engine_clock import STEP_MS, EngineClock, elapsed_ms

HOUR_MS, BATCH_MS = 3_600_000, 200


class Machine:
    """A machine with two clocks."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000_000
        self.elapsed = 5_000

    def passes(self, ms: int) -> None:
        self.wall += ms
        self.elapsed += ms

    def clock(self, from_ms: int = 0) -> EngineClock:
        return EngineClock(from_ms, wall_ms=lambda: self.wall, elapsed_ms=lambda: self.elapsed)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_it_is_the_wall_clock_while_that_does_not_jump(machine: Machine) -> None:
    clock = machine.clock()
    for _ in range(100):
        machine.passes(BATCH_MS)
        machine.wall += 1  # it is a little fast
        assert clock.now_ms() == machine.wall


def test_a_machine_that_slept_has_the_time_of_the_wall_clock_at_once(machine: Machine) -> None:
    clock = machine.clock()
    machine.passes(8 * HOUR_MS)
    with capture_logs() as logs:
        assert clock.now_ms() == machine.wall
    assert not logs


def test_a_small_step_forward_is_followed_at_once(machine: Machine) -> None:
    clock = machine.clock()
    machine.passes(BATCH_MS)
    machine.wall += STEP_MS
    assert clock.now_ms() == machine.wall


def test_a_jump_forward_by_hours_is_followed_at_twice_the_speed_of_time(machine: Machine) -> None:
    clock = machine.clock()
    before = clock.now_ms()
    machine.wall += 3 * HOUR_MS
    with capture_logs() as logs:
        machine.passes(BATCH_MS)
        assert clock.now_ms() - before <= 2 * BATCH_MS + STEP_MS
        assert [(entry["event"], entry["by_s"]) for entry in logs] == [("clock_jumped", 3 * 3_600)]
        for _ in range(60):
            machine.passes(60_000)
            now = clock.now_ms()
        assert 0 <= now - before - 2 * HOUR_MS <= STEP_MS + 2 * BATCH_MS
        while clock.now_ms() != machine.wall:
            machine.passes(60_000)
    assert [entry["event"] for entry in logs] == ["clock_jumped", "clock_caught_up"]


def test_a_jump_back_slows_time_down_and_never_turns_it_back(machine: Machine) -> None:
    clock = machine.clock()
    before = clock.now_ms()
    machine.wall -= HOUR_MS
    with capture_logs() as logs:
        for _ in range(10):
            machine.passes(60_000)
            clock.now_ms()
        assert clock.now_ms() - before == 5 * 60_000
        while clock.now_ms() != machine.wall:
            machine.passes(60_000)
    assert [(entry["event"], entry.get("by_s")) for entry in logs] == [("clock_jumped", -3_600), ("clock_caught_up", None)]
    assert machine.elapsed - 5_000 == pytest.approx(2 * HOUR_MS, abs=60_000)


def test_a_jump_that_is_mended_soon_leaves_little_behind(machine: Machine) -> None:
    clock = machine.clock()
    machine.wall += 24 * HOUR_MS
    for _ in range(10):
        machine.passes(60_000)
        clock.now_ms()
    machine.wall -= 24 * HOUR_MS
    assert clock.now_ms() - machine.wall <= 10 * 60_000 + STEP_MS


@given(st.lists(st.tuples(st.integers(0, 2 * HOUR_MS), st.integers(-5 * HOUR_MS, 5 * HOUR_MS)), max_size=50))
@pytest.mark.promise("engine-clock")
def test_engine_time_never_goes_back_or_jumps(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    clock = machine.clock()
    readings = [(machine.elapsed, clock.now_ms())]
    for passed, jump in steps:
        machine.passes(passed)
        machine.wall += jump
        readings.append((machine.elapsed, clock.now_ms()))
    for number, (elapsed, now) in enumerate(readings):
        for later_elapsed, later in readings[number:]:
            assert (later_elapsed - elapsed) // 2 - len(steps) <= later - now <= 2 * (later_elapsed - elapsed) + STEP_MS


def test_a_restarted_engine_is_not_earlier_than_its_newest_micro_batch(machine: Machine) -> None:
    assert machine.clock(from_ms=machine.wall + 60_000).now_ms() == machine.wall + 60_000
    assert machine.clock(from_ms=machine.wall - 1).now_ms() == machine.wall


def test_the_machines_own_clock_passes() -> None:
    first = elapsed_ms()
    assert 0 <= elapsed_ms() - first < 60_000
