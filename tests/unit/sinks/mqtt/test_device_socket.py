"""sinks.mqtt.device_socket: a socket carries out what its connection returns, in an order that holds up. No real socket."""

import asyncio
from dataclasses import replace
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from sinks.kafka.append import AppendFailed, Confirmation
from sinks.mqtt.access.authenticator import auth_policy_of
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.device_socket import DeviceSocket
from sinks.mqtt.gateway import Gateway
from sinks.mqtt.limits.takeovers import FREE
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from state.commands import AcceptConnection, CloseConnection, CommandBatch, OfferPublish, SendPubRel
from state.model import Position, ReasonCode
from state.records.commands import encode_command_batch
from tests.support.waiting import DEADLINE_S, until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

SETTINGS = GatewaySettings()
CONNACK = bytes.fromhex("20020000")


class Transport(asyncio.Transport):
    """is_full: it tells its protocol so at every write."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.writes = b"", 0
        self.is_full = self.is_reading = self.is_closed = False
        self.can_be_shut = self.is_shut = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.data += data
        self.writes += 1
        if self.is_full:
            self.protocol.pause_writing()

    def take(self) -> bytes:
        data, self.data = self.data, b""
        return data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def can_write_eof(self) -> bool:
        return self.can_be_shut

    def write_eof(self) -> None:
        self.is_shut = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Host:
    """A gateway with a lease and a partition, on a log that confirms on request."""

    def __init__(self) -> None:
        self.unconfirmed: list[Confirmation] = []
        self.gateway = Gateway(SETTINGS, self, GatewayCounters())  # type: ignore[arg-type]
        self.gateway.start()
        while not self.gateway.lease.holds():  # a confirmation that took long on a busy machine is followed by another renewal
            self.confirm()
        self.gateway.partitions_assigned(frozenset({0}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gateway.stop()

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any, done: Confirmation, **_: Any) -> None:
        if topic != SETTINGS.fast_path.wake_ups_topic:
            self.unconfirmed.append(done)

    def confirm(self) -> None:
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for done in unconfirmed:
            done(None)

    def pass_lease(self) -> None:
        """Lets the lease expire; the gateway notices at the next event."""
        self.gateway.lease._holds_until_ms = 0

    def command(self, socket: DeviceSocket, kind: type[Any], **fields: Any) -> None:
        """Delivers a command of the engine."""
        command = kind(connection_id=socket.connection.connection_id, partition=0, sequence=1, **fields)
        record = encode_command_batch(CommandBatch(client_id=socket.client_id, commands=(command,)))
        for answer in self.gateway.commands(0, [record]):
            answer()

    def socket(self) -> tuple[DeviceSocket, Transport]:
        socket, transport = self.gateway.new_socket(auth_policy_of(SETTINGS.plain_listener, SETTINGS)), Transport()
        transport.protocol, transport.is_reading = socket, True
        socket.connection_made(transport)
        return socket, transport


@pytest.mark.parametrize(("level", "refusal"), [(4, "20020003"), (5, "2003008900")])
async def test_a_connect_confirmed_after_the_lease_expired_is_refused(level: int, refusal: str) -> None:
    """The device gets no CONNACK 0x00, and no DISCONNECT before CONNACK [MQTT-3.14.0-1]."""
    with Host() as host:
        socket, transport = host.socket()
        socket.data_received(connect(level=level))
        host.pass_lease()
        host.confirm()
        assert transport.take() == bytes.fromhex(refusal)
        assert transport.is_closed
        assert host.gateway.connections == {}


def shut(host: Host) -> tuple[DeviceSocket, Transport]:
    """Returns a socket whose device has got its last packet."""
    socket, transport = host.socket()
    transport.can_be_shut = True
    socket.data_received(connect(level=5))
    socket.close_at_once(CloseReason("test", "gateway", ReasonCode.SERVER_BUSY), 0)
    assert transport.take() == bytes.fromhex("2003008900")
    return socket, transport


async def test_what_comes_behind_the_last_packet_is_read_and_discarded() -> None:
    with Host() as host:
        socket, transport = shut(host)
        transport.is_reading = True
        for _ in range(8):
            socket.data_received(bytes(100_000))
        host.confirm()
        assert (transport.is_shut, transport.is_closed, transport.is_reading) == (True, False, True)
        assert transport.take() == b""
        socket.connection_lost(None)
        assert host.gateway.limits.discarding == set()


async def test_a_device_that_does_not_stop_sending_is_cut_off() -> None:
    with Host() as host:
        socket, transport = shut(host)
        for _ in range(11):
            assert not transport.is_closed
            socket.data_received(bytes(100_000))
        assert transport.is_closed


async def test_a_device_that_does_not_close_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.mqtt.device_socket._DISCARD_S", 0.01)
    with Host() as host:
        _, transport = shut(host)
        assert not transport.is_closed
        await until(lambda: transport.is_closed, "its time is over")


async def test_only_so_many_sockets_are_read_after_their_last_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.mqtt.device_socket._MOST_DISCARDING", 1)
    with Host() as host:
        assert [shut(host)[1].is_closed for _ in range(2)] == [False, True]


async def test_a_device_that_is_still_sending_gets_its_last_packet() -> None:
    """A socket that is closed with unread bytes is reset."""
    with Host() as host:
        loop = asyncio.get_running_loop()
        policy = auth_policy_of(SETTINGS.plain_listener, SETTINGS)
        server = await loop.create_server(lambda: host.gateway.new_socket(policy), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(connect(level=9) + bytes(900_000))
            await writer.drain()
            async with asyncio.timeout(DEADLINE_S):
                assert await reader.read() == bytes.fromhex("2003008400"), "CONNACK, and the end"
            writer.write(b"more")
            await writer.drain()
            writer.close()
            await until(lambda: not host.gateway.limits.discarding, "it is closed")


async def test_packets_after_the_lease_expired_are_dropped() -> None:
    with Host() as host:
        socket, transport = host.socket()
        socket.data_received(connect(level=5))
        host.confirm()
        transport.take()
        host.pass_lease()
        socket.data_received(publish("t", b"x", v5=b""))
        assert transport.take() == bytes.fromhex("e00189")
        assert len(host.unconfirmed) == 1, "ConnectionLost, and no publication"


@pytest.mark.parametrize("fails_first", [False, True])
async def test_an_end_is_repeated_until_it_is_in_the_log_and_then_not_again(fails_first: bool) -> None:
    with Host() as host:
        socket, _ = host.socket()
        socket.data_received(connect())
        host.confirm()
        host.command(socket, AcceptConnection, session_present=False, max_awaiting_rel=100, send_quota=32)
        socket.connection_lost(None)
        if fails_first:
            [done], host.unconfirmed = host.unconfirmed, []
            done(AppendFailed("late"))
            host.gateway.lease._renewing()
        host.confirm()
        host.gateway.lease._renewing()
        host.command(socket, SendPubRel, packet_id=1)
        assert host.unconfirmed == [], "the engine knows"


async def test_a_transport_that_is_full_after_a_write_stays_so() -> None:
    """The transport pauses inside the write; earlier effects of the connection must not undo it."""
    with Host() as host:
        socket, transport = host.socket()
        socket.data_received(connect(level=5))
        transport.is_full = True
        host.confirm()
        assert transport.take()[0] == CONNACK[0]
        assert socket.connection.is_blocked
        transport.is_full = False
        socket.resume_writing()
        assert not socket.connection.is_blocked
        assert transport.is_reading


async def test_a_changed_limit_of_connections_holds_for_the_next_socket() -> None:
    with Host() as host:
        _, first = host.socket()
        host.gateway.reconfigure(replace(SETTINGS, device_limits=DeviceLimits(max_connections=1)))
        _, second = host.socket()
        assert (first.is_closed, second.is_closed) == (False, True)


async def test_a_bug_costs_the_connection_that_it_happens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Host() as host:
        (unlucky, gone), (_, other) = host.socket(), host.socket()
        with monkeypatch.context() as patch:
            patch.setattr("sinks.mqtt.connection.connection.WireConnection._read_connect", None)
            unlucky.data_received(connect())
        assert gone.is_closed
        assert not other.is_closed
        assert host.gateway.counters.bugs == 1


@pytest.mark.parametrize("is_always_late", [False, True])
async def test_devices_are_read_before_they_count_as_silent_after_a_standstill(is_always_late: bool) -> None:
    """[MQTT-3.1.2-22] The timer of a process that stood still comes before the bytes that arrived meanwhile."""
    with Host() as host:
        socket, transport = host.socket()
        closed = asyncio.Event()
        transport.close = closed.set  # type: ignore[method-assign]
        late_ms = 2 * SETTINGS.connect_timeout_ms
        host.gateway.now_ms = lambda: int(asyncio.get_running_loop().time() * 1_000) + late_ms  # type: ignore[method-assign]
        socket._on_timer()
        assert not closed.is_set()
        late_ms *= 2 if is_always_late else 1
        await asyncio.wait_for(closed.wait(), DEADLINE_S)


def taken_over(host: Host) -> Transport:
    """Returns the transport of a connection of c1 that another one has taken over."""
    socket, transport = host.socket()
    socket.data_received(connect(level=5))
    host.confirm()
    assert transport.take()[3] == 0
    command = CloseConnection(
        connection_id=socket.connection.connection_id, partition=0, sequence=1, reason_code=ReasonCode.SESSION_TAKEN_OVER
    )
    socket.feed(socket.connection.apply, (command,), "")
    assert transport.take()[2] == ReasonCode.SESSION_TAKEN_OVER
    return transport


async def test_takeovers_of_one_client_in_a_row_are_counted_and_logged() -> None:
    """Two devices with one client id would take each other's connection for ever."""
    with Host() as host:
        with capture_logs() as lines:
            for _ in range(FREE + 1):
                assert taken_over(host).is_closed
        assert [line["takeovers"] for line in lines if line["event"] == "client_id_contested"] == [FREE + 1]
        assert host.gateway.counters.takeovers == FREE + 1
        host.gateway.count_load()
        assert host.gateway.counters.clients_contested == 1


