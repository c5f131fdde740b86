"""A TCP proxy between two processes, whose connections are cut, stalled and delayed.

device ──► proxy ──► gateway          gateway ──► proxy ──► Kafka
"""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass, field

from inflight.local.child_process import free_port

HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536
_CHUNKS = 64
"""Chunks of one direction that may wait; while there are more, the proxy stops reading from the sender's socket."""
_CONNECT_S = 3.0


class Proxy:
    """Listens on `port` within the context, and passes on to `upstream`, another port of this machine."""

    def __init__(self, upstream: int) -> None:
        self.port = free_port()
        self._upstream = upstream
        self._connections: set[_Connection] = set()
        self._delay_s = 0.0
        self._is_cut = False
        self._passing = asyncio.Event()
        self._passing.set()

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, *self.address, limit=_CHUNK_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        self._passing.set()

    def cut(self) -> None:
        """Resets all connections, and every new one, until `mend`."""
        self._is_cut = True
        for connection in list(self._connections):
            connection.abort()

    def stall(self) -> None:
        """Passes nothing until `mend`, without closing connections."""
        self._passing.clear()

    def delay(self, seconds: float) -> None:
        """Delays what is read from now on, in each direction, until `mend`."""
        self._delay_s = seconds

    def mend(self) -> None:
        """Ends every disturbance."""
        self._is_cut, self._delay_s = False, 0.0
        self._passing.set()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        connection = _Connection([writer])
        self._connections.add(connection)
        try:
            await self._passing.wait()
            if self._is_cut:
                return
            async with asyncio.timeout(_CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(HOST, self._upstream, limit=_CHUNK_BYTES)
            connection.writers.append(far_writer)
            if self._is_cut:
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, far_writer))
                tasks.create_task(self._pass_on(far_reader, writer))
        except* (OSError, TimeoutError):
            await self._passing.wait()  # the news does not travel faster than the bytes
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Passes one direction on, to its end. Raises OSError when a side is gone."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        loop = asyncio.get_running_loop()

        async def read() -> None:
            data = b"any"
            while data:
                data = await reader.read(_CHUNK_BYTES)
                await waiting.put((loop.time() + self._delay_s, data))

        async def write() -> None:
            while True:
                due_s, data = await waiting.get()
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                await self._passing.wait()
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.write_eof()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            tasks.create_task(write())


@dataclass(eq=False)
class _Connection:
    writers: list[StreamWriter] = field(default_factory=list)

    def abort(self) -> None:
        """RST on both sides."""
        for writer in self.writers:
            with contextlib.suppress(OSError):
                writer.transport.abort()
