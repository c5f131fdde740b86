from typing import Any

import pytest

from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.settings import DeviceLimits


class Device:
    """Adds what it has read before as soon as it may."""

    def __init__(self, total: Unconfirmed, waiting: int = 0) -> None:
        self.total = total
        self.waiting = waiting
        self.told = 0
        total.readers[self] = None

    def reading_changed(self) -> None:
        self.told += 1
        while self.waiting and not self.total.is_full:
            self.waiting -= 1
            self.total.add(1)


def total(**limits: Any) -> tuple[Unconfirmed, list[str]]:
    reached: list[str] = []
    return Unconfirmed(DeviceLimits(**limits), lambda limit: reached.append(str(limit))), reached


@pytest.mark.promise("more-than-kafka-confirms")
def test_readers_are_called_when_full_and_at_half() -> None:
    unconfirmed, reached = total(max_total_unconfirmed_appends=4)
    devices = [Device(unconfirmed) for _ in range(3)]
    for _ in range(4):
        assert not unconfirmed.is_full
        unconfirmed.add(10)
    assert unconfirmed.is_full
    assert [device.told for device in devices] == [1, 1, 1]
    unconfirmed.add(10)
    for _ in range(2):
        unconfirmed.settle(10)
        assert unconfirmed.is_full
    unconfirmed.settle(10)
    assert not unconfirmed.is_full
    assert [device.told for device in devices] == [2, 2, 2]
    assert reached == ["max_total_unconfirmed_appends"]
    assert (unconfirmed.records, unconfirmed.size_bytes) == (2, 20)


def test_bytes_count_too() -> None:
    unconfirmed, reached = total(max_total_unconfirmed_bytes=100)
    unconfirmed.add(60)
    unconfirmed.add(60)
    assert unconfirmed.is_full
    unconfirmed.settle(60)
    assert unconfirmed.is_full
    unconfirmed.settle(60)
    assert not unconfirmed.is_full
    assert reached == ["max_total_unconfirmed_bytes"]


def test_readers_resume_in_turn() -> None:
    unconfirmed, _ = total(max_total_unconfirmed_appends=4)
    devices = [Device(unconfirmed, waiting=12) for _ in range(3)]
    for _ in range(4):
        unconfirmed.add(1)
    left = []
    for _ in range(3):
        unconfirmed.settle(1)
        unconfirmed.settle(1)
        left.append([device.waiting for device in devices])
    assert left == [[10, 12, 12], [10, 10, 12], [10, 10, 10]]


def test_other_limits_hold_from_the_next_record_on() -> None:
    unconfirmed, reached = total(max_total_unconfirmed_appends=100)
    for _ in range(3):
        unconfirmed.add(10)
    unconfirmed.reconfigure(DeviceLimits(max_total_unconfirmed_appends=4))
    assert not unconfirmed.is_full
    unconfirmed.add(10)
    assert unconfirmed.is_full
    unconfirmed.reconfigure(DeviceLimits(max_total_unconfirmed_appends=100))
    unconfirmed.settle(10)
    assert not unconfirmed.is_full
    assert reached == ["max_total_unconfirmed_appends"]
