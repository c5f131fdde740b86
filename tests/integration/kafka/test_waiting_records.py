"""The sizes of waiting records, where a partition has another leader than before. The former one lives, and refuses to answer."""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from inflight.local.jars import Jars
from streaming.engine.intake.waiting_records import WaitingRecords
from tests.support.kafka_cluster import BROKERS, KafkaCluster
from tests.support.kafka_topics import create_topics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.servers
TOPIC, SIZE_BYTES = "waiting", 1_000
LONGEST_CALL_S = 15.0
"""Half of kafka-python's own limit, and several times ours."""


def move_leader(admin: KafkaAdminClient) -> None:
    """Has the next broker lead the partition."""

    def leader() -> int:
        number: int = admin.describe_topics([TOPIC])[0]["partitions"][0]["leader_id"]
        return number

    wanted = (leader() + 1) % BROKERS
    admin.alter_partition_reassignments({TopicPartition(TOPIC, 0): [wanted]})
    wait_until(lambda: leader() == wanted, "the partition has moved")


@pytest.mark.promise("leader-moves")
def test_records_are_measured_after_the_leader_has_changed(tmp_path: Path, jars: Jars) -> None:
    with KafkaCluster(tmp_path, jars=jars) as kafka:
        servers = kafka.bootstrap_servers
        create_topics(servers, TOPIC, partitions=1)
        with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
            producer.send(TOPIC, b"x" * SIZE_BYTES).get()
        with (
            closing(KafkaAdminClient(bootstrap_servers=servers)) as admin,
            closing(WaitingRecords({"bootstrap_servers": servers}, max_bytes=1 << 20)) as records,
        ):
            times_s: list[float] = []

            def answers(question: Callable[[], bool]) -> bool:
                began_s = time.monotonic()
                try:
                    return question()
                except KafkaError:
                    return False
                finally:
                    times_s.append(time.monotonic() - began_s)

            def is_measured() -> bool:
                return sum(chunk.size_bytes for chunk in records.measure(TOPIC, 0, 0)) > SIZE_BYTES

            def has_end() -> bool:
                return records.ends(TOPIC, [0]) == {0: 1}

            for question in is_measured, has_end:
                wait_until(partial(answers, question), "Kafka answers")
                move_leader(admin)
                wait_until(partial(answers, question), "Kafka answers again")
            assert max(times_s) < LONGEST_CALL_S
