"""The trial of make demo-bridge with the real session, real bridges and a real Mosquitto, in one process: no Spark, no Kafka."""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inflight.demo.bridge_broker import Mosquitto, find_mosquitto
from inflight.demo.bridge_devices import TOPIC_TEMPLATE
from inflight.demo.bridge_trial import WINDOW, Side, TrialPlan, count_result, perform, start_devices
from inflight.local.errors import MissingPrerequisite
from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.process import run_bridge
from sinks.bridge.settings import BridgeSettings
from state.model import Message, QoS
from state.settings import BackoffSettings, SessionSettings
from tests.integration.gateway.session_engine import Port, SessionEngine, on_loop, running_loop
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.faults, pytest.mark.timeout(150)]

PARTITIONS = 4
PLAN = TrialPlan(seconds=25.0)
SESSION = SessionSettings(retry_interval_ms=2_000, max_inflight=WINDOW)


class WithSession(Side):
    """Two bridges and the session. Called from the trial's thread; everything else lives on `loop`."""

    def __init__(self, broker: Mosquitto, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(broker)
        self.engine = SessionEngine(SESSION, PARTITIONS)
        self.counters = BridgeCounters()
        self._loop = loop
        self._bridges: dict[int, tuple[asyncio.Task[None], Port]] = {}
        self._names = itertools.count(1)
        self.call(self._start())

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        on_loop(self._loop, work)

    def send(self, device: str, payload: bytes, qos: int) -> None:
        message = Message(
            message_id=payload.decode(), topic="cmd", payload=payload, qos=QoS(qos), accepted_ms=int(time.time() * 1_000)
        )
        self._loop.call_soon_threadsafe(self.engine.submit, device, message)

    def kill_bridge(self, number: int) -> None:
        self.call(self._kill(number))

    async def _start(self) -> None:
        self._work = asyncio.ensure_future(self.engine.run())
        for number in (0, 1):
            await self._start_bridge(number)

    async def _start_bridge(self, number: int) -> None:
        port, ready = Port(self.engine), asyncio.Event()
        settings = dataclasses.replace(
            BridgeSettings(),
            name=f"bridge-{number}",
            port=self.broker.port,
            topic_template=TOPIC_TEMPLATE,
            keep_alive_s=2,
            connect_timeout_ms=2_000,
            backoff=BackoffSettings(max_ms=3_000),
        )
        task = asyncio.ensure_future(
            run_bridge(
                settings,
                port,
                port,
                commands_partitions=PARTITIONS,
                on_ready=ready.set,
                stop=asyncio.Event(),
                counters=self.counters,
            )
        )
        self._bridges[number] = task, port

    async def _kill(self, number: int) -> None:
        task, port = self._bridges[number]
        port.die()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._start_bridge(number)

    async def close(self) -> None:
        for task, _ in self._bridges.values():
            task.cancel()
        self._work.cancel()
        await asyncio.gather(self._work, *(task for task, _ in self._bridges.values()), return_exceptions=True)


def look(*_: object) -> None:
    """Nobody watches."""


def test_nothing_is_lost_or_done_twice_and_every_device_keeps_its_window(tmp_path: Path) -> None:
    try:
        find_mosquitto()
    except MissingPrerequisite as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(tmp_path))
        loop = stack.enter_context(running_loop())
        side = WithSession(broker, loop)
        stack.callback(lambda: side.call(side.close()))
        devices = start_devices(PLAN, broker, stack)
        perform(PLAN, side, devices, look)
        all_there: Callable[[], bool] = lambda: len(side.engine.outcomes) == PLAN.total  # noqa: E731
        wait_until(all_there, "a receipt for every message")
        result = count_result(PLAN, devices, seconds=0.0)
    print(result, side.counters)
    assert set(side.engine.outcomes.values()) == {"delivered"}
    assert side.engine.receipts_twice == []
    assert (result.lost, result.twice_at_qos2) == (0, 0)
    assert 0 < result.most_unacknowledged <= WINDOW
    assert result.copies > 0, "no fault had any effect"
    assert side.counters.commands_repeated > 0
