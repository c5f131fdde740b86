"""A TCP load balancer as a thread: connections go to the gateways in turn, each with its PROXY protocol v2 header."""

import asyncio
import contextlib
import socket
import struct
import threading
from itertools import cycle
from types import TracebackType
from typing import Final, Self

_SIGNATURE: Final = bytes.fromhex("0d0a0d0a000d0a515549540a")
_PROXIED_TCP_OVER_IPV4: Final = b"\x21\x11"
_CHUNK_BYTES: Final = 65_536


class Balancer:
    """backends: (host, port) of each. address: where devices connect; one that finds no backend is closed."""

    def __init__(self, *backends: tuple[str, int]) -> None:
        self.address = ("127.0.0.1", 0)
        self.connections: dict[tuple[str, int], int] = dict.fromkeys(backends, 0)
        self._turns = cycle(backends)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        listener = socket.create_server(self.address)
        self.address = listener.getsockname()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, sock=listener), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, device: asyncio.StreamReader, to_device: asyncio.StreamWriter) -> None:
        with contextlib.closing(to_device), contextlib.suppress(OSError):
            backend, (gateway, to_gateway) = await self._dial()
            self.connections[backend] += 1
            with contextlib.closing(to_gateway):
                to_gateway.write(_header(to_device.get_extra_info("peername"), self.address))
                ways = {asyncio.create_task(_pipe(device, to_gateway)), asyncio.create_task(_pipe(gateway, to_device))}
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()

    async def _dial(self) -> tuple[tuple[str, int], tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        for _ in self.connections:
            backend = next(self._turns)
            with contextlib.suppress(ConnectionError):
                return backend, await asyncio.open_connection(*backend)
        raise ConnectionRefusedError("no gateway is there")


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def _header(source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    addresses = socket.inet_aton(source[0]) + socket.inet_aton(destination[0]) + struct.pack("!HH", source[1], destination[1])
    return _SIGNATURE + _PROXIED_TCP_OVER_IPV4 + struct.pack("!H", len(addresses)) + addresses
