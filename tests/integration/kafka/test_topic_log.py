"""The topics that the engine's driver reads beside Spark, with a real broker."""

from collections.abc import Callable

from kafka.errors import KafkaError

from streaming.config.settings import Settings
from streaming.engine.kafka_access import TopicLog
from tests.support.kafka_topics import create_topics, recreate_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until


def test_a_topic_made_anew_is_read_from_its_beginning(kafka: SharedKafka) -> None:
    """Else the engine would miss renewals of leases, and end the connections of a living gateway."""
    name = "leases-made-anew"
    create_topics(kafka.bootstrap_servers, name, partitions=1)
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers})
    log = TopicLog(settings, name, client_id="made-anew", max_block_ms=10_000, delivery_timeout_ms=10_000)
    writer = TopicLog(settings, name, client_id="made-anew-writer", max_block_ms=10_000, delivery_timeout_ms=10_000)
    writer.write(name, ((b"gateway", b"renewal %d" % number) for number in range(20)))
    assert len(log.read()) == 20
    assert log.read() == []

    recreate_topics(kafka.bootstrap_servers, name, partitions=1)

    def is_done(work: Callable[[], object]) -> bool:
        try:
            work()
        except KafkaError:  # metadata of the old one is in use
            return False
        return True

    wait_until(lambda: is_done(lambda: writer.write(name, [(b"gateway", b"after")])), "a renewal is in the new topic")
    found: list[tuple[bytes, bytes | None]] = []
    wait_until(lambda: is_done(lambda: found.extend(log.read())) and found, "the renewal is read")
    assert {value for _, value in found} == {b"after"}
    log.close()
    writer.close()
