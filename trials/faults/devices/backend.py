"""A backend that sends QoS 1 and 2 messages to all devices, a few to one device at once.

Some are for later, some have a collapse key, and some it takes back at once.
"""

import asyncio
import contextlib
import random
import time
from typing import Any

from kafka import KafkaProducer

from trials.faults.account.facts import Sent

MOST_AT_ONCE = 5
LATEST_S = 20
"""A message for later is due after at most so long."""
_FLUSH_S = 60


class Backend:
    """sent: confirmed by Kafka, in the order of each client's partition."""

    def __init__(self, bootstrap_servers: str, client_ids: list[str], *, seed: int, rate_per_s: float) -> None:
        self.sent: list[Sent] = []
        self._client_ids = client_ids
        self._dice = random.Random(f"{seed}/backend")
        self._rate_per_s = rate_per_s
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
        self._number = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until stop is set and Kafka has confirmed everything. Raises KafkaError for what it refuses."""
        pending: list[tuple[Sent, Any]] = []
        while not stop.is_set():
            count = self._dice.randint(1, MOST_AT_ONCE)
            client_id = self._dice.choice(self._client_ids)
            for _ in range(count):
                pending += self._send(client_id)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._dice.expovariate(self._rate_per_s / count))
        await asyncio.to_thread(self._producer.flush, _FLUSH_S)
        for _, future in pending:
            future.get(timeout=1)

    def _send(self, client_id: str) -> list[tuple[Sent, Any]]:
        self._number += 1
        qos = 1 + self._dice.randrange(2)
        message_id = f"down/{client_id}/{qos}/{self._number}"
        headers = [("mqtt-topic", b"cmd/faults"), ("mqtt-qos", b"%d" % qos), ("message-id", message_id.encode())]
        kind, key = self._dice.randrange(20), ""
        if kind in (0, 1):
            headers.append(("deliver-at", b"+%dms" % self._dice.randrange(LATEST_S * 1_000)))
        elif kind in (2, 3):
            key = self._dice.choice("kl")
            headers.append(("collapse-key", key.encode()))
        sent = Sent(
            message_id=message_id,
            client_id=client_id,
            qos=qos,
            sent_s=time.time(),
            is_for_later=kind in (0, 1),
            key=key,
            is_cancelled=kind in (0, 4),
        )
        self.sent.append(sent)
        futures = [self._append(client_id, message_id.encode(), headers)]
        if sent.is_cancelled:
            futures.append(self._append(client_id, None, [("cancel-message-id", message_id.encode())]))
        return [(sent, future) for future in futures]

    def _append(self, client_id: str, value: bytes | None, headers: list[tuple[str, bytes]]) -> Any:
        return self._producer.send("inflight.messages", key=client_id.encode(), value=value, headers=headers)

    def close(self) -> None:
        self._producer.close(timeout=10)
