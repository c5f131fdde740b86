"""A gateway's listeners as a whole: what is said at the start, and what stops it."""

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.settings import GatewaySettings, ListenerSettings, LoginSettings
from tests.integration.gateway.gateway_fakes import running_gateway
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP
from tests.unit.sinks.mqtt.listeners.test_listening import needs_ipv6
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

ROOT = Path(__file__).parents[3]


def test_the_log_says_where_devices_connect_and_where_without_a_login() -> None:
    everywhere = ListenerSettings(host="0.0.0.0", port=0, anonymous=True)
    with capture_logs() as lines, running_gateway(GatewaySettings(listeners=(everywhere,))) as gateway:
        assert [host for host, _ in gateway.addresses] == ["127.0.0.1", "0.0.0.0"]
    said = [(line["host"], line["anonymous"], line["tls"]) for line in lines if line["event"] == "listening"]
    assert said == [("127.0.0.1", True, False), ("0.0.0.0", True, False)]
    assert [line["host"] for line in lines if line["event"] == "anonymous_devices_from_the_network"] == ["0.0.0.0"]


def test_a_network_listener_without_a_login_lets_nobody_in() -> None:
    """The configuration refuses it before; a gateway would, too."""
    with running_gateway(GatewaySettings(listeners=(ListenerSettings(host="0.0.0.0", port=0),))) as gateway:
        with gateway.socket() as local:
            local.send(connect())
            local.expect("20020000")
        with socket.create_connection(("127.0.0.1", gateway.addresses[1][1])) as remote:
            remote.sendall(connect())
            assert remote.recv(100) == bytes.fromhex("20020004")


def test_a_taken_port_is_named_and_nothing_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
        probe.close()
        used = taken.getsockname()[1]
        listeners = (ListenerSettings(port=free), ListenerSettings(port=used))
        with (
            pytest.raises(OSError, match="Address already in use") as caught,
            running_gateway(GatewaySettings(listeners=listeners)),
        ):
            pass
        assert caught.value.filename == f"127.0.0.1:{used}"
        socket.create_server(("127.0.0.1", free)).close()


@pytest.mark.parametrize(
    "settings",
    [
        GatewaySettings(login=LoginSettings(password_file="missing")),
        GatewaySettings(login=LoginSettings(token_keyfile="missing")),
        GatewaySettings(listeners=(ListenerSettings(port=0, tls_certfile="missing"),)),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start(settings: GatewaySettings, tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="missing"), running_gateway(settings):
        pass


def test_a_device_with_another_protocol_is_named_in_the_log() -> None:
    with capture_logs() as lines, running_gateway() as gateway, gateway.socket() as behind_a_balancer:
        behind_a_balancer.send(b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 1883\r\n")
        behind_a_balancer.expect_closed()
    (refused,) = (line for line in lines if line["event"] == "connect_refused")
    assert refused["address"] == "127.0.0.1"
    assert refused["reason"].startswith("a PROXY protocol v1 header")


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "localhost"])
def test_every_address_of_a_listener_takes_devices(host: str) -> None:
    listener = ListenerSettings(host=host, port=0, anonymous=True)
    with running_gateway(GatewaySettings(listeners=(listener,))) as gateway:
        port = gateway.addresses[1][1]
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, port)) as device:
                device.sendall(connect(payload=text(address)))
                assert device.recv(100) == bytes.fromhex("20020000")


def test_a_gateway_at_its_limit_of_open_files_says_so_and_goes_on() -> None:
    """In a process of its own: the limit holds for all threads of one."""
    code = f"from {__name__} import reach_the_limit_of_open_files as reach; reach()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def reach_the_limit_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as lines, running_gateway() as gateway, gateway.socket() as before:
        before.send(connect(payload=text("before")))
        before.expect("20020000")
        resource.setrlimit(resource.RLIMIT_NOFILE, (before.socket.fileno(), hard))
        try:
            wait_until(lambda: any(line["event"] == "cannot_accept" for line in lines), "it says so")
            before.send(PINGREQ)
            before.expect(PINGRESP)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with gateway.socket() as after:
            after.send(connect(payload=text("after")))
            after.expect("20020000")
