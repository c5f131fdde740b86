"""Sends episodes of many messages to busy clients (trials/faults/plan/busy.py). One of their devices stops reading at times."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kafka import KafkaProducer

from trials.faults.account.facts import Sent
from trials.faults.devices.device import Device, Wire
from trials.faults.plan.busy import BusyClient, Episode, episodes

_TICK_S = 0.05
_FLUSH_S = 60
_DEAF_EVERY_S = 15.0
_DEAF_S = (3.0, 12.0)
"""Shorter than `progress_timeout`, so nothing may be dropped, and than what presence is given (account_of_presence.py)."""


class DeafDevice(Device):
    """Stops reading for some seconds at times, while it stays connected and sends PINGREQ."""

    _deaf_again_s = 0.0

    def _change(self, wire: Wire, now_s: float) -> None:
        if now_s < self._deaf_again_s:
            return
        if self._deaf_again_s:
            seconds = self._dice.uniform(*_DEAF_S)
            self._deaf_since_s, self._deaf_until_s = now_s, now_s + seconds
            wire.stop_reading(seconds)
        self._deaf_again_s = max(now_s, self._deaf_until_s) + self._dice.expovariate(1 / _DEAF_EVERY_S)


class BusyBackend:
    """sent: confirmed by Kafka, in the order of each client's partition."""

    def __init__(
        self, bootstrap_servers: str, clients: Sequence[BusyClient], has_connected: Callable[[str], bool], *, seed: int
    ) -> None:
        """has_connected: says whether a client has been connected; before that its queue may drop messages."""
        self.sent: list[Sent] = []
        self._clients = clients
        self._has_connected = has_connected
        self._seed = seed
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
        self._pending: deque[Any] = deque()

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until stop is set and Kafka has confirmed everything. Raises KafkaError for what it refuses."""
        await asyncio.gather(*(self._run_client(client, stop) for client in self._clients))
        await asyncio.to_thread(self._producer.flush, _FLUSH_S)
        for future in self._pending:
            future.get(timeout=1)

    def close(self) -> None:
        self._producer.close(timeout=10)

    async def _run_client(self, client: BusyClient, stop: asyncio.Event) -> None:
        while not self._has_connected(client.client_id) and not stop.is_set():
            await _pause(stop, _TICK_S)
        for episode in episodes(self._seed, client):
            await _pause(stop, episode.rest_s)
            if stop.is_set():
                return
            await self._run_episode(client, episode, stop)

    async def _run_episode(self, client: BusyClient, episode: Episode, stop: asyncio.Event) -> None:
        began_s, number = time.monotonic(), 0
        while number < episode.count and not stop.is_set():
            part = (time.monotonic() - began_s) / episode.seconds if episode.seconds else 1.0
            for _ in range(number, due := min(episode.count, round(part * episode.count))):
                self._send(client)
            number = due
            while self._pending and self._pending[0].is_done:
                self._pending.popleft().get(timeout=1)
            await _pause(stop, _TICK_S)

    def _send(self, client: BusyClient) -> None:
        message_id, now_ms = f"down/{client.client_id}/{client.qos}/{len(self.sent)}", int(time.time() * 1_000)
        headers = [("mqtt-topic", b"cmd/busy"), ("mqtt-qos", b"%d" % client.qos), ("message-id", message_id.encode())]
        self.sent.append(Sent(message_id=message_id, client_id=client.client_id, qos=client.qos, sent_s=now_ms / 1_000))
        key, value = client.client_id.encode(), message_id.encode()
        self._pending.append(self._producer.send("inflight.messages", key=key, value=value, headers=headers, timestamp_ms=now_ms))


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
