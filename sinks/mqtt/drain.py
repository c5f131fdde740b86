"""Drains a gateway: slowly enough for the others to take its devices, and with all their records in the log.

1. `/readyz` reports that it stops. It accepts neither a socket nor a CONNECT any more.
2. The connections are closed gracefully in slices (sinks/mqtt/connection/connection.py, 8). Their devices connect elsewhere.
   Until its turn a connection works as before, the fast path too.
3. The rest is closed at once: when none is left and Kafka has confirmed everything, when the time is over, or on `hurry`.

Until then the gateway is a member of its consumer groups. So the engine reaches its connections, and its router goes on offering
messages to the connections of other gateways.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import structlog

from sinks.mqtt.gateway import Gateway
from sinks.mqtt.listeners.listeners import Listeners

_log: Final = structlog.get_logger(__name__)
_SLICE_MS: Final = 100
_SMALLEST_SLICE: Final = 2
"""Connections. Few connections burden no other gateway, so they need not wait."""

T = TypeVar("T")


class Drain:
    """Drains one gateway, by the steps at the beginning of this file.

    Args:
        drain_ms: The time within which all connections are closed.
        confirm_ms: How long Kafka may take after that to confirm the last records.
    """

    def __init__(self, gateway: Gateway, listeners: Listeners, *, drain_ms: int, confirm_ms: int) -> None:
        self._gateway = gateway
        self._listeners = listeners
        self._drain_ms = drain_ms
        self._longest_s = (drain_ms + confirm_ms) / 1_000

    def begin(self) -> None:
        """Does step 1."""
        self._gateway.stop_accepting()
        self._listeners.close()

    async def run(self, hurry: asyncio.Event) -> None:
        """Does steps 2 and 3. Cancelling it is step 3."""
        loop = asyncio.get_running_loop()
        began_s, count = loop.time(), len(self._gateway.all_connections())
        _log.info("draining", connections=count, within_ms=self._drain_ms)
        leaving = asyncio.ensure_future(self._close_in_slices())
        hurrying = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait({leaving, hurrying}, timeout=self._longest_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = len(self._gateway.all_connections())
            leaving.cancel()
            hurrying.cancel()
            self._gateway.stop()
            _log.info("drained", connections=count, closed_at_once=left, took_ms=int(1_000 * (loop.time() - began_s)))

    async def _close_in_slices(self) -> None:
        for number, connections in enumerate(slices(self._gateway.all_connections(), within_ms=self._drain_ms)):
            if number:
                await asyncio.sleep(_SLICE_MS / 1_000)
            for connection in connections:
                self._gateway.close_gracefully(connection)
        await self._gateway.until_drained()


def slices(connections: Sequence[T], *, within_ms: int) -> Iterator[Sequence[T]]:
    """Yields slices of equal size; the last one may be smaller."""
    number = within_ms // _SLICE_MS
    size = max(_SMALLEST_SLICE, -(-len(connections) // number)) if number else max(1, len(connections))
    for start in range(0, len(connections), size):
        yield connections[start : start + size]
