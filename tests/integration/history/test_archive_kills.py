"""The engine is killed with SIGKILL while messages are delivered, expire, overflow and are rejected.

Every message ends once: delivered or dead-lettered, none is neither, and the tables have each once, although the engine has
written many records twice.
"""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from streaming.archive.tables import TABLES
from tests.integration.history.history_cli import documents
from tests.integration.history.history_device import AnsweringDevice
from tests.support.processes import kill_engine
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1_800)]

KILLS = int(os.environ.get("INFLIGHT_KILLS", "20"))
IN_TABLES = ("--source", "delta", "--limit", "1000000")
SEED = 20_261_121
REJECTED = 0x87
ROUND_S = 0.1
CONFIGURATION = """
[archive]
enabled = true
trigger_interval_ms = "3s"

[session]
retry_interval = "2s"
retry_mqtt5 = "timer"
max_mqueue_len = 1_000_000  # where an engine takes long to start, more than the default waits for "good"

[[profiles]]
clients = "crowded"
max_mqueue_len = 5
"""
HEADERS: dict[str, list[tuple[str, bytes]]] = {"good": [], "picky": [], "sleeper": [("expiration", b"700")], "crowded": []}
"""Clients: good takes everything, picky rejects everything, sleeper is offline and its messages expire, crowded is offline."""

ENDS = {"good": {"delivered"}, "picky": {"rejected"}, "sleeper": {"expired"}, "crowded": {"maxlen", "delivered"}}


class Traffic(threading.Thread):
    """Sends a message to every client, again and again, until it is stopped. sent: message ids by client."""

    def __init__(self, kafka: str) -> None:
        super().__init__(daemon=True)
        self.sent: dict[str, list[str]] = {client_id: [] for client_id in HEADERS}
        self.done = threading.Event()
        self._producer = KafkaProducer(bootstrap_servers=kafka, acks="all", linger_ms=0)

    def run(self) -> None:
        number = 0
        while not self.done.wait(ROUND_S):
            for client_id, more in HEADERS.items():
                message_id = f"{client_id}-{number}"
                headers = [("mqtt-topic", b"t"), ("message-id", message_id.encode()), *more]
                self._producer.send("inflight.messages", key=client_id.encode(), value=message_id.encode(), headers=headers)
                self.sent[client_id].append(message_id)
            number += 1
        self._producer.flush(30)
        self._producer.close(timeout=10)


@pytest.mark.promise("undelivered", "archive-once")
def test_every_message_ends_once_and_is_archived_once_over_kills(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    configuration = tmp_path / "kills.toml"
    configuration.write_text(CONFIGURATION, encoding="utf-8")
    with UpProcess(tmp_path / "data", "--config", str(configuration)) as up:
        traffic = Traffic(up.kafka)
        with (
            AnsweringDevice(*up.mqtt, "good", lambda topic, times: 0) as good,
            AnsweringDevice(*up.mqtt, "picky", lambda topic, times: REJECTED) as picky,
        ):
            traffic.start()
            for _ in range(KILLS):
                arrived = len(good.received)
                wait_until(lambda before=arrived: len(good.received) > before, lambda: up.log_tail("engine"))  # type: ignore[misc]
                time.sleep(dice.uniform(0.0, 2.0))  # the random moment
                kill_engine(up)
            traffic.done.set()
            traffic.join(60)
            wait_until(lambda: set(traffic.sent["good"]) <= {p.decode() for p in good.received}, lambda: up.log_tail("engine"))
            wait_until(lambda: set(traffic.sent["picky"]) <= {p.decode() for p in picky.received}, lambda: up.log_tail("engine"))
            # What the crowded client still has in its queue is delivered now.
            with AnsweringDevice(*up.mqtt, "crowded", lambda topic, times: 0) as crowded:
                crowded.await_count(1)
                # The archive starts when the engine is ready, and after quick kills only now makes its tables.
                first_commits = [up.data_dir / "tables" / spec.name / "_delta_log" / f"{0:020}.json" for spec in TABLES]
                wait_until(lambda: all(path.exists() for path in first_commits), lambda: up.log_tail("engine"))
                sent = {message_id for ids in traffic.sent.values() for message_id in ids}
                ended: list[dict[str, str]] = []

                def all_ended() -> bool:
                    ended[:] = documents(up, "sql", "SELECT client_id, message_id, outcome FROM receipts", *IN_TABLES)
                    return {row["message_id"] for row in ended} >= sent

                wait_until(
                    all_ended, lambda: f"without an end: {sorted(sent - {row['message_id'] for row in ended})[:10]}", within_s=300
                )
        dead = {row["message_id"]: row["outcome"] for row in ended if row["outcome"] != "delivered"}
        letters: list[dict[str, str]] = []

        def all_dead_letters() -> bool:  # of the last ones the receipts may have come a micro-batch earlier
            letters[:] = documents(up, "sql", "SELECT message_id, reason FROM dead_letters", *IN_TABLES)
            return {row["message_id"] for row in letters} >= dead.keys()

        wait_until(
            all_dead_letters,
            lambda: f"no dead letter: {sorted(dead.keys() - {row['message_id'] for row in letters})[:10]}",
            within_s=300,
        )
        (twice,) = documents(
            up,
            "sql",
            "SELECT count(*) AS found FROM "
            "(SELECT client_id, batch_ms, record_hash, row_index FROM ledger GROUP BY ALL HAVING count(*) > 1)",
            *IN_TABLES,
        )
    assert [row for row, times in Counter(row["message_id"] for row in ended).items() if times > 1] == []
    assert {row["message_id"] for row in ended} == sent
    for row in ended:
        assert row["outcome"] in ENDS[row["client_id"]], row
    assert Counter(row["message_id"] for row in letters) == Counter(dead.keys())
    assert {row["message_id"]: row["reason"] for row in letters} == dead
    assert twice["found"] == 0
    print(f"{KILLS} kills, {len(sent)} messages, {Counter(row['outcome'] for row in ended)}")