async def test_another_device_of_a_contested_client_gets_its_turn_after_the_wait() -> None:
    with Host() as host:
        for _ in range(FREE + 1):
            host.gateway.limits.takeovers.record("c1", host.gateway.now_ms() - 900)
        socket, transport = host.socket()
        socket.data_received(connect(level=5))
        host.confirm()
        assert transport.take() == b"", "it waits for 100 ms"
        await until(lambda: host.unconfirmed, "it goes on")
        host.confirm()
        assert transport.take()[3] == 0


async def test_a_contested_client_gets_in_before_its_time_is_over() -> None:
    with Host() as host:
        host.gateway.settings = replace(SETTINGS, connect_timeout_ms=1_000)
        for _ in range(FREE + 6):
            host.gateway.limits.takeovers.record("c1", host.gateway.now_ms())
        assert host.gateway.limits.takeovers.wait_ms("c1", host.gateway.now_ms()) > 1_000
        socket, transport = host.socket()
        socket.data_received(connect(level=5))
        host.confirm()
        other, its_transport = host.socket()
        other.data_received(connect(level=5, payload=text("other")))
        host.confirm()
        assert its_transport.take()[3] == 0, "it does not wait"
        assert transport.take() == b""
        await until(lambda: host.unconfirmed, "it goes on")
        host.confirm()
        assert transport.take()[3] == 0


