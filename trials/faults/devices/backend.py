"""A backend that sends QoS 1 and 2 messages to all devices, a few to one device at once.

Some are for later, some have a collapse key, and some it takes back, at once or after some seconds.
"""

import asyncio
import contextlib
import random
import time
from math import inf
from typing import Any

from kafka import KafkaProducer

from trials.faults.account.facts import Sent

MOST_AT_ONCE = 5
LATEST_S = 20
"""A message for later is due after at most so long, and one that is taken back late is that after at most so long."""
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
        self._to_cancel: list[tuple[float, Sent]] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until stop is set and Kafka has confirmed everything. Raises KafkaError for what it refuses."""
        pending: list[tuple[Sent, Any]] = []
        while not stop.is_set():
            count = self._dice.randint(1, MOST_AT_ONCE)
            client_id = self._dice.choice(self._client_ids)
            for _ in range(count):
                pending.append(self._send(client_id))
            pending += self._cancel(time.time())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._dice.expovariate(self._rate_per_s / count))
        pending += self._cancel(inf)
        await asyncio.to_thread(self._producer.flush, _FLUSH_S)
        for _, future in pending:
            future.get(timeout=1)

    def _send(self, client_id: str) -> tuple[Sent, Any]:
        self._number += 1
        qos = 1 + self._dice.randrange(2)
        message_id = f"down/{client_id}/{qos}/{self._number}"
        headers = [("mqtt-topic", b"cmd/faults"), ("mqtt-qos", b"%d" % qos), ("message-id", message_id.encode())]
        kind, key, due_s, now_ms = self._dice.randrange(20), "", None, int(time.time() * 1_000)
        if kind in (0, 1):
            delay_ms = self._dice.randrange(LATEST_S * 1_000)
            due_s = (now_ms + delay_ms) / 1_000
            headers.append(("deliver-at", self._dice.choice((b"+%dms" % delay_ms, b"%d" % (now_ms + delay_ms)))))
        elif kind in (2, 3):
            key = self._dice.choice("kl")
            headers.append(("collapse-key", key.encode()))
        sent = Sent(
            message_id=message_id,
            client_id=client_id,
            qos=qos,
            sent_s=now_ms / 1_000,
            due_s=due_s,
            key=key,
            is_cancelled=kind in (0, 4),
        )
        self.sent.append(sent)
        if sent.is_cancelled:
            self._to_cancel.append((sent.sent_s + self._dice.choice((0, self._dice.uniform(0, LATEST_S))), sent))
        return sent, self._append(client_id, message_id.encode(), headers, now_ms)

    def _cancel(self, until_s: float) -> list[tuple[Sent, Any]]:
        """Takes back what is to be taken back until then."""
        due = [sent for at_s, sent in self._to_cancel if at_s <= until_s]
        self._to_cancel = [(at_s, sent) for at_s, sent in self._to_cancel if at_s > until_s]
        return [(sent, self._append(sent.client_id, None, [("cancel-message-id", sent.payload)], None)) for sent in due]

    def _append(self, client_id: str, value: bytes | None, headers: list[tuple[str, bytes]], at_ms: int | None) -> Any:
        """at_ms: the record's time, from which a delay counts; None = now."""
        topic, key = "inflight.messages", client_id.encode()
        return self._producer.send(topic, key=key, value=value, headers=headers, timestamp_ms=at_ms)

    def close(self) -> None:
        self._producer.close(timeout=10)
