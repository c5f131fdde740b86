"""Reads what Inflight writes for backends, for the demo."""

import threading
from collections import Counter
from typing import Final

import msgspec
from kafka import KafkaConsumer

from inflight.demo.scoreboard import UplinkAccount
from sinks.kafka.kafka_python import subscribe

POLL_TIMEOUT_MS: Final = 200


class Reader:
    """Follows `inflight.uplink` and `inflight.ledger` in a thread of its own.

    transitions: how often each kind stood in the ledger. window, queue: message ids that are there now, by client, as far as the
    ledger tells; for the display only, the verdict is the devices' own.
    """

    def __init__(self, bootstrap_servers: str, *, uplink_topic: str, ledger_topic: str) -> None:
        self.uplink = UplinkAccount()
        self.transitions: Counter[str] = Counter()
        self.window: dict[str, set[str]] = {}
        self.queue: dict[str, set[str]] = {}
        self._uplink_topic = uplink_topic
        self._stop = threading.Event()
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False
        )
        subscribe(self._consumer, [uplink_topic, ledger_topic])
        self._thread = threading.Thread(target=self._run, name="demo-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for partition, records in self._consumer.poll(timeout_ms=POLL_TIMEOUT_MS).items():
                for record in records:
                    if partition.topic == self._uplink_topic:
                        self.uplink.add(record.value, dict(record.headers)["inflight-id"].decode())
                    else:
                        self._follow(msgspec.json.decode(record.value))

    def _follow(self, rows: list[dict[str, str]]) -> None:
        for row in rows:
            transition, message_id = row["transition"], row.get("message_id", "")
            self.transitions[transition] += 1
            window = self.window.setdefault(row["client_id"], set())
            queue = self.queue.setdefault(row["client_id"], set())
            if transition == "queued":
                queue.add(message_id)
            elif transition == "sent":
                queue.discard(message_id)
                window.add(message_id)
            elif transition == "finished":
                queue.discard(message_id)
                window.discard(message_id)