async def test_a_contested_client_that_has_left_is_forgotten() -> None:
    with Host() as host:
        for _ in range(FREE + 1):
            host.gateway.limits.takeovers.record("c1", host.gateway.now_ms() - 950)
        socket, _ = host.socket()
        socket.data_received(connect(level=5))
        socket.connection_lost(None)
        await asyncio.sleep(0.1)
        assert host.unconfirmed == []


async def test_answers_that_are_confirmed_together_are_written_together() -> None:
    with Host() as host:
        socket, transport = host.socket()
        socket.data_received(connect())
        host.confirm()
        assert transport.take() == CONNACK
        host.command(socket, AcceptConnection, max_awaiting_rel=100, send_quota=32)
        socket.data_received(b"".join(publish("t", first_byte=0x32, packet_id=packet_id) for packet_id in (1, 2, 3)))
        writes = transport.writes
        assert len(host.unconfirmed) == 3
        host.confirm()
        assert transport.writes == writes
        await until(lambda: bool(transport.data), "the answers")
        assert transport.data == bytes.fromhex("40020001 40020002 40020003")
        assert transport.writes == writes + 1


@pytest.mark.parametrize(("unsent_bytes", "is_closed"), [(0, False), (10_000, True)])
async def test_offers_are_forgotten_before_a_connection_is_closed_for_memory(unsent_bytes: int, is_closed: bool) -> None:
    """A connection whose offers are less than half of what it holds is closed: forgetting them would not help."""
    with Host() as host:
        socket, transport = host.socket()
        socket.data_received(connect())
        host.confirm()
        host.command(socket, AcceptConnection, session_present=False, max_awaiting_rel=100, send_quota=32)
        connection_id = socket.connection.connection_id
        offer = OfferPublish(connection_id=connection_id, position=Position(0, 1), previous=0, timestamp_ms=1, payload=b"p")
        socket.feed(socket.connection.offer, [offer], False, 1)
        assert socket.held_bytes > 0
        transport.get_write_buffer_size = lambda: unsent_bytes  # type: ignore[method-assign]
        socket.free_memory()
        assert (socket.connection.is_closed, socket.connection.held_offers_bytes) == (is_closed, 0)
