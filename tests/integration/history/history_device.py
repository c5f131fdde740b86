"""An MQTT 5 device on a bare socket that answers each PUBLISH as a test says. Written from the standard, without our codecs."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.waiting import wait_until

Answer = Callable[[str, int], int | None]
"""(topic, how often this device has seen the payload, from 1) → reason code of the PUBACK or PUBREC, None = no answer."""


@dataclass(frozen=True)
class Seen:
    """One PUBLISH. packet_id: 0 at QoS 0."""

    payload: bytes
    packet_id: int
    dup: bool


class AnsweringDevice:
    """Connected for the length of a `with` block, with a session that is kept.

    received: payloads of all PUBLISH packets; seen: more about each of them.
    """

    def __init__(self, host: str, port: int, client_id: str, answer: Answer) -> None:
        self.received: list[bytes] = []
        self.seen: list[Seen] = []
        self._answer = answer
        self._socket = socket.create_connection((host, port), timeout=30)
        self._file = self._socket.makefile("rb")
        name = client_id.encode()
        properties = b"\x11" + struct.pack("!I", 3_600)  # Session Expiry Interval
        body = b"\x00\x04MQTT\x05\x00\x00\x00" + bytes([len(properties)]) + properties + struct.pack("!H", len(name)) + name
        self._socket.sendall(b"\x10" + bytes([len(body)]) + body)
        kind, connack = self._packet()
        assert kind >> 4 == 2, f"no CONNACK but {kind:#x}"
        assert connack[1] == 0, f"refused: {connack!r}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "AnsweringDevice":
        self._socket.settimeout(None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(b"\xe0\x00")
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()

    def await_count(self, count: int) -> None:
        """Returns when `count` PUBLISH packets have come. Raises AssertionError."""
        wait_until(lambda: len(self.received) >= count, lambda: f"{count} packets; {len(self.received)}: {self.received}")

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, body = self._packet()
                if kind >> 4 == 3:
                    self._publish(kind, body)
                elif kind >> 4 == 6:  # PUBREL → PUBCOMP
                    self._socket.sendall(b"\x70\x02" + body[:2])

    def _publish(self, kind: int, body: bytes) -> None:
        length = struct.unpack_from("!H", body)[0]
        topic, rest = body[2 : 2 + length].decode(), body[2 + length :]
        packet_id = b""
        if kind & 0x06:
            packet_id, rest = rest[:2], rest[2:]
        payload = rest[1 + rest[0] :]  # after the properties, which are shorter than 128 bytes here
        self.seen.append(Seen(payload, int.from_bytes(packet_id, "big"), bool(kind & 0x08)))
        self.received.append(payload)
        reason_code = self._answer(topic, self.received.count(payload))
        if packet_id and reason_code is not None:
            answer = b"\x40" if kind & 0x06 == 0x02 else b"\x50"
            self._socket.sendall(answer + b"\x03" + packet_id + bytes([reason_code]))

    def _packet(self) -> tuple[int, bytes]:
        kind = self._exactly(1)[0]
        length, shift = 0, 0
        while True:
            byte = self._exactly(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return kind, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data
