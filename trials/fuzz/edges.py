"""Fuzzes what is read before MQTT: the header of the PROXY protocol, and WebSocket."""

import asyncio
import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import Final

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, Ping, Request, TextMessage
from wsproto.utilities import ProtocolError

from sinks.mqtt.listeners.listener import ListenerStep
from sinks.mqtt.listeners.proxy_protocol import ProxyHeaderInvalid, read_header
from sinks.mqtt.listeners.websocket import WebSocketProtocol
from sinks.mqtt.settings import ListenerSettings, Transport
from tests.unit.sinks.mqtt.listeners.test_websocket import Inside, Socket
from trials.fuzz.mutations import mutated, pieces
from trials.fuzz.target import Target

_HEADER: Final = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes((192, 0, 2, 1, 192, 0, 2, 2, 0, 80, 7, 91))
_LINE: Final = b"PROXY TCP4 192.0.2.1 192.0.2.2 80 1883\r\n"
_EVENTS: Final = (BytesMessage(data=b"\xc0\x00"), BytesMessage(data=bytes(300)), Ping(payload=b"p"), TextMessage(data="t"))


class ProxyHeaders(Target):
    name = "PROXY protocol"

    def feed(self, dice: random.Random) -> bool:
        rest = iter(mutated(dice, dice.choice((_HEADER, _LINE))))

        async def read(size: int) -> bytes:
            found = bytes(itertools.islice(rest, size))
            if len(found) < size:
                raise EOFError
            return found

        try:
            return asyncio.run(read_header(read)) is not None
        except (ProxyHeaderInvalid, EOFError):
            return False


class _Refused:
    """RefusalLog without a loop."""

    def refused(self, step: ListenerStep, address: str, reason: str) -> None:
        pass


class WebSockets(Target):
    """The upgrade, and frames of messages and pings."""

    name = "WebSocket"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._refused = _Refused()
        self._listener = ListenerSettings(transport=Transport.WEBSOCKET)

    def feed(self, dice: random.Random) -> bool:
        client = WSConnection(ConnectionType.CLIENT)
        hello = client.send(Request(host="h", target="/mqtt", subprotocols=["mqtt"]))
        inside = Inside()
        protocol = WebSocketProtocol(self._listener, inside, self._refused, "192.0.2.1")  # type: ignore[arg-type]
        socket = Socket()
        protocol.connection_made(socket)
        protocol.data_received(hello if dice.random() < 0.7 else mutated(dice, hello))
        if not socket.closing and socket.written:
            with suppress(ProtocolError):  # the answer to another request than the client's
                client.receive_data(b"".join(socket.written))
            known = [client.send(event) for event in _EVENTS] if client.state is ConnectionState.OPEN else [hello]
            for piece in pieces(dice, mutated(dice, b"".join(dice.choices(known, k=3)), known)):
                if not socket.closing:
                    protocol.data_received(piece)
        was_open = not socket.closing
        protocol.connection_lost(None)
        return was_open
