"""The faults of test_bridge_faults.py with real sessions, bridges and Mosquitto in one process, without Spark and Kafka.

The stand-in for the engine executes micro-batches twice now and then.
"""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.process import run_bridge
from sinks.bridge.settings import BridgeSettings
from state.model import Message, QoS
from state.settings import BackoffSettings, SessionSettings
from tests.integration.bridge.broker_faults import TOTAL, WINDOW, counted, perform, start_devices
from tests.integration.gateway.session_engine import Port, SessionEngine, on_loop, running_loop
from tests.support.bridged_device import TOPIC_TEMPLATE
from tests.support.mosquitto import Mosquitto, needs_mosquitto
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.faults, needs_mosquitto]

PARTITIONS = 4
SESSION = SessionSettings(retry_interval_ms=2_000, max_inflight=WINDOW)


class WithSession:
    """Runs two bridges and the session. The test's thread calls it; everything else lives on `loop`."""

    def __init__(self, broker: Mosquitto, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
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


def test_nothing_is_lost_or_done_twice_and_windows_are_kept(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(tmp_path))
        loop = stack.enter_context(running_loop())
        side = WithSession(broker, loop)
        stack.callback(lambda: side.call(side.close()))
        devices = start_devices(broker, stack)
        perform(side, devices)
        wait_until(lambda: len(side.engine.outcomes) == TOTAL, "a receipt for every message")
        counts = counted(devices)
    print(counts, side.counters)
    assert set(side.engine.outcomes.values()) == {"delivered"}
    assert side.engine.receipts_twice == []
    assert (counts.lost, counts.twice_at_qos2) == (0, 0)
    assert 0 < counts.most_unacknowledged <= WINDOW
    assert counts.copies > 0, "no fault had any effect"
    assert side.counters.commands_repeated > 0
