"""The engine dies at each point between its first record in Kafka and the commit of the micro-batch, in turn.

In every micro-batch that dies messages overflow, expire, are rejected and are acknowledged, in both state partitions. The points:
1. Kafka has taken the records of all topics but one: a death in the middle of writing;
2. Kafka has all records, no state is committed;
3. the state of one partition is committed, that of the other is not;
4. all states are committed, the micro-batch is not in the commit log.
For 1 the broker refuses a topic's records, which kills the query; for 2 to 4 what would not be on disk yet is deleted.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from state.commands import SendPublish
from state.events import ClientConnected, PubAckReceived
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from streaming.archive.query import start_archive
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, table_location
from streaming.config.settings import Settings
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.topics import ensure_topics, planned_topics
from tests.spark.conftest import newest_batch
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

REFUSED = 0x87
CLIENTS = 4
"""Clients of each kind; enough for both state partitions to have some of each."""
DEADLINE_S = 120.0
WRITTEN = ("commands", "events", "receipts", "dead_letters", "ledger")
ON_DISK = ((), (0,), (1,), (0, 1))
"""State partitions that are committed when the engine dies."""


class Engine:
    """The query `sessions`, micro-batch by micro-batch, and all that is around it.

    Clients: full-… is away and has a queue of two; late-… is away, and what expires in its queue goes on to spill; picky-…
    refuses everything; taker-… and spill take everything. sent: message ids by the kind of client.
    """

    def __init__(self, spark: SparkSession, kafka: SharedKafka, directory: Path) -> None:
        self.settings = Settings(
            kafka={"bootstrap_servers": kafka.bootstrap_servers},
            topics={"prefix": "commit-points"},
            engine={"data_dir": directory},
            archive={"trigger_interval_ms": "1s"},
            session={"max_mqueue_len": 2, "retry_interval": "1h", "session_expiry_interval": "never"},
            profiles=[{"clients": "spill", "max_mqueue_len": 0}],
            exchanges=[{"name": "spill", "type": "fanout", "bindings": [{"to": "client:spill"}]}],
            policies=[{"name": "late", "clients": "late-*", "dead_letter_exchange": "spill"}],
        )
        report = ensure_topics(self.settings)
        partitions = next(topic.partitions for topic in report.topics if topic.name == self.settings.topics.commands)
        self.pipeline = pipeline_settings(self.settings, commands_partitions=partitions)
        self.spark, self.kafka = spark, kafka.bootstrap_servers
        self.checkpoint = Path(self.settings.sessions_checkpoint)
        self.sent: dict[str, list[str]] = {kind: [] for kind in ("full", "late", "picky", "taker")}
        self._producer = KafkaProducer(bootstrap_servers=self.kafka, acks="all")
        self._admin = KafkaAdminClient(bootstrap_servers=self.kafka)
        self._answered: set[tuple[bytes, int, int]] = set()
        self._usual = {plan.name: plan.configs["max.message.bytes"] for plan in planned_topics(self.settings)}
        self.query: StreamingQuery | None = None

    def name(self, topic: str) -> str:
        return str(getattr(self.settings.topics, topic))

    def close(self) -> None:
        if self.query is not None:
            self.query.stop()
        self._producer.close()
        self._admin.close()

    def say(self, client_id: str, event: Any) -> None:
        self._producer.send(self.name("events"), encode_event(event), key=client_id.encode())

    def connect(self, client_id: str) -> None:
        self.say(
            client_id, ClientConnected(connection_id=1, commands_partition=0, clean_start=False, session_expiry_interval_s=None)
        )

    def send_messages(self) -> None:
        """Sends a message to every client of every kind, and three to those whose queue holds two."""
        for kind, ids in self.sent.items():
            for number in range(CLIENTS * (3 if kind == "full" else 1)):
                client_id = f"{kind}-{number % CLIENTS}"
                ids.append(f"{client_id}/{len(ids)}")
                headers = [("mqtt-topic", b"t"), ("message-id", ids[-1].encode())]
                if kind == "late":
                    headers.append(("expiration", b"1"))
                self._producer.send(
                    self.name("messages"), b"payload of " + ids[-1].encode(), key=client_id.encode(), headers=headers
                )
        self._producer.flush()

    def answer(self) -> int:
        """Acknowledges what the clients have been sent, each number of a connection once, as gateways do. Returns how much."""
        count = 0
        for record in self.records("commands"):
            client_id = (record.key or b"").decode()
            for command in decode_command_batch(record.value or b"").commands:
                number = (record.key or b"", command.connection_id, command.sequence)
                if isinstance(command, SendPublish) and number not in self._answered:
                    self._answered.add(number)
                    reason_code = REFUSED if client_id.startswith("picky") else 0
                    event = PubAckReceived(
                        connection_id=command.connection_id, packet_id=command.packet_id, reason_code=reason_code
                    )
                    self.say(client_id, event)
                    count += 1
        self._producer.flush()
        return count

    def records(self, topic: str) -> list[ReadRecord]:
        return read_topic(self.kafka, self.name(topic), within_s=DEADLINE_S)

    def counts(self) -> dict[str, int]:
        return {topic: len(self.records(topic)) for topic in WRITTEN}

    def run_micro_batch(self) -> int:
        """Runs one and commits it; its number."""
        number = self.committed() + 1
        self._start()
        assert self.query is not None
        wait_until(lambda: self.committed() == number, f"micro-batch {number}", within_s=DEADLINE_S, check=self._check)
        self.query.stop()
        return number

    def die_while_kafka_refuses(self, topic: str) -> dict[str, int]:
        """Runs one that dies because a topic takes no record. Returns what is in Kafka then."""
        number = self.committed()
        self._limit(topic, "1")
        try:
            self._start()
            assert self.query is not None
            with pytest.raises(StreamingQueryException, match="RecordTooLarge"):
                self.query.awaitTermination(int(DEADLINE_S))
            assert self.committed() == number
            return self.counts()
        finally:
            self._limit(topic, self._usual[self.name(topic)])

    def forget_commit(self, number: int, committed_partitions: tuple[int, ...]) -> None:
        """Makes the disk as if the engine had died before the commit log had this micro-batch."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        for partition in (0, 1):
            folder, version = self.checkpoint / "state" / "0" / str(partition), number + 1
            written = [path for path in folder.iterdir() if path.name.lstrip(".").split(".")[0].split("_")[0] == str(version)]
            assert written, f"no state of version {version} in {sorted(folder.iterdir())}"
            if partition not in committed_partitions:
                for path in written:
                    path.unlink()
        assert self.committed() == number - 1

    def committed(self) -> int:
        return newest_batch(self.checkpoint / "commits")

    def _start(self) -> None:
        # A batch of several records that is refused as too large is split and sent again, for two minutes; so each is its own.
        options = self.settings.kafka.spark_options() | {"kafka.batch.size": "0"}
        records = read_records(self.spark, self.pipeline, kafka_options=options, max_offsets_per_trigger=100_000)
        self.query = sessions_writer(
            sessions(records, self.pipeline),
            self.pipeline,
            kafka_options=options,
            checkpoint_location=str(self.checkpoint),
            trigger_interval_ms=3_600_000,  # the first micro-batch comes at once: each start is one
        ).start()

    def _check(self) -> None:
        assert self.query is not None
        assert self.query.exception() is None, str(self.query.exception())

    def _limit(self, topic: str, max_message_bytes: str) -> None:
        name = self.name(topic)
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": max_message_bytes})])

        def in_force() -> bool:
            (found,) = self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])["topic"].values()
            return bool(found["max.message.bytes"]["value"] == max_message_bytes)

        wait_until(in_force, f"the limit of {name} is in force", within_s=DEADLINE_S)


