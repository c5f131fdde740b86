"""Listeners behind a load balancer know the address of a device, from a balancer that may say it."""

import socket
import ssl
import struct
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sinks.mqtt.settings import GatewaySettings, ListenerSettings, LoginSettings
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
CONNACK = "20020000"


def header(source: str, *, extra: bytes = b"") -> bytes:
    body = socket.inet_aton(source) + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 40_000, 8_883) + extra
    return SIGNATURE + b"\x21\x11" + struct.pack("!H", len(body)) + body


def opened(gateway: GatewayUnderTest) -> socket.socket:
    return socket.create_connection(gateway.addresses[1], timeout=DEADLINE_S)


def test_the_header_may_come_in_pieces_and_together_with_connect() -> None:
    listener = ListenerSettings(port=0, anonymous=True, proxies=("127.0.0.0/8",))
    with running_gateway(GatewaySettings(listeners=(listener,))) as gateway:
        with RawClient(opened(gateway)) as device:
            device.send(header("192.0.2.7", extra=b"\x04\x00\x02ab") + connect())
            device.expect(CONNACK)
        with RawClient(opened(gateway)) as slow:
            for byte in header("192.0.2.7"):
                slow.send(bytes((byte,)))
            slow.send(connect(payload=text("c2")))
            slow.expect(CONNACK)
        with RawClient(opened(gateway)) as check:  # of the balancer itself
            check.send(SIGNATURE + b"\x20\x00\x00\x00" + connect(payload=text("c3")))
            check.expect(CONNACK)


def test_a_refused_login_is_blamed_on_the_device_and_not_on_the_proxy(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("", encoding="utf-8")
    listener = ListenerSettings(port=0, proxies=("127.0.0.1",))
    login = LoginSettings(password_file=str(users), max_failures=1, failure_wait_ms=60_000)
    guess = connect(level=5, flags=0xC2, payload=text("c") + text("ada") + text("guess"))
    with capture_logs() as lines, running_gateway(GatewaySettings(listeners=(listener,), login=login)) as gateway:
        answers = []
        for begin in (header("192.0.2.7"), b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 8883\r\n", header("192.0.2.8")):
            with RawClient(opened(gateway)) as device:
                device.send(begin + guess)
                answers.append(device.packet()[3])
    assert answers == [0x86, 0x89, 0x86]
    refused = [line["address"] for line in lines if line["event"] == "login_refused"]
    assert refused == ["192.0.2.7", "192.0.2.7", "192.0.2.8"]


def test_tls_begins_behind_the_header(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    secured = authority.listener()
    listener = ListenerSettings(port=0, proxies=("127.0.0.1",), anonymous=True, tls_certfile=secured.tls_certfile)
    with running_gateway(GatewaySettings(listeners=(listener,))) as gateway:
        plain = opened(gateway)
        plain.sendall(header("192.0.2.7"))
        context = ssl.create_default_context(cafile=str(authority.file))
        with RawClient(context.wrap_socket(plain, server_hostname="localhost")) as device:
            device.send(connect())
            device.expect(CONNACK)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (connect() + bytes(16), "no PROXY protocol header"),
        (b"PROXY TCP4 192.0.2.700 10.0.0.1 40000 8883\r\n", "a PROXY protocol v1 header"),
        (SIGNATURE + b"\x21\x11\xff\xff", "a PROXY protocol header of 65535 bytes"),
    ],
)
def test_without_a_header_nobody_gets_in(first: bytes, reason: str) -> None:
    listener = ListenerSettings(port=0, proxies=("127.0.0.1",))
    with capture_logs() as lines, running_gateway(GatewaySettings(listeners=(listener,))) as gateway:
        with RawClient(opened(gateway)) as device:
            device.send(first)
            device.expect_closed()
        wait_until(lambda: gateway.counters.sockets_refused == {"PROXY header": 1}, "it is counted")
    (refused,) = (line for line in lines if line["event"] == "socket_refused")
    assert refused["reason"].startswith(reason)


def test_a_header_from_elsewhere_is_not_believed() -> None:
    listener = ListenerSettings(port=0, anonymous=True, proxies=("192.0.2.0/24",))
    with running_gateway(GatewaySettings(listeners=(listener,))) as gateway, RawClient(opened(gateway)) as device:
        device.send(header("127.0.0.1") + connect())
        device.expect_closed()


def test_half_a_header_is_waited_for_as_long_as_for_connect() -> None:
    listener = ListenerSettings(port=0, proxies=("127.0.0.1",))
    settings = GatewaySettings(listeners=(listener,), connect_timeout_ms=500)
    with running_gateway(settings) as gateway, RawClient(opened(gateway)) as device:
        device.send(SIGNATURE)
        device.expect_closed()
