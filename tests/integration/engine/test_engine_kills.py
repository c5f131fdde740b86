"""The engine is killed with SIGKILL at random moments while messages flow; devices check every packet."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from tests.integration.engine.strict_device import Habits, StrictDevice
from tests.support.processes import kill_engine
from tests.support.waiting import until

KILLS = int(os.environ.get("INFLIGHT_KILLS", "20"))
SEED = 20_261_121
DEVICES = 10
MESSAGES_PER_SECOND = 40
STALLED_S = 60
SETTINGS = (
    "--set",
    "retry_interval=2s",
    "--set",
    "max_mqueue_len=0",
    "--set",
    "max_mqueue_bytes=0",
)  # a queue that drops nothing

pytestmark = pytest.mark.faults


class Traffic:
    """A backend that keeps sending QoS 1 and 2 messages to all devices and remembers them."""

    def __init__(self, kafka: str, client_ids: list[str]) -> None:
        self.sent: dict[str, dict[int, list[bytes]]] = {client_id: {1: [], 2: []} for client_id in client_ids}
        self._producer = KafkaProducer(bootstrap_servers=kafka, acks="all")
        self._number = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for client_id in self.sent:
                qos = 1 + self._number % 2
                payload = b"%s/%d/%d" % (client_id.encode(), qos, self._number)
                headers = [("mqtt-topic", b"cmd/run"), ("mqtt-qos", b"%d" % qos)]
                self._producer.send("inflight.messages", key=client_id.encode(), value=payload, headers=headers)
                self.sent[client_id][qos].append(payload)
                self._number += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), DEVICES / MESSAGES_PER_SECOND)
        await asyncio.to_thread(self._producer.flush, 30)
        self._producer.close(timeout=10)


@contextlib.asynccontextmanager
async def running(*jobs: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[asyncio.Event]:
    """Runs the jobs until the block ends; the first error of a job is raised."""
    stop = asyncio.Event()
    tasks = [asyncio.ensure_future(job(stop)) for job in jobs]
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@pytest.mark.timeout(1800)
@pytest.mark.promise("to-device-qos-1", "to-device-qos-2", "direct-order")
def test_a_killed_engine_loses_nothing_and_doubles_nothing_at_qos_2(tmp_path: Path) -> None:
    asyncio.run(_scenario(tmp_path))


async def _scenario(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with UpProcess(tmp_path / "data", *SETTINGS) as up:
        devices = [
            StrictDevice(f"dev-{n}", Habits(swallow=0.05 * (n % 2), cut=0.02 * (n % 3)), seed=SEED + n) for n in range(DEVICES)
        ]
        host, port = up.mqtt

        def device_job(device: StrictDevice) -> Callable[[asyncio.Event], Awaitable[None]]:
            return lambda stop: device.run(host, port, stop)

        def missing() -> list[bytes]:
            return [p for d in devices for qos in (1, 2) for p in traffic.sent[d.client_id][qos] if not d.delivered[p]]

        traffic = Traffic(up.kafka, [device.client_id for device in devices])
        async with running(*(device_job(device) for device in devices)):
            async with running(traffic.run):
                for _ in range(KILLS):
                    arrived = sum(sum(d.delivered.values()) for d in devices)
                    await until(
                        lambda before=arrived: sum(sum(d.delivered.values()) for d in devices) > before,  # type: ignore[misc]
                        lambda: f"nothing flows; {up.log_tail('engine')}",
                        within_s=90,
                    )
                    await asyncio.sleep(dice.uniform(0.0, 1.5))  # the random moment
                    await asyncio.to_thread(kill_engine, up)
            # The worst device drops its connection every few messages, so it takes its time; it must only never stand still.
            while left := len(missing()):
                await until(
                    lambda before=left: len(missing()) < before,  # type: ignore[misc]
                    lambda: f"{len(missing())} lost, such as {missing()[:5]}",
                    within_s=STALLED_S,
                )
            for device in devices:
                await until(lambda d=device: not d.awaiting_pubrel, "QoS 2 exchanges finish")  # type: ignore[misc]
    for device in devices:
        assert device.violations == []
        sent = traffic.sent[device.client_id]
        assert device.order[1] == sent[1]
        assert device.order[2] == sent[2]
        twice = [payload for payload in sent[2] if device.delivered[payload] != 1 or device.taken[payload] != 1]
        assert twice == []
    resent = sum(1 for device in devices for kind, _, _, dup in device.trace if kind == "PUBLISH" and dup)
    total = sum(len(sent[1]) + len(sent[2]) for sent in traffic.sent.values())
    print(f"{KILLS} kills, {total} messages, {resent} resends, {sum(d.connections for d in devices)} connections")
    assert resent > 0
