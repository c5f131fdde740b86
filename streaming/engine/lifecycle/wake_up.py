"""The record that gives an engine its first micro-batch.

Spark runs a micro-batch without new records only after another one of the same process. An engine that was stopped just after a
commit and finds nothing new in Kafka would wait for a record, and until one came no timer of a session would fire. So each start
appends one to `inflight.events`, which streaming/engine/query.py leaves out: it moves an offset and nothing else.
"""

from typing import Final

from kafka import KafkaProducer
from kafka.errors import KafkaError

from sinks.kafka.producers import abandon
from state.records.events import WAKE_UP_KEY
from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings

_TIMEOUT_MS: Final = 30_000


def write_wake_up(settings: Settings) -> None:
    """Returns when Kafka has confirmed the record. Raises KafkaUnreachable."""
    options = {
        "client_id": "inflight-engine",
        "acks": "all",
        "max_block_ms": _TIMEOUT_MS,
        "delivery_timeout_ms": _TIMEOUT_MS,
        **settings.kafka.client_options(),
    }
    try:
        producer = KafkaProducer(**options)
        try:
            producer.send(settings.topics.events, key=WAKE_UP_KEY, value=b"").get(timeout=_TIMEOUT_MS / 1_000)
        finally:
            abandon(producer)
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
