"""The engine is killed with SIGKILL while messages overflow, expire, are rejected and go from queue to queue."""

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from inflight.demo.up import UpProcess
from tests.integration.history.history_device import AnsweringDevice
from tests.support.processes import kill_engine
from tests.support.waiting import wait_until

KILLS = int(os.environ.get("INFLIGHT_KILLS", "6"))
SEED = 4_711
REFUSED = 0x87
PARKED = "dead-letter-kills.parked"
CONFIGURATION = f"""
[[exchanges]]
name = "retry"
type = "fanout"
bindings = [ {{ to = "client:delay/{{client}}" }} ]

[[exchanges]]
name = "parking"
type = "fanout"
bindings = [ {{ to = "topic:{PARKED}" }} ]

[[policies]]
name = "lamps"
clients = "lamp-*"
dead_letter_exchange = "retry"
message_ttl = "3s"

[[policies]]
name = "delay"
clients = "delay/*"
message_ttl = "1s"
dead_letter_exchange = ""
dead_letter_routing_key = "spare"

[[policies]]
name = "spare"
clients = "spare"
dead_letter_exchange = "parking"

[[profiles]]
clients = "lamp-*"
max_mqueue_len = 3

[[profiles]]
clients = "*"
max_mqueue_len = 0
max_mqueue_bytes = 0
"""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


class Topic:
    """Reads a topic from its beginning. values: all records, with the copies that a repeated micro-batch wrote."""

    def __init__(self, servers: str, name: str) -> None:
        self.values: list[tuple[dict[str, bytes], bytes]] = []
        self._consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
        self._consumer.assign(
            [TopicPartition(name, number) for number in sorted(self._consumer.partitions_for_topic(name) or ())]
        )
        self._consumer.seek_to_beginning()

    def look(self) -> None:
        for records in self._consumer.poll(timeout_ms=200).values():
            self.values += [(dict(record.headers), record.value) for record in records]

    def close(self) -> None:
        self._consumer.close()


def test_every_message_ends_once_however_often_the_engine_dies(tmp_path: Path) -> None:
    configuration = tmp_path / "kills.toml"
    configuration.write_text(CONFIGURATION, encoding="utf-8")
    dice = random.Random(SEED)
    sent: list[bytes] = []
    with UpProcess(tmp_path / "data", "--config", str(configuration)) as up:
        producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
        receipts, parked = Topic(up.kafka, "inflight.receipts"), Topic(up.kafka, PARKED)

        def send(client_id: str, **headers: bytes) -> None:
            name = b"%s/%d" % (client_id.encode(), len(sent))
            named = [("mqtt-topic", b"t"), ("message-id", name), *headers.items()]
            producer.send("inflight.messages", key=client_id.encode(), value=name, headers=named).get(30)
            sent.append(name)

        def open_ids() -> set[bytes]:
            receipts.look()
            told = [json.loads(value) for _, value in receipts.values]
            return set(sent) - {receipt["message_id"].encode() for receipt in told if receipt["final"]}

        with contextlib.ExitStack() as devices:

            def connect(client_id: str, answer: Callable[[str, int], int | None]) -> AnsweringDevice:
                return devices.enter_context(AnsweringDevice(*up.mqtt, client_id, answer))

            # `refuses` rejects for good; `spare` rejects every third message; `away` and `late` have no device.
            refusals = Counter[bool]()

            def every_third(_: str, seen: int) -> int:
                refusals[seen == 1] += 1
                return REFUSED if refusals[True] % 3 == 0 else 0

            connect("lamp-refuses", lambda topic, seen: REFUSED)
            spare = connect("spare", every_third)
            for _ in range(KILLS):
                until = time.monotonic() + dice.uniform(0.5, 2.5)  # the random moment
                while time.monotonic() < until:
                    send("lamp-refuses")
                    send("lamp-away")
                    send("lamp-late", expiration=b"200")
                    time.sleep(0.02)  # the pace of the traffic
                kill_engine(up)
            wait_until(lambda: not open_ids(), lambda: f"{len(open_ids())} of {len(sent)} without a last word")
            told = [json.loads(value) for _, value in receipts.values]
            delivered = {receipt["message_id"].encode() for receipt in told if receipt["outcome"] == "delivered"}
            parked.look()
            wait_until(
                lambda: parked.look() or delivered | {value for _, value in parked.values} >= set(sent),
                lambda: f"neither: {sorted(set(sent) - delivered - {value for _, value in parked.values})[:5]}",
            )
        for topic in (receipts, parked):
            topic.close()
        producer.close()
    parked_ids = {value for _, value in parked.values}
    assert not delivered & parked_ids, "delivered and dead-lettered"
    assert delivered <= set(spare.received)
    outcomes = Counter(json.loads(value)["outcome"] for _, value in receipts.values)
    assert {"rejected", "expired", "maxlen", "delivered"} <= outcomes.keys()
    for headers, _ in parked.values:
        newest, middle, oldest = json.loads(headers["x-death"])
        assert (newest["queue"], newest["reason"], newest["count"]) == ("spare", "rejected", 1)
        assert (middle["queue"], middle["reason"]) == (f"delay/{oldest['queue']}", "expired")
    print(f"{KILLS} kills, {len(sent)} messages, {len(delivered)} delivered, {len(parked_ids)} parked, receipts {dict(outcomes)}")