@pytest.fixture
def engine(spark: SparkSession, kafka: SharedKafka, tmp_path: Path) -> Iterator[Engine]:
    made = Engine(spark, kafka, tmp_path)
    yield made
    made.close()


@pytest.mark.promise("undelivered")
def test_killed_at_each_point_before_the_commit_every_message_ends_once(engine: Engine) -> None:
    for client_id in ("spill", *(f"{kind}-{number}" for kind in ("picky", "taker") for number in range(CLIENTS))):
        engine.connect(client_id)
    engine.send_messages()
    engine.run_micro_batch()

    for topic in WRITTEN:  # 1
        engine.answer()
        engine.send_messages()
        before = engine.counts()
        dead = engine.die_while_kafka_refuses(topic)
        assert dead[topic] == before[topic]
        assert any(dead[other] > before[other] for other in WRITTEN), "it died before it wrote anything"
        engine.run_micro_batch()
        after = engine.counts()
        assert all(after[other] > before[other] for other in WRITTEN), "something of everything was in this micro-batch"
    for partitions in ON_DISK:  # 2, 3, 4
        engine.answer()
        engine.send_messages()
        before = engine.counts()
        number = engine.run_micro_batch()
        dead = engine.counts()
        engine.forget_commit(number, partitions)
        assert engine.run_micro_batch() == number
        after = engine.counts()
        for topic in WRITTEN:
            assert dead[topic] - before[topic] == after[topic] - dead[topic] > 0, topic

    for number in range(CLIENTS):
        engine.connect(f"full-{number}")
    engine.run_micro_batch()
    while engine.answer():
        engine.run_micro_batch()
    check_receipts_and_dead_letters(engine)
    check_tables(engine)


