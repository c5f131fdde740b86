"""A gateway dies or freezes under devices to which nothing is addressed: `inflight up`, the real thing, with short leases."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from inflight.console.presence_events import changes_in
from inflight.demo.up import UpProcess
from inflight.local.child_process import start_child
from inflight.local.endpoints import Endpoints
from tests.integration.bridge.bridge_fakes import FakeBroker, Peer
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient
from tests.integration.gateway.session_engine import running_loop
from tests.integration.up.topics_of_up import records_of
from tests.support.processes import frozen
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

LEASE_S = 3
EXPIRY_S = 4
SETTINGS = ("--set", f"gateway.lease_ms={LEASE_S}s", "--set", f"bridge.lease_ms={LEASE_S}s")
WILL_CLEAN_V5 = 0x06
LOST = ("its gateway or bridge is gone", "no gateway holds this connection")
"""The reasons that the engine gives when the lease has expired, and the next gateway if it is asked first."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("leases") / "data", *SETTINGS) as running:
        yield running


def gateway_pid(up: UpProcess) -> int:
    return Endpoints.read(up.data_dir).pids["gateway"]


@contextmanager
def idle_device(up: UpProcess, client_id: str) -> Iterator[RawClient]:
    """MQTT 5, no keep alive, a will, and a session that outlives its connection by a few seconds."""
    with GatewayUnderTest(None, None, *up.mqtt, lambda: None).socket() as device:  # type: ignore[arg-type]
        device.send(
            connect(
                level=5,
                flags=WILL_CLEAN_V5,
                keep_alive_s=0,
                properties=b"\x11" + EXPIRY_S.to_bytes(4, "big"),
                payload=text(client_id) + b"\x00" + text("status") + text(f"{client_id} is gone"),
            )
        )
        answer = device.packet()
        assert (answer[:1], answer[3]) == (b"\x20", 0), answer
        yield device


def wills(up: UpProcess, client_id: str) -> list[bytes | None]:
    return [record.value for record in records_of(up, "inflight.uplink") if record.key == client_id.encode()]


def transitions(up: UpProcess, client_id: str) -> list[str]:
    """The transitions of a client's connections and its session in the ledger."""
    records = [record for record in records_of(up, "inflight.ledger") if record.key == client_id.encode()]
    return [row["transition"] for record in records for row in msgspec.json.decode(record.value or b"")]


def presence(up: UpProcess, client_id: str) -> list[tuple[str, str]]:
    """Returns what backends see of a client: status and reason of each change."""
    records = [record for record in records_of(up, "inflight.presence") if record.key == client_id.encode()]
    return [(change.status.value, change.reason) for change in changes_in(records)]


def await_end(up: UpProcess, client_id: str) -> None:
    """The will is published once, and then the session ends."""
    wait_until(lambda: wills(up, client_id), lambda: f"the will of {client_id}; {up.log_tail('engine')}")
    wait_until(lambda: "session_ended" in transitions(up, client_id), f"the end of the session of {client_id}")
    assert wills(up, client_id) == [f"{client_id} is gone".encode()]


@pytest.mark.promise("gateway-dies")
def test_a_killed_gateway_takes_nobodys_session_along(up: UpProcess) -> None:
    """[MQTT-3.1.2-8] [MQTT-4.1.0-2] Nothing is addressed to the device: nobody would ever miss it."""
    with idle_device(up, "idle") as device:
        os.kill(gateway_pid(up), signal.SIGKILL)
        device.expect_closed()
        killed = time.monotonic()
        await_end(up, "idle")
        print(f"will and end of the session {time.monotonic() - killed:.1f} s after the gateway's death")
    assert transitions(up, "idle") == ["connected", "disconnected", "publication_forwarded", "session_ended"]
    online, (status, reason), gone = presence(up, "idle")
    assert (online, status, gone) == (("online", ""), "offline", ("gone", "session expiry interval passed"))
    assert reason in LOST


@pytest.mark.promise("gateway-frozen")
def test_a_frozen_gateway_finds_its_connections_ended_and_closes_them(up: UpProcess) -> None:
    """[MQTT-3.1.2-8] The device stayed connected, and its gateway assumes so until it reads the clock."""
    wait_until(lambda: _connects(up), "the gateway is back")
    with idle_device(up, "attached") as device:
        with frozen(gateway_pid(up)):
            await_end(up, "attached")
        assert device.packet()[:1] == b"\xe0", "DISCONNECT"
        device.expect_closed()
        wait_until(lambda: _connects(up, LEASE_S * 2), "a connection under another lease lives")


@pytest.mark.promise("gateway-dies")
def test_a_killed_bridge_takes_its_devices_offline(up: UpProcess, tmp_path: Path) -> None:
    """The only one: nobody else of its kind could say so."""
    with running_loop() as loop:
        broker = FakeBroker()
        server = asyncio.run_coroutine_threadsafe(_serve(broker), loop).result(DEADLINE_S)
        port = server.sockets[0].getsockname()[1]
        options = (
            f"kafka.bootstrap_servers={up.kafka}",
            f"bridge.port={port}",
            f"bridge.lease_ms={LEASE_S}s",
            "bridge.presence=always",
            'bridge.clients=["lonely"]',
        )
        command = [sys.executable, "-m", "inflight", "bridge", *(word for option in options for word in ("--set", option))]
        with (tmp_path / "bridge.log").open("wb") as log:
            bridge = start_child(command, stdout=log, stderr=log)
            try:
                wait_until(lambda: transitions(up, "lonely") == ["connected"], "the device is connected")
            finally:
                bridge.kill()
                bridge.wait()
        wait_until(lambda: transitions(up, "lonely") == ["connected", "disconnected"], "it is offline")
        loop.call_soon_threadsafe(server.close)


async def _serve(broker: FakeBroker) -> asyncio.Server:
    loop = broker.loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Peer(broker), "127.0.0.1", 0)


def _connects(up: UpProcess, silent_s: float = 0.1) -> bool:
    """True if a device can connect and its connection stays for `silent_s`."""
    try:
        with idle_device(up, "probe") as device:
            return device.is_silent(silent_s)
    except (AssertionError, ConnectionError):
        return False
