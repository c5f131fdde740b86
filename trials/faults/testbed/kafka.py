"""A broker that each process reaches on a way of its own, through a proxy, and that is started again whenever it ends."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

from inflight.local.child_process import free_port
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.errors import ChildProcessFailed
from inflight.local.jars import ensure_jars
from trials.faults.testbed.proxy import HOST, Proxy

_LOOK_S = 0.2
_PAUSE_S = 0.5


class KafkaWithWays(EmbeddedKafka):
    """Kafka with one more listener for each name. ways: by name, the proxies, whose addresses the broker advertises there."""

    def __init__(self, data_dir: Path, names: Iterable[str]) -> None:
        super().__init__(data_dir, port=free_port(), jars=ensure_jars(progress=False))
        self._ports = {name: free_port() for name in names}
        self.ways = {name: Proxy(port) for name, port in self._ports.items()}

    def _write_properties(self) -> Path:
        path = super()._write_properties()
        more = {"listeners": "", "advertised.listeners": "", "listener.security.protocol.map": ""}
        for number, (name, port) in enumerate(self._ports.items()):
            more["listeners"] += f",WAY{number}://{HOST}:{port}"
            more["advertised.listeners"] += f",WAY{number}://{HOST}:{self.ways[name].port}"
            more["listener.security.protocol.map"] += f",WAY{number}:PLAINTEXT"
        lines = [line + more.get(line.partition("=")[0], "") for line in path.read_text(encoding="utf-8").splitlines()]
        path.write_text("\n".join([*lines, "inter.broker.listener.name=PLAINTEXT", ""]), encoding="utf-8")
        return path


class SupervisedKafka:
    """pid: None while it is being restarted. bootstrap_servers: for the account, past all proxies."""

    def __init__(self, data_dir: Path, names: Iterable[str]) -> None:
        self._kafka = KafkaWithWays(data_dir, names)

    @property
    def pid(self) -> int | None:
        return self._kafka.pid if self._kafka.is_running else None

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    @property
    def ways(self) -> dict[str, Proxy]:
        return self._kafka.ways

    async def __aenter__(self) -> "SupervisedKafka":
        async with AsyncExitStack() as stack:
            for way in self.ways.values():
                await stack.enter_async_context(way)
            await asyncio.to_thread(self._kafka.start)
            self._supervising = asyncio.create_task(self._supervise())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._supervising.cancel()
        await asyncio.to_thread(self._kafka.stop)
        await self._stack.aclose()

    async def _supervise(self) -> None:
        """Restarts the broker whenever it has ended. A cause such as a full disk may be over at the next attempt."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._kafka.is_running:
                await asyncio.sleep(_PAUSE_S)
                try:
                    await asyncio.to_thread(self._kafka.start)
                except ChildProcessFailed:
                    continue
