"""A limited number of devices may connect, at a limited rate; the others wait or are refused. On real sockets."""

import contextlib
import selectors
import socket
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from sinks.mqtt.settings import DeviceLimits, GatewaySettings, ListenerSettings
from state.commands import AcceptConnection
from state.events import ClientConnected
from tests.integration.gateway.certificates import Authority
from tests.integration.gateway.gateway_fakes import RawClient, running_gateway, standing_still
from tests.integration.gateway.test_proxy_protocol import header, opened
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

CONNACK = "20020000"


def limited(**limits: int) -> GatewaySettings:
    return GatewaySettings(device_limits=DeviceLimits(**limits))  # type: ignore[arg-type]


def test_one_connection_too_many_is_closed_and_those_before_it_stay() -> None:
    with running_gateway(limited(max_connections=2)) as gateway, gateway.socket() as first, gateway.socket() as second:
        for number, device in enumerate((first, second)):
            device.send(connect(payload=text(f"d{number}")))
            device.expect(CONNACK)
        with gateway.socket() as third:
            assert third.rest() == b""
        assert gateway.counters.limits_reached == {"max_connections": 1}
        first.send("c000")
        first.expect("d000")
        second.socket.close()
        wait_until(lambda: gateway.counters.connections_open == 1, "the second one is gone")
        with gateway.socket() as fourth:
            fourth.send(connect(payload=text("d4")))
            fourth.expect(CONNACK)


