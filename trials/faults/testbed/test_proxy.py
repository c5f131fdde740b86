"""trials/faults/testbed/proxy.py: what it does to connections, and that it does nothing else to them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from trials.faults.testbed.proxy import HOST, Proxy

LARGE_BYTES = 3_000_000
SHORT_S = 0.2
LONG_S = 10.0

Test = Callable[[Proxy, "Client"], Awaitable[None]]


class Client:
    """A client of a server that sends back what it gets."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def connect(self) -> "Client":
        self._reader, self.writer = await asyncio.open_connection(*self._proxy.address)
        return self

    async def says(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hears(self, count: int) -> bytes:
        async with asyncio.timeout(LONG_S):
            return await self._reader.readexactly(count)

    async def is_ended(self) -> bool:
        async with asyncio.timeout(LONG_S):
            with suppress(ConnectionError):
                return await self._reader.read(1) == b""
            return True


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]


def behind_a_proxy(test: Test) -> None:
    async def run() -> None:
        async with echo() as port, Proxy(port) as proxy:
            client = await Client(proxy).connect()
            await test(proxy, client)
            client.writer.close()

    asyncio.run(run())


def test_bytes_pass_in_both_directions_and_the_end_after_them() -> None:
    async def test(_: Proxy, client: Client) -> None:
        data = os.urandom(LARGE_BYTES)
        sending = asyncio.create_task(client.says(data))
        assert await client.hears(LARGE_BYTES) == data
        await sending
        client.writer.write_eof()
        assert await client.is_ended()

    behind_a_proxy(test)


def test_a_cut_resets_what_is_there_and_what_comes_until_it_is_mended() -> None:
    async def test(proxy: Proxy, client: Client) -> None:
        await client.says(b"a")
        assert await client.hears(1) == b"a"
        proxy.cut()
        assert await client.is_ended()
        refused = await Client(proxy).connect()
        assert await refused.is_ended()
        proxy.mend()
        mended = await Client(proxy).connect()
        await mended.says(b"b")
        assert await mended.hears(1) == b"b"

    behind_a_proxy(test)


def test_what_is_held_up_comes_afterwards_on_the_same_connection() -> None:
    async def test(proxy: Proxy, client: Client) -> None:
        proxy.stall()
        await client.says(b"a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.hears(1), SHORT_S)
        proxy.mend()
        assert await client.hears(1) == b"a"

    behind_a_proxy(test)


def test_a_delay_holds_each_byte_in_each_direction_and_keeps_their_order() -> None:
    async def test(proxy: Proxy, client: Client) -> None:
        proxy.delay(SHORT_S)
        began_s = time.monotonic()
        for byte in b"abc":
            await client.says(bytes((byte,)))
        assert await client.hears(3) == b"abc"
        assert time.monotonic() - began_s >= 2 * SHORT_S
        proxy.mend()
        await client.says(b"d")
        assert await client.hears(1) == b"d"

    behind_a_proxy(test)


def test_a_connection_to_a_server_that_is_away_is_reset() -> None:
    async def run() -> None:
        async with echo() as port:
            pass
        async with Proxy(port) as proxy:
            assert await (await Client(proxy).connect()).is_ended()

    asyncio.run(run())
