"""HAProxy with the configuration of conf/cluster before two gateways: whose connections they are, and which gateway gets them."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from inflight.cli.metrics_server import serving_metrics
from inflight.local.child_process import free_port, start_child, tail
from sinks.mqtt.metrics import GatewayCollector, GatewayCounters
from sinks.mqtt.settings import GatewaySettings, ListenerSettings, LoginSettings
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

pytestmark = pytest.mark.interop

CONFIGURATION = Path(__file__).parents[3] / "conf" / "cluster" / "haproxy.cfg"
CONNACK = "20020000"
DEVICE = "127.0.0.5"
"""The device's address, which differs from HAProxy's."""


@contextmanager
def haproxy(directory: Path, gateways: dict[str, tuple[int, int]]) -> Iterator[int]:
    """gateways: by the name in the configuration, ports of MQTT and of the probes. Yields the port for devices."""
    port = free_port()
    configuration = CONFIGURATION.read_text(encoding="utf-8").replace("bind :1883", f"bind 127.0.0.1:{port}")
    for name, (mqtt, probes) in gateways.items():
        server = f"server {name} {name}:1883"
        assert server in configuration
        configuration = configuration.replace(server, f"server {name} 127.0.0.1:{mqtt} check port {probes} inter 100ms")
    file = directory / "haproxy.cfg"
    file.write_text(configuration, encoding="utf-8")
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("HAProxy is not installed: make test-interop installs it")
    log = directory / "haproxy.log"
    with log.open("wb") as output:
        process = start_child([program, "-f", str(file)], stdout=output, stderr=output)

    def check() -> None:
        assert process.poll() is None, tail(log)

    try:
        wait_until(lambda: _listens(port), "HAProxy listens", check=check)
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def gateway(login: LoginSettings | None = None) -> Iterator[tuple[GatewayUnderTest, int]]:
    """Yields a gateway behind a local load balancer, and the port of its health probes. login: None = anonymous access."""
    listener = ListenerSettings(port=0, anonymous=login is None, proxies=("127.0.0.1",))
    with running_gateway(GatewaySettings(listeners=(listener,), login=login or LoginSettings())) as running:
        collector = GatewayCollector(GatewayCounters())
        with serving_metrics("127.0.0.1", 0, "gateway_port", collector, running.health) as served:
            yield running, int(served.rpartition(":")[2])


def socket_from(source: str, port: int) -> RawClient:
    return RawClient(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S, source_address=(source, 0)))


def test_the_ready_gateway_with_fewest_connections_gets_the_next(tmp_path: Path) -> None:
    with ExitStack() as stack:
        (first, first_probes), (second, second_probes) = (stack.enter_context(gateway()) for _ in range(2))
        names = {"gateway-1": (first.addresses[1][1], first_probes), "gateway-2": (second.addresses[1][1], second_probes)}
        port = stack.enter_context(haproxy(tmp_path, names))
        numbers = count()

        def is_accepted() -> bool:
            device = stack.enter_context(socket_from(DEVICE, port))
            device.send(connect(payload=text(f"device-{next(numbers)}")))
            return device.packet() == bytes.fromhex(CONNACK)

        assert all(is_accepted() for _ in range(6))
        assert (first.counters.connections_accepted, second.counters.connections_accepted) == (3, 3)
        first.kafka.revoke(0, 1)  # now it accepts no connection, and would always have fewer connections than the other one
        wait_until(lambda: all(is_accepted() for _ in range(3)), "HAProxy has noticed")
        assert first.counters.connections_accepted == 3
        assert second.counters.connections_accepted >= 6


def test_the_address_of_a_device_is_its_own_and_not_the_balancers(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("", encoding="utf-8")
    with capture_logs() as lines, gateway(LoginSettings(password_file=str(users))) as (running, probes):
        mqtt = running.addresses[1][1]
        both = {"gateway-1": (mqtt, probes), "gateway-2": (mqtt, probes)}
        with haproxy(tmp_path, both) as port, socket_from(DEVICE, port) as device:
            device.send(connect(level=5, flags=0xC2, payload=text("c") + text("ada") + text("guess")))
            device.packet()
    assert [line["address"] for line in lines if line["event"] == "login_refused"] == [DEVICE]
