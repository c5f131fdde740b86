from collections.abc import Callable

import pytest

from sinks.mqtt.limits.buffered import Buffered
from sinks.mqtt.settings import DeviceLimits


class Device:
    """Buffers as many bytes as the test sets."""

    def __init__(self, total: "Total", held_bytes: int = 0) -> None:
        self.total = total
        self.held_bytes = 0
        self.is_closed = False
        self.hold(held_bytes)

    def hold(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        self.total.buffered.update(self, held_bytes)

    def free_memory(self) -> None:
        self.is_closed = True
        self.held_bytes = 0


class Total:
    def __init__(self, max_total_buffered_bytes: int = 100) -> None:
        self.soon: list[Callable[[], None]] = []
        self.buffered = Buffered(DeviceLimits(max_total_buffered_bytes=max_total_buffered_bytes), self.soon.append)

    def turn(self) -> int:
        """Runs an iteration of the loop. Returns how many functions were due."""
        due, self.soon[:] = list(self.soon), []
        for function in due:
            function()
        return len(due)


@pytest.fixture
def total() -> Total:
    return Total()


def test_the_size_is_the_sum_of_all_connections(total: Total) -> None:
    first, second = Device(total, 10), Device(total, 20)
    assert total.buffered.size_bytes == 30
    first.hold(50)
    second.hold(0)
    second.hold(0)
    assert total.buffered.size_bytes == 50


def test_at_the_limit_nobody_is_closed(total: Total) -> None:
    Device(total, 60), Device(total, 40)
    assert total.turn() == 0


def test_beyond_the_limit_the_largest_buffers_are_closed_first(total: Total) -> None:
    devices = [Device(total, held_bytes) for held_bytes in (20, 10, 30, 5, 25, 11)]
    assert total.turn() == 1
    assert [device.is_closed for device in devices] == [False, False, True, False, False, False]
    assert total.buffered.size_bytes == 71
    small = Device(total, 80)
    total.turn()
    assert small.is_closed


def test_bytes_that_were_read_meanwhile_do_not_count(total: Total) -> None:
    """A device takes what was written to it without a word."""
    first, second = Device(total, 60), Device(total, 60)
    first.held_bytes = 0
    total.turn()
    assert not first.is_closed
    assert not second.is_closed
    assert total.buffered.size_bytes == 60


def test_connections_are_measured_before_one_is_closed(total: Total) -> None:
    first, second = Device(total, 60), Device(total, 50)
    first.held_bytes, second.held_bytes = 30, 70
    total.turn()
    assert (first.is_closed, second.is_closed) == (False, True)


def test_many_messages_cause_one_measurement(total: Total) -> None:
    device = Device(total, 90)
    for held_bytes in range(101, 200):
        device.hold(held_bytes)
    assert total.turn() == 1
    assert total.turn() == 0
    Device(total, 200)
    assert total.turn() == 1, "and again the next time"


def test_measuring_updates_the_sum(total: Total) -> None:
    device = Device(total, 60)
    device.held_bytes = 7
    total.buffered.measure()
    assert total.buffered.size_bytes == 7


def test_a_connection_that_fails_does_not_end_the_limit(total: Total) -> None:
    class Fails(Device):
        def free_memory(self) -> None:
            raise RuntimeError("a bug")

    Fails(total, 200)
    with pytest.raises(RuntimeError):
        total.turn()
    other = Device(total, 150)
    total.turn()
    assert other.is_closed


def test_another_limit_holds_from_the_next_byte_on(total: Total) -> None:
    large, small = Device(total, 60), Device(total, 10)
    total.buffered.reconfigure(DeviceLimits(max_total_buffered_bytes=50))
    small.hold(11)
    total.turn()
    assert (large.is_closed, small.is_closed) == (True, False)


def test_memory_is_scarce_above_half_of_the_limit(total: Total) -> None:
    device = Device(total, 50)
    assert not total.buffered.is_scarce
    device.hold(51)
    assert total.buffered.is_scarce


def test_a_connection_that_frees_a_part_counts_with_the_rest(total: Total) -> None:
    class Frees(Device):
        def free_memory(self) -> None:
            self.held_bytes = 30

    Frees(total, 90), Device(total, 20)
    total.turn()
    assert total.buffered.size_bytes == 50
