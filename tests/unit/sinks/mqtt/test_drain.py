"""sinks.mqtt.drain"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sinks.mqtt.drain import Drain, slices


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


def test_every_connection_is_in_one_slice() -> None:
    connections = [object() for _ in range(1_234)]
    assert [each for part in slices(connections, within_ms=3_000) for each in part] == connections


class World:
    """Gateway and listeners. happened: what was called, in order, and when, in seconds. closes_at_once: whether a
    connection is gone as soon as it is let go."""

    def __init__(self, count: int, *, closes_at_once: bool = True) -> None:
        self.happened: list[str] = []
        self.let_go_s: list[float] = []
        self.closes_at_once = closes_at_once
        self.present: list[Any] = list(range(count))
        self._nobody = asyncio.Event()

    # Drainable
    def refuse_newcomers(self) -> None:
        self.happened.append("refuse newcomers")

    def all_connections(self) -> Sequence[Any]:
        return tuple(self.present)

    def let_go(self, connection: Any) -> None:
        self._note("let go")
        self.let_go_s.append(asyncio.get_running_loop().time())
        if self.closes_at_once:
            self.present.remove(connection)
        if not self.present:
            self._nobody.set()

    async def until_drained(self) -> None:
        self.happened.append("wait for the rest")
        if self.present or self.let_go_s:
            await self._nobody.wait()

    def stop(self) -> None:
        self.happened.append(f"stop {len(self.present)}")

    def _note(self, what: str) -> None:
        if self.happened[-1] != what:
            self.happened.append(what)


class Listeners:
    def __init__(self, world: World) -> None:
        self._world = world

    def close(self) -> None:
        self._world.happened.append("close the listeners")


async def drained(world: World, *, drain_ms: int = 300, confirm_ms: int = 5_000, hurry_after_s: float | None = None) -> float:
    """How long it took, in seconds."""
    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    if hurry_after_s is not None:
        loop.call_later(hurry_after_s, hurry.set)
    began_s = loop.time()
    drain = Drain(world, Listeners(world), drain_ms=drain_ms, confirm_ms=confirm_ms)
    drain.begin()
    await drain.run(hurry)
    return loop.time() - began_s


def test_the_steps_have_an_order() -> None:
    async def scenario() -> list[str]:
        world = World(30)
        await drained(world)
        return world.happened

    assert asyncio.run(scenario()) == ["refuse newcomers", "close the listeners", "let go", "wait for the rest", "stop 0"]


def test_there_is_a_pause_between_slices() -> None:
    async def scenario() -> World:
        world = World(30)
        await drained(world, drain_ms=300)
        return world

    times = asyncio.run(scenario()).let_go_s
    assert min(times[10:20]) - max(times[:10]) > 0.09
    assert min(times[20:]) - max(times[10:20]) > 0.09


def test_without_a_time_all_are_let_go_at_once() -> None:
    async def scenario() -> World:
        world = World(500)
        await drained(world, drain_ms=0)
        return world

    world = asyncio.run(scenario())
    assert world.happened[-3:] == ["let go", "wait for the rest", "stop 0"]
    assert max(world.let_go_s) - min(world.let_go_s) < 0.1


def test_those_who_do_not_go_in_time_are_closed() -> None:
    async def scenario() -> tuple[World, float]:
        world = World(3, closes_at_once=False)
        return world, await drained(world, drain_ms=100, confirm_ms=200)

    world, took_s = asyncio.run(scenario())
    assert world.happened[-2:] == ["wait for the rest", "stop 3"]
    assert 0.29 < took_s < 5


def assert_most_are_left(world: World) -> None:
    """Of a thousand in ten minutes: two go at once, and two more for each tenth of a second that a busy machine is late."""
    let_go = len(world.let_go_s)
    assert world.happened[-1] == f"stop {1_000 - let_go}"
    assert 2 <= let_go < 20


def test_who_is_in_a_hurry_waits_for_nobody() -> None:
    async def scenario() -> tuple[World, float]:
        world = World(1_000)
        return world, await drained(world, drain_ms=600_000, hurry_after_s=0.05)

    world, took_s = asyncio.run(scenario())
    assert_most_are_left(world)
    assert took_s < 5


def test_a_cancelled_drain_closes_what_is_left() -> None:
    async def scenario() -> World:
        world = World(1_000)
        task = asyncio.create_task(drained(world, drain_ms=600_000))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return world

    assert_most_are_left(asyncio.run(scenario()))
