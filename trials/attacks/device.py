"""An MQTT connection of a few lines over asyncio's streams, for good devices and for attackers."""

import asyncio
import socket
from typing import Final, Self

CONNACK: Final = 0x20
PUBLISH: Final = 0x30
_QOS_OF: Final = 0x06
_PATIENCE_S: Final = 60.0


class Refused(OSError):
    """CONNACK with something else than 0."""


class Device:
    """A connection to the victim. `async with` closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: tuple[str, int], connect: bytes, *, reads_ahead: bool = True) -> Self:
        """Connected, CONNACK read. reads_ahead: False = what nobody asks for is left in the network, as far as that is possible.
        Raises OSError, EOFError, TimeoutError."""
        async with asyncio.timeout(_PATIENCE_S):
            connection = socket.socket()
            connection.setblocking(False)
            if not reads_ahead:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            try:
                await asyncio.get_running_loop().sock_connect(connection, address)
                reader, writer = await asyncio.open_connection(sock=connection, limit=65_536 if reads_ahead else 1)
            except BaseException:
                connection.close()
                raise
            device = cls(reader, writer)
            try:
                writer.write(connect)
                first_byte, body = await device.packet()
                if first_byte != CONNACK or body[1]:
                    raise Refused(body.hex())
            except BaseException:
                writer.transport.abort()
                raise
        return device

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def packet(self) -> tuple[int, bytes]:
        """The next one: its first byte and its body."""
        first_byte, digit = await self.reader.readexactly(2)
        length, shift = digit & 0x7F, 7
        while digit & 0x80:
            digit = (await self.reader.readexactly(1))[0]
            length |= (digit & 0x7F) << shift
            shift += 7
        return first_byte, await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        """Sends bytes. Returns when the system has most of them. Raises OSError."""
        if self.writer.transport.is_closing():  # uvloop's would not take it for an error of the network
            raise ConnectionResetError("closed")
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> None:
        """Reads what comes and forgets it."""
        while await self.reader.read(65_536):
            pass

    async def publication(self) -> bytes:
        """The payload of the next PUBLISH, acknowledged if it is of QoS 1."""
        while True:
            first_byte, body = await self.packet()
            if first_byte & 0xF0 == PUBLISH:
                break
        payload = 2 + int.from_bytes(body[:2], "big")
        if first_byte & _QOS_OF:
            await self.send(b"\x40\x02" + body[payload : payload + 2])
            payload += 2
        return body[payload:]
