"""The topics of a real Kafka as a source: what is found, in which partitions, and how far back."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from inflight.local.child_process import free_port
from sinks.kafka.partitioning import partition_of
from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.routes import MessagesTopic, announcements
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.history.errors import NothingFound
from streaming.history.sources.kafka import KafkaSource
from streaming.history.sources.source import SourceChoice, SourceLimits
from streaming.history.store import Store
from streaming.topics import topic_id
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka

T0 = 1_790_000_000_000
PARTITIONS = 4
CLIENTS = [f"client-{number}" for number in range(20)]


@pytest.fixture
def settings(kafka: SharedKafka) -> Settings:
    made = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": f"source-{uuid.uuid4().hex[:8]}"})
    topics = made.topics
    names = topics.ledger, topics.receipts, topics.messages, topics.dead_letters
    # The records are old already, and Kafka deletes records beyond their retention at any time.
    create_topics(kafka.bootstrap_servers, *names, partitions=PARTITIONS, retention_ms="-1")
    return made


@pytest.fixture
def producer(kafka: SharedKafka) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    yield made
    made.close()


def write_ledger(producer: KafkaProducer, settings: Settings, client_id: str, message_id: str, time_ms: int = T0) -> None:
    row = LedgerRow(client_id=client_id, batch_ms=time_ms, transition="sent", time_ms=time_ms, message_id=message_id)
    producer.send(
        settings.topics.ledger, key=client_id.encode(), value=encode_ledger_rows([row]), timestamp_ms=time_ms
    ).get(30)  # fmt: skip


def complete_since_ms(settings: Settings, limits: SourceLimits, name: str = "ledger") -> int | None:
    with Store(settings, list, choice=SourceChoice.KAFKA, limits=limits) as store:
        store.load(name)
        return store.complete_since_ms(name)


def test_a_question_in_sql_reads_all_partitions_and_each_row_once(settings: Settings, producer: KafkaProducer) -> None:
    for client_id in (*CLIENTS, *CLIENTS):  # the engine has executed a micro-batch again
        write_ledger(producer, settings, client_id, "m")
    with Store(settings, list, choice=SourceChoice.KAFKA) as store:
        (found,) = store.ask("SELECT count(*), count(DISTINCT kafka_partition), min(time) FROM ledger").rows
    assert found == (len(CLIENTS), PARTITIONS, datetime.fromtimestamp(T0 / 1_000, UTC))


def test_a_message_is_found_in_all_partitions_or_in_that_of_its_client(settings: Settings, producer: KafkaProducer) -> None:
    for client_id in CLIENTS:
        write_ledger(producer, settings, client_id, "broadcast")
        write_ledger(producer, settings, client_id, f"only-{client_id}")
    told: list[tuple[int, int]] = []
    everywhere = KafkaSource(settings, SourceLimits(), lambda done, total: told.append((done, total)))
    assert {row["client_id"] for row in everywhere.of_message("broadcast").ledger} == set(CLIENTS)
    assert told[-1] == (2 * len(CLIENTS), 2 * len(CLIENTS))
    ledger = settings.topics.ledger
    assert f"  {ledger}: 4 partitions, 40 records, all there ever were" in everywhere.described()

    one = KafkaSource(settings, SourceLimits(client_id="client-7"))
    (row,) = one.of_message("broadcast").ledger
    number = partition_of(b"client-7", PARTITIONS)
    assert (row["client_id"], row["kafka_partition"]) == ("client-7", number)
    assert any(line.startswith(f"  {ledger}: partition {number}, ") for line in one.described())


def test_ends_of_transactions_and_aborted_messages_are_no_records(settings: Settings, kafka: SharedKafka) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"tx-{uuid.uuid4().hex}")
    producer.init_transactions()
    for message_id, end in ("kept", producer.commit_transaction), ("dropped", producer.abort_transaction):
        producer.begin_transaction()
        producer.send(settings.topics.messages, key=b"c", value=b"p", headers=[("message-id", message_id.encode())])
        producer.flush()
        end()
    producer.close()
    source = KafkaSource(settings, SourceLimits())
    assert [row["client_id"] for row in source.of_message("kept").submitted] == ["c"]
    assert not source.of_message("dropped")


def test_a_default_id_is_that_of_the_topic_which_the_engine_reads(
    settings: Settings, producer: KafkaProducer, kafka: SharedKafka
) -> None:
    topics = settings.topics
    create_topics(kafka.bootstrap_servers, topics.routes, cleanup_policy="compact")
    producer.send(topics.messages, key=b"c", value=b"p", partition=1).get(30)
    first, second = f"{topics.messages}-1-0", f"{topics.messages}-1-0-1"

    def submitted(message_id: str) -> int:
        return len(KafkaSource(settings, SourceLimits()).of_message(message_id).submitted)

    def announce(messages_id: str, generation: int) -> None:
        (record,) = announcements(topics.routes, 1, MessagesTopic(topic_id=messages_id, generation=generation))
        producer.send(record.topic, key=record.key, value=record.value).get(30)

    assert (submitted(first), submitted(second)) == (1, 0), "no engine has announced anything"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    messages_id = topic_id(admin.describe_topics([topics.messages])[0])
    admin.close()
    announce(messages_id, 1)
    assert (submitted(first), submitted(second)) == (0, 1)
    announce(str(uuid.uuid4()), 1)
    assert (submitted(first), submitted(second)) == (0, 0), "the engine has not gone on with this topic"


def test_bounds_leave_older_records_out_and_the_answer_says_so(settings: Settings, producer: KafkaProducer) -> None:
    for age in range(10, 0, -1):
        write_ledger(producer, settings, "c", f"m-{age}", T0 - 1_000 * age)
    newest = KafkaSource(settings, SourceLimits(client_id="c", max_records=3))
    assert not newest.of_message("m-4")
    assert newest.of_message("m-3")
    assert complete_since_ms(settings, SourceLimits(client_id="c", max_records=3)) == T0 - 3_000
    assert "(--max-records)" in newest.described()[1]

    recent = KafkaSource(settings, SourceLimits(client_id="c", since_ms=T0 - 5_000))
    assert recent.of_message("m-5")
    assert not recent.of_message("m-6")
    assert complete_since_ms(settings, SourceLimits(client_id="c", since_ms=T0 - 5_000)) == T0 - 5_000
    assert "(--since)" in recent.described()[1]


def test_the_answer_says_since_when_retention_has_deleted(
    settings: Settings, producer: KafkaProducer, kafka: SharedKafka
) -> None:
    for age in (3, 2, 1):
        write_ledger(producer, settings, "c", f"m-{age}", T0 - 1_000 * age)
    part = TopicPartition(settings.topics.ledger, partition_of(b"c", PARTITIONS))
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({part: 1})
    admin.close()
    source = KafkaSource(settings, SourceLimits())
    assert not source.of_message("m-3")
    assert source.of_message("m-2")
    assert complete_since_ms(settings, SourceLimits()) == T0 - 2_000
    assert complete_since_ms(settings, SourceLimits(), "dead_letters") is None
    assert "Kafka has deleted what is older" in source.not_found("message")


def test_a_kafka_that_is_away_and_a_topic_that_is_missing_are_said(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"topics": replace(settings.topics, prefix="nobody-made-these")})
    with pytest.raises(NothingFound, match=r"nobody-made-these.ledger.*topics.prefix"):
        KafkaSource(nowhere, SourceLimits()).of_message("m")
    away = Settings(kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"})
    with pytest.raises(KafkaUnreachable, match=r"kafka\.bootstrap_servers"):
        KafkaSource(away, SourceLimits()).of_message("m")
