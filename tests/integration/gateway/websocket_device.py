"""MQTT over WebSocket, frame by frame."""

import socket

from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, Event, Request


class WebSocketDevice:
    """Speaks MQTT over WebSocket on a connected socket. changes: of the request."""

    def __init__(self, stream: socket.socket, **changes: object) -> None:
        self.socket = stream
        self.websocket = WSConnection(ConnectionType.CLIENT)
        request = {"host": "h", "target": "/mqtt", "subprotocols": ["mqtt"], **changes}
        self.send(Request(**request))  # type: ignore[arg-type]

    def __enter__(self) -> "WebSocketDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, event: Event) -> None:
        self.socket.sendall(self.websocket.send(event))

    def events(self) -> list[Event]:
        """Returns the WebSocket events of the next bytes; an empty list at the end of the stream."""
        self.websocket.receive_data(self.socket.recv(65_536) or None)
        return list(self.websocket.events())


class WebSocketStream(WebSocketDevice):
    """Looks like a socket to RawClient, as soon as the request is answered."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream)
        self.events()

    def sendall(self, data: bytes) -> None:
        self.send(BytesMessage(data=data))

    def recv(self, size: int) -> bytes:
        return b"".join(bytes(event.data) for event in self.events() if isinstance(event, BytesMessage))

    def close(self) -> None:
        self.socket.close()
