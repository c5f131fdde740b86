import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sinks.mqtt.drain import Drain, slices
from tests.support.waiting import DEADLINE_S


def sizes(count: int, within_ms: int) -> list[int]:
    return [len(part) for part in slices(range(count), within_ms=within_ms)]


@pytest.mark.parametrize(
    ("count", "within_ms", "expected"),
    [
        (0, 10_000, []),
        (7, 10_000, [2, 2, 2, 1]),
        (2, 10_000, [2]),
        (20_000, 10_000, [200] * 100),
        (20_001, 10_000, [201] * 99 + [102]),
        (500, 1_000, [50] * 10),
        (500, 0, [500]),
        (500, 99, [500]),
    ],
)
def test_slices_are_of_equal_size_and_few_connections_need_no_time(count: int, within_ms: int, expected: list[int]) -> None:
    assert sizes(count, within_ms) == expected


@pytest.mark.promise("gateway-stop")
def test_every_connection_is_in_one_slice() -> None:
    connections = [object() for _ in range(1_234)]
    assert [each for part in slices(connections, within_ms=3_000) for each in part] == connections


class Gateway:
    """A double of gateway and listeners. happened: the calls, in order. closes_at_once: a connection's close takes no time."""

    def __init__(self, count: int, *, closes_at_once: bool = True) -> None:
        self.happened: list[str] = []
        self.closed_s: list[float] = []
        self.closes_at_once = closes_at_once
        self.present: list[Any] = list(range(count))
        self._nobody = asyncio.Event()

    # Drainable
    def stop_accepting(self) -> None:
        self.happened.append("stop accepting")

    def all_connections(self) -> Sequence[Any]:
        return tuple(self.present)

    def close_gracefully(self, connection: Any) -> None:
        self._note("close gracefully")
        self.closed_s.append(asyncio.get_running_loop().time())
        if self.closes_at_once:
            self.present.remove(connection)
        if not self.present:
            self._nobody.set()

    async def until_drained(self) -> None:
        self.happened.append("wait for the rest")
        if self.present or self.closed_s:
            await self._nobody.wait()

    def stop(self) -> None:
        self.happened.append(f"stop {len(self.present)}")

    def _note(self, what: str) -> None:
        if self.happened[-1] != what:
            self.happened.append(what)


class Listeners:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def close(self) -> None:
        self._gateway.happened.append("close the listeners")


async def drained(gateway: Gateway, *, drain_ms: int = 300, confirm_ms: int = 5_000, hurry_after_s: float | None = None) -> float:
    """Returns the duration in seconds."""
    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    if hurry_after_s is not None:
        loop.call_later(hurry_after_s, hurry.set)
    began_s = loop.time()
    drain = Drain(gateway, Listeners(gateway), drain_ms=drain_ms, confirm_ms=confirm_ms)
    drain.begin()
    await drain.run(hurry)
    return loop.time() - began_s


async def test_the_steps_have_an_order() -> None:
    gateway = Gateway(30)
    await drained(gateway)
    assert gateway.happened == ["stop accepting", "close the listeners", "close gracefully", "wait for the rest", "stop 0"]


async def test_there_is_a_pause_between_slices() -> None:
    gateway = Gateway(30)
    await drained(gateway, drain_ms=300)
    times = gateway.closed_s
    assert min(times[10:20]) - max(times[:10]) > 0.09
    assert min(times[20:]) - max(times[10:20]) > 0.09


async def test_without_a_time_all_are_closed_at_once() -> None:
    gateway = Gateway(500)
    await drained(gateway, drain_ms=0)
    assert gateway.happened[-3:] == ["close gracefully", "wait for the rest", "stop 0"]


async def test_connections_left_at_the_end_are_closed() -> None:
    gateway = Gateway(3, closes_at_once=False)
    gateway, took_s = gateway, await drained(gateway, drain_ms=100, confirm_ms=200)
    assert gateway.happened[-2:] == ["wait for the rest", "stop 3"]
    assert 0.29 < took_s < DEADLINE_S


def assert_most_are_left(gateway: Gateway) -> None:
    """Checks a drain of 1,000 connections in ten minutes: two close at once, two more each tenth of a second."""
    closed = len(gateway.closed_s)
    assert gateway.happened[-1] == f"stop {1_000 - closed}"
    assert 2 <= closed < 500


async def test_hurry_ends_the_drain_at_once() -> None:
    gateway = Gateway(1_000)
    gateway, took_s = gateway, await drained(gateway, drain_ms=600_000, hurry_after_s=0.05)
    assert_most_are_left(gateway)
    assert took_s < DEADLINE_S


async def test_a_cancelled_drain_closes_what_is_left() -> None:
    gateway = Gateway(1_000)
    task = asyncio.create_task(drained(gateway, drain_ms=600_000))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_most_are_left(gateway)
