import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from sinks.mqtt.listeners.listener import ListenerStep
from sinks.mqtt.listeners.websocket import WebSocketProtocol
from sinks.mqtt.settings import ListenerSettings, Transport

NOT_ASCII = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: \xed\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
LISTENER = ListenerSettings(transport=Transport.WEBSOCKET)


class Socket(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.calls: list[str] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return self.closing

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limit {high}")

    def get_write_buffer_size(self) -> int:
        return 5

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return f"its {name}"


class Inside(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received: list[bytes] = []
        self.calls: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def pause_writing(self) -> None:
        self.calls.append("pause_writing")

    def resume_writing(self) -> None:
        self.calls.append("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("connection_lost")


class Refused:
    """RefusalLog without a loop."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refused(self, step: ListenerStep, address: str, reason: str) -> None:
        assert (step, address) == (ListenerStep.WEBSOCKET, "192.0.2.1")
        self.reasons.append(reason)


class Client:
    """A WebSocket client of the same library around the protocol under test."""

    def __init__(self, listener: ListenerSettings = LISTENER) -> None:
        self.socket, self.inside = Socket(), Inside()
        self.refused = Refused()
        self.protocol = WebSocketProtocol(listener, self.inside, self.refused, "192.0.2.1")  # type: ignore[arg-type]
        self.protocol.connection_made(self.socket)
        self.websocket = WSConnection(ConnectionType.CLIENT)

    @property
    def transport(self) -> asyncio.Transport:
        assert self.inside.transport is not None
        return self.inside.transport

    def send(self, *events: Event) -> None:
        self.protocol.data_received(b"".join(self.websocket.send(event) for event in events))

    def events(self) -> list[Event]:
        self.websocket.receive_data(b"".join(self.socket.written))
        self.socket.written.clear()
        return list(self.websocket.events())


def request(**changes: Any) -> Request:
    return Request(**{"host": "h", "target": "/mqtt", "subprotocols": ["mqtt"], **changes})


def connected(listener: ListenerSettings = LISTENER) -> Client:
    client = Client(listener)
    client.send(request())
    [accepted] = client.events()
    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == "mqtt"
    return client


def test_frames_are_a_stream_whatever_their_borders() -> None:
    """[MQTT-6.0.0-2] [MQTT-6.0.0-4]"""
    client = connected()
    client.send(BytesMessage(data=b"ab"), BytesMessage(data=b"c", message_finished=False), BytesMessage(data=b"d"))
    assert b"".join(client.inside.received) == b"abcd"
    whole = client.websocket.send(BytesMessage(data=b"efgh"))
    for start in range(len(whole)):
        client.protocol.data_received(whole[start : start + 1])
    assert b"".join(client.inside.received) == b"abcdefgh"


def test_a_write_is_one_binary_frame() -> None:
    client = connected()
    client.transport.write(b"x" * 70_000)
    assert b"".join(event.data for event in client.events() if isinstance(event, BytesMessage)) == b"x" * 70_000


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"target": "/other"}, 404),
        ({"subprotocols": []}, 400),
        ({"subprotocols": ["mqttv3.1.1", "MQTT"]}, 400),
        ({"extra_headers": [(b"Origin", b"https://evil.example.com")]}, 403),
    ],
)
def test_other_requests_are_rejected(changes: dict[str, Any], status: int) -> None:
    client = Client()
    client.send(request(**changes))
    rejected = client.events()[0]
    assert isinstance(rejected, RejectConnection)
    assert rejected.status_code == status
    assert len(client.refused.reasons) == 1
    assert client.socket.closing
    client.transport.write(b"never sent")
    assert client.socket.written == []


@pytest.mark.parametrize(
    ("offered", "chosen"), [(["mqttv3.1"], "mqttv3.1"), (["mqttv3.1", "mqtt"], "mqtt"), (["soap", "mqttv3.1"], "mqttv3.1")]
)
def test_clients_of_mqtt_3_1_offer_another_subprotocol(offered: list[str], chosen: str) -> None:
    client = Client()
    client.send(request(subprotocols=offered))
    accepted = client.events()[0]
    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == chosen


def test_a_query_behind_the_path_is_not_looked_at() -> None:
    client = Client()
    client.send(request(target="/mqtt?x=1"))
    assert isinstance(client.events()[0], AcceptConnection)


@pytest.mark.parametrize("origins", [("https://app.example.com",), ("*",)])
def test_pages_of_named_sites_may_connect(origins: tuple[str, ...]) -> None:
    client = Client(ListenerSettings(transport=Transport.WEBSOCKET, websocket_origins=origins))
    client.send(request(extra_headers=[(b"Origin", b"https://app.example.com")]))
    assert isinstance(client.events()[0], AcceptConnection)


def test_a_text_frame_closes() -> None:
    """[MQTT-6.0.0-1]"""
    client = connected()
    client.send(TextMessage(data="x"))
    [closed] = client.events()
    assert isinstance(closed, CloseConnection)
    assert closed.code == 1003
    assert client.refused.reasons == ["a text frame"]
    assert client.socket.closing


UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
VERSION = b"Sec-WebSocket-Version: 13\r\n"
MQTT = b"Sec-WebSocket-Protocol: mqtt\r\n"


@pytest.mark.parametrize(
    ("lines", "status", "header"),
    [
        (b"", 426, b"Upgrade: websocket"),
        (UPGRADE + KEY + MQTT + b"Sec-WebSocket-Version: 8\r\n", 426, VERSION),
        (UPGRADE + KEY + MQTT, 400, VERSION),
        (UPGRADE + VERSION + MQTT, 400, b""),
        (UPGRADE + VERSION + KEY, 400, b""),
        (UPGRADE + VERSION + KEY + b"Bad: \xed\r\n" + b"Host: \xed\r\n", 400, b""),
        (UPGRADE + VERSION + KEY + b"no colon\r\n", 400, b""),
        (UPGRADE + VERSION + KEY + MQTT + b"Origin: http://elsewhere\r\n", 403, b""),
    ],
)
def test_a_request_that_opens_no_websocket_gets_an_http_answer(lines: bytes, status: int, header: bytes) -> None:
    """RFC 6455, 4.2.2 and 4.4"""
    client = Client()
    client.protocol.data_received(b"GET /mqtt HTTP/1.1\r\nHost: h\r\n" + lines + b"\r\n")
    head, _, body = b"".join(client.socket.written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert header in head + b"\r\n"
    assert b"Content-Length: %d" % len(body) in head
    assert b"path /mqtt, subprotocol mqtt" in body
    assert client.socket.closing
    assert len(client.refused.reasons) == 1


@pytest.mark.parametrize("data", [b"\x10\x0e\x00\x04MQTT", b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000, NOT_ASCII])
def test_bytes_that_are_no_websocket_close(data: bytes) -> None:
    client = Client()
    client.protocol.data_received(data)
    client.protocol.data_received(data)
    assert client.socket.closing
    assert client.inside.received == []


def test_a_broken_frame_closes_and_what_came_before_counts() -> None:
    client = connected()
    client.protocol.data_received(client.websocket.send(BytesMessage(data=b"ab")) + b"\xff\xff")
    assert client.inside.received == [b"ab"]
    assert client.socket.closing


def test_pings_are_answered_but_not_for_a_device_that_does_not_read() -> None:
    client = connected()
    client.send(Ping(payload=b"1"))
    assert client.events() == [Pong(payload=b"1")]
    client.protocol.pause_writing()
    client.send(Ping(payload=b"2"))
    assert client.events() == []
    client.protocol.resume_writing()
    client.send(Ping(payload=b"3"))
    assert client.events() == [Pong(payload=b"3")]
    assert client.inside.calls == ["pause_writing", "resume_writing"]


def test_either_side_may_close() -> None:
    client = connected()
    client.transport.close()
    assert [type(event) for event in client.events()] == [CloseConnection]
    assert client.transport.is_closing()
    other = connected()
    other.send(CloseConnection(code=1000))
    assert other.socket.closing
    other.protocol.connection_lost(None)
    assert other.inside.calls == ["connection_lost"]


def test_a_shut_websocket_writes_nothing_and_reads_no_frames() -> None:
    client = connected()
    client.transport.write_eof()
    client.transport.write(b"late")
    assert client.socket.calls == ["write_eof"]
    client.send(Ping(payload=b"on its way"))
    client.protocol.data_received(b"no frame")
    assert [type(event) for event in client.events()] == [CloseConnection]
    assert not client.socket.closing


def test_other_calls_are_passed_to_the_socket() -> None:
    client = connected()
    client.transport.set_write_buffer_limits(high=7)
    client.transport.pause_reading()
    client.transport.resume_reading()
    client.transport.abort()
    assert client.socket.calls == ["limit 7", "pause_reading", "resume_reading", "abort"]
    assert client.transport.get_write_buffer_size() == 5
    assert client.transport.get_extra_info("peername") == "its peername"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10), st.booleans())
def test_only_binary_payload_gets_inside(chunks: list[bytes], is_open: bool) -> None:
    client = connected() if is_open else Client()
    for chunk in chunks:
        client.protocol.data_received(chunk)
    assert sum(map(len, client.inside.received)) <= sum(map(len, chunks))
    assert is_open or client.inside.received == []
