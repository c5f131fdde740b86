"""Connections have TCP's own keepalive probes, as the kernel shows them (proc(5), /proc/net/tcp)."""

from pathlib import Path

import pytest

from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.settings import GatewaySettings
from tests.integration.gateway.gateway_fakes import RawClient, running_gateway
from tests.unit.sinks.mqtt.mqtt_bytes import connect

TABLE = Path("/proc/net/tcp")
KEEPALIVE = "02"

pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="only Linux has the table")


def timer_of(device: RawClient) -> str:
    """Reads what the kernel waits for on the gateway's side of the connection."""
    ours, theirs = (address[1] for address in (device.socket.getpeername(), device.socket.getsockname()))
    for line in TABLE.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if [int(fields[number].rpartition(":")[2], 16) for number in (1, 2)] == [ours, theirs]:
            return fields[5].partition(":")[0]
    raise AssertionError("the connection is not in the table")


@pytest.mark.parametrize(("idle_ms", "timer"), [(60_000, KEEPALIVE), (0, "00")])
def test_the_kernel_looks_after_a_silent_device_if_it_is_to(idle_ms: int, timer: str) -> None:
    with (
        running_gateway(GatewaySettings(device_limits=DeviceLimits(tcp_keepalive_ms=idle_ms))) as gateway,
        gateway.socket() as device,
    ):
        device.send(connect(keep_alive_s=0))
        device.expect("20020000")
        assert timer_of(device) == timer
