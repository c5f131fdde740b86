"""Carries MQTT over WebSocket (MQTT 5, chapter 6; RFC 6455): a protocol around the one that reads MQTT, and a transport for it.

1. The HTTP request is checked: path, origin, subprotocol. One that opens no WebSocket gets an HTTP answer.
2. The payload of binary frames is the MQTT stream, whatever their borders [MQTT-6.0.0-2]. A text frame closes [MQTT-6.0.0-1].
3. Pauses and buffer limits are those of the socket; nothing is buffered here.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final, TypeAlias, cast

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, RejectConnection, Request, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.handshake import WEBSOCKET_VERSION
from wsproto.utilities import ProtocolError, RemoteProtocolError

from sinks.log_throttle import RefusalLog
from sinks.mqtt.listeners.listener import ListenerStep
from sinks.mqtt.listeners.origins import is_origin_allowed
from sinks.mqtt.settings import ListenerSettings

_SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
"""The better one first. Clients that speak MQTT 3.1 offer the second one only. Each of them may carry any version."""
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class WebSocketProtocol(asyncio.Protocol):
    """Unpacks frames for `inside`, the protocol that reads MQTT.

    Args:
        address: The address of the device; None = it is the socket's peer.
    """

    def __init__(
        self, listener: ListenerSettings, inside: asyncio.Protocol, refused: RefusalLog, address: str | None = None
    ) -> None:
        self._listener = listener
        self._refused = refused
        self._address = address
        self._inside = inside
        self._websocket = WSConnection(ConnectionType.SERVER)
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self._is_blocked = False
        self._is_shut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inside.connection_made(cast(asyncio.Transport, WebSocketTransport(self._transport, self)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._inside.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._inside.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_shut:
            self._inside.data_received(data)  # which discards it
            return
        received: list[bytes] = []
        try:
            self._websocket.receive_data(data)
            for event in self._websocket.events():
                self._handle(event, received)
        except (ProtocolError, ValueError) as error:  # ValueError: headers that are not ASCII
            self._log_refusal(str(error))
            if self._is_open:
                self._close(CloseReason.PROTOCOL_ERROR)
            else:
                self._answer_http(*_answer_to(error), str(error))
        if received:
            self._inside.data_received(b"".join(received))

    # --- for WebSocketTransport -----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._is_open:
            self._send(BytesMessage(data=data))

    def close(self) -> None:
        self._close(CloseReason.NORMAL_CLOSURE)

    def write_eof(self) -> None:
        """Sends the Close frame, and nothing behind it. What comes now is not read as frames any more."""
        self._is_shut = True
        if self._is_open:
            self._is_open = False
            self._send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
        if self._transport is not None:
            self._transport.write_eof()

    # --- frames ---------------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event, received: list[bytes]) -> None:
        match event:
            case Request():
                self._answer(event)
            case BytesMessage(data=payload):
                received.append(bytes(payload))
            case TextMessage():
                self._log_refusal("a text frame")
                self._close(CloseReason.UNSUPPORTED_DATA)
            case Ping() if not self._is_blocked:  # else a device that never reads would fill the memory with answers
                self._send(event.response())
            case CloseConnection():
                self._close(CloseReason.NORMAL_CLOSURE)
            case _:
                pass

    def _answer(self, request: Request) -> None:
        listener = self._listener
        origins = [value.decode("latin-1") for name, value in request.extra_headers if name.lower() == b"origin"]
        if request.target.partition("?")[0] != listener.websocket_path:
            self._reject(HTTPStatus.NOT_FOUND, "path", request.target)
        elif not is_origin_allowed(
            origins, host=request.host, allowed=listener.websocket_origins, is_tls=bool(listener.tls_certfile)
        ):
            self._reject(HTTPStatus.FORBIDDEN, "origin", ", ".join(origins))
        elif (subprotocol := next((one for one in _SUBPROTOCOLS if one in request.subprotocols), None)) is None:
            self._reject(HTTPStatus.BAD_REQUEST, "subprotocol", ", ".join(request.subprotocols))
        else:
            self._is_open = True
            self._send(AcceptConnection(subprotocol=subprotocol))  # [MQTT-6.0.0-4]

    def _reject(self, status: HTTPStatus, what: str, value: str) -> None:
        self._log_refusal(f"another {what}: {value}")
        self._answer_http(status, (), f"another {what}")

    def _answer_http(self, status: HTTPStatus, headers: Headers, reason: str) -> None:
        """Answers a request that opens no WebSocket, and closes."""
        text = f"{reason}. This is MQTT over WebSocket: path {self._listener.websocket_path}, subprotocol {_SUBPROTOCOLS[0]}.\n"
        lines = [
            b"HTTP/1.1 %d %s" % (status, status.phrase.encode()),
            *(b"%s: %s" % header for header in headers),
            b"Connection: close" if status != HTTPStatus.UPGRADE_REQUIRED else b"Connection: Upgrade, close",
            b"Content-Type: text/plain",
            b"Content-Length: %d" % len(text.encode()),
        ]
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\r\n".join((*lines, b"", text.encode())))
        self._shut()

    def _log_refusal(self, reason: str) -> None:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        self._refused.refused(ListenerStep.WEBSOCKET, self._address or str((peer or ("",))[0]), reason=reason)

    def _close(self, reason: CloseReason) -> None:
        if self._is_open:
            self._is_open = False
            self._send(CloseConnection(code=reason))
        self._shut()

    def _send(self, event: Event) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._websocket.send(event))

    def _shut(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _answer_to(error: Exception) -> tuple[HTTPStatus, Headers]:
    """Returns the status of a request that the library refuses, and headers that say what is needed (RFC 6455, 4.2.2 and 4.4)."""
    hint = error.event_hint if isinstance(error, RemoteProtocolError) else None
    if not isinstance(hint, RejectConnection):
        return HTTPStatus.BAD_REQUEST, ()
    if "Upgrade" in str(error) or hint.status_code == HTTPStatus.UPGRADE_REQUIRED:
        return HTTPStatus.UPGRADE_REQUIRED, ((b"Upgrade", b"websocket"), (b"Sec-WebSocket-Version", WEBSOCKET_VERSION))
    return HTTPStatus(hint.status_code), tuple((bytes(name), bytes(value)) for name, value in hint.headers)


class WebSocketTransport:
    """Writes binary frames. Everything else is done by the socket's transport."""

    def __init__(self, below: asyncio.Transport, protocol: WebSocketProtocol) -> None:
        self._below = below
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._protocol.write(bytes(data))

    def close(self) -> None:
        self._protocol.close()

    def write_eof(self) -> None:
        self._protocol.write_eof()
