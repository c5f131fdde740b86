"""Measures `inflight what-if`: makes the log of a system that never ran in a Kafka of its own, and replays it.

    python -m bench.what_if --messages 1000000 --max-mqueue-len 10

Some clients are simulated (tests/support/simulated_log.py), and their log is written again and again under other client ids, so
that making it takes less time than replaying it. With equal settings no message may end otherwise. With another length of queues
messages must end as they do in a simulation that has this length from the beginning.

All data is in a temporary directory: 180 MB for a million messages, of which Spark needs the larger part while it sorts.
"""

import argparse
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from confluent_kafka import Producer

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from inflight.local.spark_jars import spark_jars
from state.records.ledger import encode_ledger_rows
from streaming.config.settings import Settings
from streaming.engine.batch_record import batch_row
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.cells import MESSAGES
from streaming.spark_internals.checkpoint import LoggedBatch
from streaming.what_if.job import Period, what_if
from tests.support.kafka_topics import create_topics
from tests.support.simulated_log import (
    BATCH_MS,
    START_MS,
    Connect,
    Disconnect,
    LogRecord,
    ScriptedDevice,
    Send,
    SimulatedLog,
    SimulatedSystem,
    Step,
)

KafkaHeaders: TypeAlias = list[tuple[str, str | bytes | None]]
PARTITIONS: Final = 4
SIMULATED: Final = 20
MESSAGES_OF_A_CLIENT: Final = 500
"""In five minutes of simulated time."""
_FOR_MS: Final = 300_000
_QUEUE: Final = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--max-mqueue-len", type=int, help="another setting to replay under, besides equal ones")
    options = parser.parse_args()
    copies = max(1, options.messages // (SIMULATED * MESSAGES_OF_A_CLIENT))
    with tempfile.TemporaryDirectory() as directory:
        kafka = EmbeddedKafka(Path(directory), jars=ensure_jars())
        kafka.start()
        try:
            present = settings(kafka.bootstrap_servers, directory, _QUEUE)
            began_s = time.monotonic()
            log = simulated(present)
            say(f"simulated {SIMULATED} clients in {time.monotonic() - began_s:.0f} s")
            began_s = time.monotonic()
            records = write(kafka.bootstrap_servers, log, copies)
            say(f"wrote {records:,} records of {copies * SIMULATED:,} clients in {time.monotonic() - began_s:.0f} s")
            say(f"they take {bytes_in(Path(directory)) / 1e6:,.0f} MB")
            compare("equal settings", present, present, log, copies)
            if options.max_mqueue_len is not None:
                other = settings(kafka.bootstrap_servers, directory, options.max_mqueue_len)
                compare(f"max_mqueue_len = {options.max_mqueue_len}", present, other, simulated(other), copies)
        finally:
            kafka.stop()


def say(line: str) -> None:
    print(line, flush=True)


def compare(name: str, present: Settings, other: Settings, real: SimulatedLog, copies: int) -> None:
    """Prints what the replay says, and what a run with the other settings has done. real: the log of that run."""
    answer = what_if(present, other, Period(), (), spark_jars, say)
    found, total = answer.comparison, answer.comparison.total()
    ended = {outcome: count * copies for outcome, count in Counter(real.outcomes().values()).most_common()}
    say(f"{name}: {sum(total.before.values()):,} messages in {answer.took_s:.0f} s")
    say(f"  {sum(total.changed.values()):,} end otherwise {total.changed}, clients left out: {found.left_out or 0}")
    say(f"  what-if says {total.after}")
    say(f"  a run has    {ended}")


def bytes_in(directory: Path) -> int:
    """Returns how many bytes the files of a directory take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def settings(servers: str, directory: str, max_mqueue_len: int) -> Settings:
    return Settings(
        kafka={"bootstrap_servers": servers},  # type: ignore[arg-type]
        engine={"data_dir": directory, "master": "local[2]"},  # type: ignore[arg-type]
        session={"max_mqueue_len": max_mqueue_len, "retry_interval": 5_000},  # type: ignore[arg-type]
    )


def simulated(present: Settings) -> SimulatedLog:
    """Returns the log of clients that are online most of the time, some of them slow, some leaving messages unanswered."""
    chance = random.Random(1)
    scripts = {f"client-{number}": list(script(chance, number)) for number in range(SIMULATED)}
    devices = {client_id: ScriptedDevice(latency_ms=chance.choice([100, 300, 900]), answers=is_answered) for client_id in scripts}
    return SimulatedSystem(pipeline_settings(present, commands_partitions=PARTITIONS)).run(scripts, devices, for_ms=_FOR_MS)


def script(chance: random.Random, number: int) -> Iterator[Step]:
    away_ms = chance.randrange(50_000, 200_000)
    yield 100, Connect()
    yield away_ms, Disconnect()
    yield away_ms + chance.randrange(10_000, 60_000), Connect()
    for message in range(MESSAGES_OF_A_CLIENT):
        at_ms = 1_000 + message * (_FOR_MS - 10_000) // MESSAGES_OF_A_CLIENT
        yield at_ms, Send(qos=1 + message % 2, ttl_ms=20_000 if message % 5 == 0 else None, message_id=f"{number}-{message}")


def is_answered(message_id: str) -> bool:
    """Leaves out about one message of a hundred."""
    return sum(message_id.encode()) % 97 != 0


def write(servers: str, log: SimulatedLog, copies: int) -> int:
    """Writes the log so many times, with the rows of micro-batches at the end of the ledger. Returns how many records."""
    topics = ("inflight.messages", "inflight.events", "inflight.ledger", "inflight.commands")
    create_topics(servers, *topics, partitions=PARTITIONS, **{"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4", "queue.buffering.max.kbytes": 131_072}
    )
    offsets: Counter[tuple[str, int]] = Counter()
    ends: defaultdict[int, dict[str, dict[int, int]]] = defaultdict(dict)
    for record in log.records:
        topic = "inflight.messages" if record.source == MESSAGES else "inflight.events"
        headers: KafkaHeaders = [(header.key, header.value) for header in record.headers]
        for copy in range(copies):
            partition = copy % PARTITIONS
            produce(producer, topic, partition, f"{record.client_id}-{copy}", record.value, record.timestamp_ms, headers)
            offsets[topic, partition] += 1
        batch_ms = read_at(record)
        ends[batch_ms] = {name: {number: offsets[name, number] for number in range(PARTITIONS)} for name in topics[:2]}
    for client_id, at_ms, value in log.ledger:
        for copy in range(copies):
            produce(producer, "inflight.ledger", copy % PARTITIONS, f"{client_id}-{copy}", value, at_ms, [])
    before = LoggedBatch(START_MS, {})
    for batch_ms in sorted(ends):
        batch = LoggedBatch(batch_ms, ends[batch_ms])
        row = batch_row(batch, before)
        assert row is not None
        produce(producer, "inflight.ledger", 0, "", encode_ledger_rows([row]), batch_ms, [])
        before = batch
    producer.flush()
    return (len(log.records) + len(log.ledger)) * copies


def produce(
    producer: Producer,
    topic: str,
    partition: int,
    key: str,
    value: bytes,
    at_ms: int,
    headers: list[tuple[str, str | bytes | None]],
) -> None:
    while True:
        try:
            producer.produce(topic, value, key.encode(), partition, timestamp=at_ms, headers=headers)
        except BufferError:
            producer.poll(0.1)
        else:
            return


def read_at(record: LogRecord) -> int:
    """Returns the time of the micro-batch that read the record."""
    return START_MS + -(-(record.timestamp_ms - START_MS) // BATCH_MS) * BATCH_MS


if __name__ == "__main__":
    main()
