"""Two gateways restart one after the other under devices that stay: every wait is short, and nothing is lost or sent twice.

Few devices by default, because their machine may be small:

    INFLIGHT_DEVICES=500 pytest -s -m faults tests/integration/gateway/test_rolling_restart.py
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from inflight.local.jars import Jars
from tests.integration.gateway.gateways_and_engine import Site, running_site
from tests.integration.gateway.reconnecting_devices import ReconnectingDevice, Waits
from tests.support.inflight_process import InflightProcess
from tests.support.waiting import until
from trials.faults.devices.backend import Backend
from trials.faults.log_reader import LogReader

pytestmark = [pytest.mark.faults, pytest.mark.timeout(540)]

DEVICES = int(os.environ.get("INFLIGHT_DEVICES", "100"))
LONGEST_WAIT_S = float(os.environ.get("INFLIGHT_LONGEST_WAIT_S", "5"))
DOWN_PER_S = 50.0
UP_PER_S = 20.0
CLEAN_EVERY = 10
"""Each tenth device has a clean session: nothing is sent to it, but it has a will."""
SETTLED_S = 5.0
WARM_MESSAGES = 3_000
"""Messages that arrive before anything is measured: an engine is slower in its first minute."""
STARTS_S = 120.0


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Site]:
    """Yields a site for one test. The end of the test kills its gateways, and then their connections and wills come due."""
    with running_site(tmp_path_factory.mktemp("rolling"), jars) as running:
        yield running


@pytest.mark.parametrize("named", [True, False], ids=["with group_instance_id", "without"])
@pytest.mark.promise("gateway-stop")
def test_a_rolling_restart_of_two_gateways(site: Site, named: bool) -> None:
    settings = [[f"gateway.group_instance_id=gateway-{name}"] if named else [] for name in "ab"]
    with site.gateways(*settings) as gateways, LogReader(site.bootstrap_servers) as reader:
        addresses = [gateway.address("mqtt") for gateway in gateways]
        prefix = "named" if named else "nameless"
        run = _Run(prefix, site.data_dir, gateways, addresses, reader)
        asyncio.run(run.run(site))


class _Run:
    def __init__(
        self, prefix: str, data_dir: Path, gateways: list[InflightProcess], addresses: list[tuple[str, int]], reader: LogReader
    ) -> None:
        self._data_dir = data_dir
        self._gateways = gateways
        self._reader = reader
        self._waits = Waits()
        self._devices = [
            ReconnectingDevice(f"{prefix}-{number}", number, addresses, self._waits, keeps=bool(number % CLEAN_EVERY))
            for number in range(DEVICES)
        ]
        self._kept = [device for number, device in enumerate(self._devices) if number % CLEAN_EVERY]

    async def run(self, site: Site) -> None:
        async with AsyncExitStack() as stack:
            for device in self._devices:
                stack.push_async_callback(_cancel, asyncio.create_task(device.run()))
            await until(lambda: all(device.connected.is_set() for device in self._devices), "all connected", within_s=STARTS_S)
            backend = Backend(
                site.bootstrap_servers, [device.facts.client_id for device in self._kept], seed=1, rate_per_s=DOWN_PER_S
            )
            stack.callback(backend.close)
            stop = asyncio.Event()
            sending = asyncio.create_task(backend.run(stop))
            publishing = asyncio.create_task(self._publish())
            await until(lambda: len(backend.sent) >= WARM_MESSAGES and not self._missing(backend), "the engine is warm")
            warm_s = time.time()
            await asyncio.sleep(2 * SETTLED_S)  # the messages of this time are what those of the restarts are compared with
            began_s = time.time()
            self._waits.reconnects.clear()
            for gateway in self._gateways:
                took_s = await asyncio.to_thread(gateway.stop)
                started_s = time.monotonic()
                await asyncio.to_thread(gateway.start)
                print(f"{gateway.name}: drained in {took_s:.1f} s, ready again {time.monotonic() - started_s:.1f} s later")
                await asyncio.sleep(SETTLED_S)
            stop.set()
            await _cancel(publishing)
            await sending
            await until(lambda: not self._missing(backend), lambda: f"missing {self._missing(backend)[:5]}")
            # PUBCOMP says that PUBREL is in the log; the engine writes the publication with its next micro-batch.
            await until(lambda: not self._unheard(), lambda: f"not in uplink: {self._unheard()[:5]}")
            await until(lambda: self._reader.caught_up_s > time.time() - 1, "the log is read")
            self._judge(backend, warm_s, began_s)

    async def _publish(self) -> None:
        number = 0
        while True:
            number += 1
            device = self._kept[number * 7 % len(self._kept)]
            qos = 1 + number % 2
            device.publish(f"up/{device.facts.client_id}/{qos}/{number}/{time.time()}".encode(), qos)
            await asyncio.sleep(1 / UP_PER_S)

    def _micro_batches_s(self, since_s: float) -> list[float]:
        """Returns the sorted durations, in seconds, of the micro-batches since `since_s` that had rows."""
        lines = (msgspec.json.decode(line) for line in (self._data_dir / "progress.jsonl").read_bytes().splitlines())
        began = ((datetime.fromisoformat(line["started"]).timestamp(), line) for line in lines)
        return sorted(line["duration_ms"] / 1_000 for at_s, line in began if at_s >= since_s and line["rows"])

    def _missing(self, backend: Backend) -> list[str]:
        arrived = {payload for device in self._kept for payload in device.facts.handed}
        missing = [sent.message_id for sent in backend.sent if sent.message_id.encode() not in arrived]
        return missing + [device.facts.client_id for device in self._devices if not device.session.is_idle]

    def _unheard(self) -> list[bytes]:
        said = {record.payload for record in self._reader.uplink()}
        return [sent.payload for device in self._devices for sent in device.facts.publications if sent.payload not in said]

    def _judge(self, backend: Backend, warm_s: float, began_s: float) -> None:
        first_s = {payload: at_s for device in self._kept for payload, at_s in device.facts.first_s.items()}
        waits = [
            (first_s[sent.message_id.encode()] - sent.sent_s, sent.sent_s >= began_s)
            for sent in backend.sent
            if sent.sent_s >= warm_s
        ]
        before, during = (sorted(wait for wait, late in waits if late is restarted) for restarted in (False, True))
        reconnects = sorted(self._waits.reconnects)
        print(f"{DEVICES} devices, {len(waits)} messages")
        print(f"wait for a message before the restarts: {_spread(before)}")
        print(f"wait for a message during them:         {_spread(during)}")
        print(f"{len(reconnects)} reconnects:                         {_spread(reconnects)}")
        print(f"micro-batches during them:              {_spread(self._micro_batches_s(began_s))}")
        assert len(reconnects) >= DEVICES, "every device has moved"
        assert self._waits.goodbyes > 0
        assert [(device.facts.client_id, device.facts.oddities) for device in self._devices if device.facts.oddities] == []
        assert [
            payload for device in self._kept for payload, count in device.facts.handed.items() if b"/2/" in payload and count > 1
        ] == []
        said = Counter(record.payload for record in self._reader.uplink())
        publications = [publication for device in self._devices for publication in device.facts.publications]
        assert [publication.payload for publication in publications if not said[publication.payload]] == []
        assert [
            publication.payload for publication in publications if publication.qos == 2 and said[publication.payload] > 1
        ] == []
        wills = [
            record.payload for record in self._reader.uplink() if record.payload.startswith(b"will/") and record.time_s >= began_s
        ]
        assert wills == [], "nobody was away"
        assert reconnects[-1] <= LONGEST_WAIT_S
        assert during[-1] <= LONGEST_WAIT_S


def _spread(ordered_s: list[float]) -> str:
    p50, p99 = (ordered_s[int(part * (len(ordered_s) - 1))] for part in (0.5, 0.99))
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s, longest {ordered_s[-1]:.2f} s"


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
