"""Carries MQTT over WebSocket (MQTT 5, chapter 6; RFC 6455): a protocol around the one that reads MQTT, and a transport for it.

1. The HTTP request is checked: path, origin, subprotocol.
2. The payload of binary frames is the MQTT stream, whatever their borders [MQTT-6.0.0-2]. A text frame closes [MQTT-6.0.0-1].
3. Pauses and buffer limits are those of the socket; nothing is buffered here.
"""

import asyncio
from typing import Any, Final, cast

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, RejectConnection, Request, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError

from sinks.log_throttle import RefusalLog
from sinks.mqtt.listeners.listener import ListenerStep
from sinks.mqtt.listeners.origins import is_origin_allowed
from sinks.mqtt.listeners.settings import ListenerSettings

_SUBPROTOCOL: Final = "mqtt"
_BAD_REQUEST, _FORBIDDEN, _NOT_FOUND = 400, 403, 404


class WebSocketProtocol(asyncio.Protocol):
    """Unpacks frames for `inside`, the protocol that reads MQTT. address: of the device; None = it is the socket's peer."""

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
        received: list[bytes] = []
        try:
            self._websocket.receive_data(data)
            for event in self._websocket.events():
                self._handle(event, received)
        except (ProtocolError, ValueError) as error:  # ValueError: headers that are not ASCII
            self._log_refusal(str(error))
            self._close(CloseReason.PROTOCOL_ERROR)
        if received:
            self._inside.data_received(b"".join(received))

    # --- for WebSocketTransport -----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._is_open:
            self._send(BytesMessage(data=data))

    def close(self) -> None:
        self._close(CloseReason.NORMAL_CLOSURE)

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
            self._reject(_NOT_FOUND, "path", request.target)
        elif not is_origin_allowed(
            origins, host=request.host, allowed=listener.websocket_origins, is_tls=bool(listener.tls_certfile)
        ):
            self._reject(_FORBIDDEN, "origin", ", ".join(origins))
        elif _SUBPROTOCOL not in request.subprotocols:
            self._reject(_BAD_REQUEST, "subprotocol", ", ".join(request.subprotocols))
        else:
            self._is_open = True
            self._send(AcceptConnection(subprotocol=_SUBPROTOCOL))  # [MQTT-6.0.0-4]

    def _reject(self, status: int, what: str, value: str) -> None:
        self._log_refusal(f"another {what}: {value}")
        self._send(RejectConnection(status_code=status))
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
