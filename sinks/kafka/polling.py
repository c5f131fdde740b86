"""Polling a consumer that belongs to a group."""

import time
from typing import Any, Final

import structlog
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError

_log: Final = structlog.get_logger(__name__)
_WITHOUT_BROKER_S: Final = 0.2


def poll(consumer: Any, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
    """The next records, none when the broker cannot be reached.

    kafka-python passes over most failures of a connection, and raises some. None is a reason for another consumer: it would be a
    stranger to the group, and give up the partitions, while the group waits for the member that it knows.
    """
    try:
        records: dict[TopicPartition, list[Any]] = consumer.poll(timeout_ms=timeout_ms)
    except KafkaConnectionError as error:
        _log.debug("broker_away", error=repr(error))
        time.sleep(_WITHOUT_BROKER_S)
        return {}
    return records
