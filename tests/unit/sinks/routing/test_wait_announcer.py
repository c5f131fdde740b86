"""sinks.routing.wait_announcer"""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka.host_settings import HostSettings
from sinks.routing.wait_announcer import WaitAnnouncer
from state.records.throttle import decode_throttle, partition_key

A, B = ("uplink", 0), ("publications", 7)


class FakeProducer:
    """Keeps what was written: partition, and whether it waits."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None]] = []
        self.is_broken = False

    def produce(self, topic: str, value: bytes | None, key: bytes, *, on_delivery: Any) -> None:
        assert topic == "throttle"
        if self.is_broken:
            raise KafkaException(KafkaError(KafkaError._QUEUE_FULL))
        self.records.append((key.decode(), value))
        on_delivery(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)

    def poll(self, timeout_s: float) -> None: ...
    def flush(self, timeout_s: float) -> None: ...

    def said(self) -> list[tuple[str, bool]]:
        said, self.records = self.records, []
        return [(key, value is not None) for key, value in said]


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer()


@pytest.fixture
def announcer(producer: FakeProducer) -> WaitAnnouncer:
    return WaitAnnouncer(HostSettings(), "throttle", lambda: 7, new_producer=lambda host: producer)


def test_a_wait_is_said_repeated_and_ended(announcer: WaitAnnouncer, producer: FakeProducer) -> None:
    announcer.announce([A], 100.0)
    [(_, value)] = producer.records
    assert value is not None
    throttle = decode_throttle(value)
    assert (throttle.since_ms, throttle.is_progressing) == (7, True)
    assert producer.said() == [(partition_key(*A), True)]
    announcer.announce([A, B], 101.9)
    assert producer.said() == [(partition_key(*B), True)]
    announcer.announce([A, B], 102.0)
    assert producer.said() == [(partition_key(*A), True)]
    announcer.announce([B], 102.1)
    assert producer.said() == [(partition_key(*A), False)]
    announcer.close()
    assert producer.said() == [(partition_key(*B), False)]


def test_a_matcher_that_never_waits_connects_to_nothing() -> None:
    def connected(host: HostSettings) -> Any:
        raise AssertionError("a producer was made")

    announcer = WaitAnnouncer(HostSettings(), "throttle", lambda: 7, new_producer=connected)
    announcer.announce([], 100.0)
    announcer.close()


def test_what_kafka_does_not_take_stops_nothing(announcer: WaitAnnouncer, producer: FakeProducer) -> None:
    producer.is_broken = True
    announcer.announce([A], 100.0)
    producer.is_broken = False
    announcer.announce([A], 102.0)
    assert producer.said() == [(partition_key(*A), True)], "it is said again"