def check_receipts_and_dead_letters(engine: Engine) -> None:
    sent = {message_id: kind for kind, ids in engine.sent.items() for message_id in ids}
    copies = engine.records("receipts")
    receipts = [json.loads(value) for value in {record.value: None for record in copies} if value is not None]
    assert len(copies) > len(receipts), "no record was written twice: the deaths came at the wrong time"
    final = [receipt for receipt in receipts if receipt["final"]]
    assert Counter(receipt["message_id"] for receipt in final) == Counter(sent.keys()), "each has one last word"
    outcomes = {kind: Counter(r["outcome"] for r in final if sent[r["message_id"]] == kind) for kind in engine.sent}
    everything = {kind: len(ids) for kind, ids in engine.sent.items()}
    assert outcomes["taker"] == {"delivered": everything["taker"]}
    assert outcomes["picky"] == {"rejected": everything["picky"]}
    assert outcomes["late"] == {"delivered": everything["late"]}  # by way of spill
    assert outcomes["full"] == {"maxlen": everything["full"] - 2 * CLIENTS, "delivered": 2 * CLIENTS}

    letters = {(record.value, record.headers): record for record in engine.records("dead_letters")}
    dead = Counter(dict(letter.headers)["message-id"].decode() for letter in letters.values())
    assert dead == Counter(receipt["message_id"] for receipt in final if receipt["outcome"] != "delivered")
    for letter in letters.values():
        (death,) = json.loads(dict(letter.headers)["x-death"])
        assert death["count"] == 1, "a repetition is no second death"


def check_tables(engine: Engine) -> None:
    archive = start_archive(engine.spark, engine.settings)
    archive.processAllAvailable()
    archive.stop()
    tables = {
        spec: engine.spark.read.format("delta").load(table_location(engine.settings.tables_location, spec)).collect()
        for spec in (LEDGER, DEAD_LETTERS, RECEIPTS)
    }
    for spec, rows in tables.items():
        keys = Counter(tuple(row[column] for column in spec.key) for row in rows)
        assert set(keys.values()) == {1}, spec.name
    sent = Counter(message_id for ids in engine.sent.values() for message_id in ids)
    assert Counter(row.message_id for row in tables[LEDGER] if row.transition == "accepted") == sent
    finished = [row for row in tables[LEDGER] if row.transition == "finished" and row.client_id == row.message_id.split("/")[0]]
    assert Counter(row.message_id for row in finished) == sent
    assert Counter(row.message_id for row in tables[DEAD_LETTERS]) == Counter(
        row.message_id for row in tables[RECEIPTS] if row.outcome in ("maxlen", "rejected")
    )
