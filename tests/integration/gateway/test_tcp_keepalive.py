"""Connections have TCP's own keepalive probes, as the kernel shows them (proc(5), /proc/net/tcp)."""

import socket
from pathlib import Path

import pytest

from sinks.mqtt.settings import DeviceLimits, GatewaySettings, ListenerSettings
from tests.integration.gateway.gateway_fakes import RawClient, running_gateway
from tests.support.waiting import DEADLINE_S
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

TABLE = Path("/proc/net/tcp")
KEEPALIVE, NO_TIMER = "02", "00"

pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="only Linux has the table")


def timer_of(device: RawClient) -> str:
    """Reads what the kernel waits for on the gateway's side of the connection."""
    ours, theirs = (address[1] for address in (device.socket.getpeername(), device.socket.getsockname()))
    for line in TABLE.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if [int(fields[number].rpartition(":")[2], 16) for number in (1, 2)] == [ours, theirs]:
            return fields[5].partition(":")[0]
    raise AssertionError("the connection is not in the table")


@pytest.mark.parametrize("idle_ms", [60_000, 0])
def test_the_kernel_looks_after_a_silent_device_if_it_is_to(idle_ms: int) -> None:
    """The second listener has no time of its own, the third one has the opposite."""
    inheriting = ListenerSettings(port=0, anonymous=True)
    other = ListenerSettings(port=0, anonymous=True, tcp_keepalive_ms=0 if idle_ms else 60_000)
    settings = GatewaySettings(device_limits=DeviceLimits(tcp_keepalive_ms=idle_ms), listeners=(inheriting, other))
    timers = (KEEPALIVE, KEEPALIVE, NO_TIMER) if idle_ms else (NO_TIMER, NO_TIMER, KEEPALIVE)
    with running_gateway(settings) as gateway:
        for number, (address, timer) in enumerate(zip(gateway.addresses, timers, strict=True)):
            with RawClient(socket.create_connection(address, timeout=DEADLINE_S)) as device:
                device.send(connect(keep_alive_s=0, payload=text(f"c{number}")))
                device.expect("20020000")
                assert timer_of(device) == timer