def test_an_address_behind_a_proxy_has_its_own_limit() -> None:
    listener = ListenerSettings(port=0, anonymous=True, proxies=("127.0.0.0/8",))
    limits = DeviceLimits(max_connections_per_address=1)
    with running_gateway(GatewaySettings(listeners=(listener,), device_limits=limits)) as gateway:
        with RawClient(opened(gateway)) as first, RawClient(opened(gateway)) as second, RawClient(opened(gateway)) as other:
            first.send(header("192.0.2.7") + connect(payload=text("a")))
            first.expect(CONNACK)
            second.send(header("192.0.2.7") + connect(payload=text("b")))
            assert second.rest() == b""
            other.send(header("192.0.2.8") + connect(payload=text("c")))
            other.expect(CONNACK)
        assert gateway.counters.limits_reached == {"max_connections_per_address": 1}
        assert gateway.counters.sockets_refused == {}


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.promise("connect-floods")
def test_sockets_that_say_nothing_keep_nobody_out(tls: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    settings = GatewaySettings(
        listeners=(authority.listener(),), device_limits=DeviceLimits(max_awaiting_connect=10), connect_timeout_ms=600_000
    )
    with running_gateway(settings) as gateway, contextlib.ExitStack() as silent:
        for _ in range(60):
            silent.enter_context(opened(gateway) if tls else gateway.socket())
        wait_until(lambda: gateway.counters.limits_reached["max_awaiting_connect"] >= 50, "the oldest ones are closed")
        with gateway.socket() as device:
            device.send(connect())
            device.expect(CONNACK)
        assert gateway.counters.limits_reached["max_awaiting_connect"] == 51


@pytest.mark.parametrize("transport", ["plain", "behind a proxy"])
def test_a_gateway_that_stood_still_closes_nobody_who_sent_connect(transport: str) -> None:
    """uvloop accepts one socket in a turn, and reads what others have sent in between. A loop that took all that wait first, as
    asyncio's own does, would close the oldest of them for saying nothing."""
    listeners = (ListenerSettings(port=0, anonymous=True, proxies=("127.0.0.0/8",)),) if transport != "plain" else ()
    settings = GatewaySettings(listeners=listeners, device_limits=DeviceLimits(max_awaiting_connect=20))
    with running_gateway(settings) as gateway, contextlib.ExitStack() as stack:
        address = gateway.addresses[-1]
        goes_on = stack.enter_context(standing_still(gateway))
        hello = (header("192.0.2.7") if listeners else b"") + connect(payload=text(""))
        waiting = [stack.enter_context(socket.socket()) for _ in range(60)]
        with selectors.DefaultSelector() as connecting:
            for device in waiting:
                device.setblocking(False)
                device.connect_ex(address)
                connecting.register(device, selectors.EVENT_WRITE)
            first = connecting.select(0)
            while connecting.get_map():
                for key, _ in first or connecting.select(DEADLINE_S):
                    connecting.unregister(key.fileobj)
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.setblocking(True)
                    key.fileobj.settimeout(DEADLINE_S)
                    key.fileobj.sendall(hello)
                first = []
                goes_on.set()
        for device in waiting:
            RawClient(device).expect(CONNACK)
        assert gateway.counters.limits_reached == {}


def said(lines: list[EventDict], event: str) -> list[EventDict]:
    return [line for line in list(lines) if line["event"] == event]


def left_out(lines: list[EventDict]) -> int:
    return sum(line["count"] for line in said(lines, "more_connects_too_late"))


@pytest.mark.promise("connect-given-up")
def test_a_flood_of_connects_whose_devices_have_gone_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.log_throttle._WINDOW_S", 1.0)
    with capture_logs() as lines, running_gateway() as gateway:
        began_s = time.monotonic()
        with standing_still(gateway):
            for _ in range(60):
                with gateway.socket() as device:
                    device.send(connect(payload=text("")))
        wait_until(lambda: len(said(lines, "connect_too_late")) + left_out(lines) == 60, "each has a line or is counted")
    late = said(lines, "connect_too_late")
    assert len(late) <= 10 * (2 + time.monotonic() - began_s), "ten for each second, or part of one, that this takes"
    assert all(line["gone"] for line in late)


@pytest.mark.promise("connect-given-up")
def test_connects_wait_for_a_silent_engine_and_those_that_left_are_dropped() -> None:
    with running_gateway(limited(max_unanswered_connects=1)) as gateway:
        gateway.kafka.accepting.fields = None
        with gateway.socket() as first, gateway.socket() as gone, gateway.socket() as third:
            first.send(connect(flags=0x00, payload=text("first")))
            gateway.kafka.wait_for("first", ClientConnected)
            gone.send(connect(flags=0x00, payload=text("gone")))
            assert gone.is_silent()
            third.send(connect(flags=0x00, payload=text("third")))
            assert third.is_silent()
            gone.socket.close()
            wait_until(lambda: gateway.counters.sockets_open == 2, "the gateway has noticed")
            gateway.kafka.command("first", AcceptConnection)
            first.expect(CONNACK)
            gateway.kafka.wait_for("third", ClientConnected)
            gateway.kafka.command("third", AcceptConnection)
            third.expect(CONNACK)
        assert not [record for record in gateway.kafka.records if record.key == b"gone"]


def test_when_too_many_wait_the_others_are_told_to_come_later() -> None:
    with running_gateway(limited(max_unanswered_connects=1, max_waiting_connects=1)) as gateway:
        gateway.kafka.accepting.fields = None
        with gateway.socket() as first, gateway.socket() as second, gateway.socket() as third:
            first.send(connect(level=5, flags=0x00, payload=text("first")))
            gateway.kafka.wait_for("first", ClientConnected)
            second.send(connect(level=5, flags=0x00, payload=text("second")))
            assert second.is_silent()
            third.send(connect(level=5, flags=0x00, payload=text("third")))
            assert third.packet()[3] == 0x89
            third.expect_closed()
        assert gateway.counters.limits_reached == {"max_waiting_connects": 1}


@pytest.mark.promise("connect-floods")
def test_devices_that_come_back_together_get_in_at_the_rate() -> None:
    with running_gateway(limited(max_connect_rate=100)) as gateway, contextlib.ExitStack() as open_sockets:
        there = open_sockets.enter_context(gateway.socket())
        there.send(connect(payload=text("there")))
        there.expect(CONNACK)
        started_s = time.monotonic()
        devices = [open_sockets.enter_context(gateway.socket()) for _ in range(150)]
        for number, device in enumerate(devices):
            device.send(connect(payload=text(f"d{number}")))
        there.send(publish("t", first_byte=0x32, packet_id=1))
        there.expect("40020001")  # long before the last of them, on a machine that is not slower than the rate
        for device in devices:
            device.expect(CONNACK)
        assert time.monotonic() - started_s > (150 - 10) / 100, "no faster than the rate"
        assert gateway.counters.connections_refused == {}
