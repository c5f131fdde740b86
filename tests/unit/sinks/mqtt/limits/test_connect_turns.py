"""sinks.mqtt.limits.connect_turns"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from sinks.mqtt.limits.connect_queue import Turn
from sinks.mqtt.limits.connect_turns import ConnectTurns
from sinks.mqtt.limits.settings import DeviceLimits


class Device:
    def __init__(self) -> None:
        self.turn = asyncio.Event()

    def turn_has_come(self) -> None:
        self.turn.set()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_each_is_called_when_the_rate_allows_it() -> None:
    async def test() -> None:
        turns = ConnectTurns(DeviceLimits(max_connect_rate=20), answer_timeout_ms=60_000)
        devices = [Device() for _ in range(6)]
        started_s = asyncio.get_running_loop().time()
        asked = [turns.ask(device, None) for device in devices]
        assert asked == [Turn.NOW] * 2 + [Turn.LATER] * 4
        for device in devices[2:]:
            await device.turn.wait()
        assert asyncio.get_running_loop().time() - started_s >= 0.19
        assert not devices[0].turn.is_set()

    run(test())


def test_an_answer_of_the_engine_calls_the_next_waiting_device() -> None:
    async def test() -> None:
        turns = ConnectTurns(DeviceLimits(max_unanswered_connects=1), answer_timeout_ms=60_000)
        first, gone, third = Device(), Device(), Device()
        assert turns.ask(first, "a") is Turn.NOW
        turns.told(1)
        assert [turns.ask(device, "a") for device in (gone, third)] == [Turn.LATER, Turn.LATER]
        turns.leave(gone)
        turns.answered(2)
        turns.answered(1)
        await third.turn.wait()
        assert not gone.turn.is_set()

    run(test())


def test_what_the_engine_never_answers_counts_no_longer_after_its_time() -> None:
    async def test() -> None:
        turns = ConnectTurns(DeviceLimits(max_unanswered_connects=1), answer_timeout_ms=50)
        turns.told(1)
        device = Device()
        assert turns.ask(device, "a") is Turn.LATER
        await device.turn.wait()

    run(test())


def test_who_waits_gets_on_with_a_higher_rate_and_more_may_wait() -> None:
    async def test() -> None:
        turns = ConnectTurns(DeviceLimits(max_connect_rate=1, max_waiting_connects=1), answer_timeout_ms=60_000)
        first, second, third = (Device() for _ in range(3))
        assert [turns.ask(device, None) for device in (first, second, third)] == [Turn.NOW, Turn.LATER, Turn.NEVER]
        turns.take(DeviceLimits(max_connect_rate=1_000))
        await asyncio.wait_for(second.turn.wait(), 0.5)
        assert turns.ask(third, None) is Turn.NOW

    run(test())
