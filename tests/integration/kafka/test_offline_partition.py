"""One disk of a broker fails: its partitions have no leader, and only the clients that write to these partitions are affected."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from sinks.kafka.append import KafkaEventLog
from sinks.kafka.partitioning import partition_of
from tests.support.kafka_topics import create_topics
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.faults
TOPIC = "disks.events"
PARTITIONS = 4
TIMEOUT_MS = 4_000
PACE_S = 0.02
LATE_S = 3.5
"""A limit for a new producer on a busy machine."""


class KafkaOnTwoDisks(EmbeddedKafka):
    """The second one is `second_disk`; it fails when it is gone."""

    @property
    def second_disk(self) -> Path:
        return self._directory / "second"

    def _write_properties(self) -> Path:
        path = super()._write_properties()
        text = path.read_text().replace("log.dirs=data", f"log.dirs=data,{self.second_disk}\nmetadata.log.dir=data")
        path.write_text(f"{text}\nreplica.high.watermark.checkpoint.interval.ms=500\n")
        return path


def keys() -> dict[int, bytes]:
    """Returns a key for each partition."""
    found: dict[int, bytes] = {}
    for number in range(1_000):
        key = b"device-%d" % number
        found.setdefault(partition_of(key, PARTITIONS), key)
    return found


class Writer:
    """Appends one record after the other to one partition, always some under way. failures: (when, how long it took, why)."""

    def __init__(self, log: KafkaEventLog, key: bytes) -> None:
        self.log, self.key = log, key
        self.confirmed: list[int] = []
        self.longest_s = 0.0
        self.failures: list[tuple[float, str]] = []
        self.under_way = 0

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            began = time.monotonic()

            def done(error: Exception | None, number: int = number, began: float = began) -> None:
                took_s = time.monotonic() - began
                self.under_way -= 1
                if error is None:
                    self.confirmed.append(number)
                    self.longest_s = max(self.longest_s, took_s)
                else:
                    self.failures.append((took_s, str(error)))

            self.under_way += 1
            self.log.append(TOPIC, self.key, b"%d" % number, None, done)
            await asyncio.sleep(PACE_S)


def on_second_disk(kafka: KafkaOnTwoDisks) -> set[int]:
    folders = kafka.second_disk.glob(f"{TOPIC}-*")
    return {int(folder.name.rpartition("-")[2]) for folder in folders}


def leaderless(kafka: KafkaOnTwoDisks) -> set[int]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        (topic,) = admin.describe_topics([TOPIC])
        return {partition["partition_index"] for partition in topic["partitions"] if partition["leader_id"] == -1}
    finally:
        admin.close()


async def scenario(kafka: KafkaOnTwoDisks) -> tuple[dict[int, Writer], set[int]]:
    log = KafkaEventLog(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, timeout_ms=TIMEOUT_MS, max_request_bytes=1_000_000, options={}
    )
    await log.start([TOPIC])
    stop = asyncio.Event()
    writers = {partition: Writer(log, key) for partition, key in keys().items()}
    running = [asyncio.create_task(writer.run(stop)) for writer in writers.values()]
    await until(lambda: all(writer.confirmed for writer in writers.values()), "each partition takes records")
    offline = on_second_disk(kafka)
    shutil.rmtree(kafka.second_disk)
    await asyncio.to_thread(wait_until, lambda: leaderless(kafka) == offline, "the partitions of the second disk are offline")
    await asyncio.sleep(3 * TIMEOUT_MS / 1_000)
    stop.set()
    await asyncio.gather(*running)
    await log.close(2 * TIMEOUT_MS / 1_000)
    return writers, offline


def in_the_log(kafka: KafkaOnTwoDisks, partition: int) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, enable_auto_commit=False)
    where = TopicPartition(TOPIC, partition)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    (end,) = consumer.end_offsets([where]).values()
    values: list[int] = []
    while consumer.position(where) < end:
        values += [int(record.value) for records in consumer.poll(timeout_ms=200).values() for record in records]
    consumer.close()
    return values


@pytest.mark.promise("partition-without-leader")
def test_partitions_without_a_leader_fail_alone(tmp_path: Path) -> None:
    with KafkaOnTwoDisks(tmp_path, jars=ensure_jars(progress=False)) as kafka:
        create_topics(kafka.bootstrap_servers, TOPIC, partitions=PARTITIONS)
        writers, offline = asyncio.run(scenario(kafka))
        assert len(offline) == PARTITIONS // 2
        for partition, writer in writers.items():
            if partition in offline:
                assert writer.failures
                assert max(took_s for took_s, _ in writer.failures) < TIMEOUT_MS / 1_000 + LATE_S
            else:
                assert writer.failures == [], partition
                assert writer.longest_s < LATE_S
                assert in_the_log(kafka, partition) == writer.confirmed, "each once, in order"
