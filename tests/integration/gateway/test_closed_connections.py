"""A closed connection leaves nothing in memory for the garbage collector.

A collector that has to find connections runs every second under devices that come and go, and stops everybody for 0.1 s."""

import gc
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest

from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.device_socket import DeviceSocket
from sinks.mqtt.listeners.websocket import WebSocketProtocol
from sinks.mqtt.settings import GatewaySettings, ListenerSettings, Transport
from state.commands import SendPublish
from state.model import QoS
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient, running_gateway
from tests.integration.gateway.test_proxy_protocol import header
from tests.integration.gateway.websocket_device import WebSocketStream
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

CONNACK = "20020000"
TIMES = 3
PLAIN, PROXIED, TLS, WEBSOCKET, WEBSOCKET_TLS = range(5)


@pytest.fixture(scope="module")
def gateway(authority: Authority) -> Iterator[GatewayUnderTest]:
    listeners = (
        ListenerSettings(port=0, anonymous=True, proxies=("127.0.0.0/8",)),
        authority.listener(),
        ListenerSettings(port=0, transport=Transport.WEBSOCKET),
        authority.listener(transport=Transport.WEBSOCKET),
    )
    with running_gateway(GatewaySettings(listeners=listeners)) as running:
        yield running


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def opened(gateway: GatewayUnderTest, listener: int, authority: Authority) -> RawClient:
    stream = socket.create_connection(gateway.addresses[listener], timeout=DEADLINE_S)
    if listener == PROXIED:
        stream.sendall(header("192.0.2.7"))
    if listener in (TLS, WEBSOCKET_TLS):
        stream = ssl.create_default_context(cafile=str(authority.file)).wrap_socket(stream, server_hostname="localhost")
    return RawClient(WebSocketStream(stream) if listener in (WEBSOCKET, WEBSOCKET_TLS) else stream)  # type: ignore[arg-type]


def says_nothing(device: RawClient, gateway: GatewayUnderTest) -> None:
    pass


def goes_without_a_word(device: RawClient, gateway: GatewayUnderTest) -> None:
    device.send(connect(payload=text("silent")))
    device.expect(CONNACK)


def disconnects(device: RawClient, gateway: GatewayUnderTest) -> None:
    device.send(connect(payload=text("polite")) + publish("up", b"x", first_byte=0x32, packet_id=7))
    device.expect(CONNACK + "40020007")
    device.send("e000")
    assert device.rest() == b""


def goes_with_a_message_in_flight(device: RawClient, gateway: GatewayUnderTest) -> None:
    device.send(connect(payload=text("busy"), flags=0))
    device.expect(CONNACK)
    gateway.kafka.command("busy", SendPublish, packet_id=1, topic="t", payload=b"x", qos=QoS(1))
    assert device.packet()[0] == 0x32


def sends_no_mqtt(device: RawClient, gateway: GatewayUnderTest) -> None:
    device.send("ffffffffff")
    assert device.rest() == b""


def breaks_the_protocol(device: RawClient, gateway: GatewayUnderTest) -> None:
    device.send(connect(payload=text("rude")))
    device.expect(CONNACK)
    device.send("3602000100")
    assert device.rest() == b""


def is_refused(device: RawClient, gateway: GatewayUnderTest) -> None:
    device.send(connect(payload=text("c\x01")))
    assert device.rest() == bytes.fromhex("20020002")


def left() -> list[object]:
    return [thing for thing in gc.get_objects() if isinstance(thing, WireConnection | DeviceSocket | WebSocketProtocol)]


@pytest.mark.parametrize("listener", [PLAIN, PROXIED, TLS, WEBSOCKET, WEBSOCKET_TLS])
@pytest.mark.parametrize(
    "device_that",
    [
        says_nothing,
        goes_without_a_word,
        disconnects,
        goes_with_a_message_in_flight,
        sends_no_mqtt,
        breaks_the_protocol,
        is_refused,
    ],
)
def test_nothing_is_left_for_the_collector(
    device_that: Callable[[RawClient, GatewayUnderTest], None], listener: int, gateway: GatewayUnderTest, authority: Authority
) -> None:
    for _ in range(TIMES):
        with opened(gateway, listener, authority) as device:
            device_that(device, gateway)
    wait_until(lambda: not left(), "all of it is gone without the collector")
