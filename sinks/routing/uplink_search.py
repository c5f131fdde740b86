"""Reads a part of `inflight.uplink` once more, for the search for copies (copies.py). One thread calls all methods."""

import time
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.group_consumer import polled
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, headers_of, new_client, reason_of
from sinks.routing.log_ends import Partition
from state.errors import UnreadableRecord
from state.records.messages import QOS
from state.records.uplink import INFLIGHT_ID

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.2
_MOST_RECORDS: Final = 500
_SEARCH_S: Final = 60.0


class UplinkSearch:
    """Has a consumer of its own from its first search to `close`.

    Args:
        asking: A client that fetches nothing (log_ends.py).
    """

    def __init__(self, host: HostSettings, group_id: str, asking: Any) -> None:
        self._host = host
        self._group_id = group_id
        self._asking = asking
        self._client: Any = None

    def offset_at(self, partition: Partition, time_ms: int) -> int | None:
        """Returns the first offset whose record is not older than a time; None = there is none. Raises KafkaFailed."""
        asked = [TopicPartition(*partition, max(0, time_ms))]
        try:
            [found] = self._asking.offsets_for_times(asked, timeout=_ANSWER_S)
        except KafkaException as error:
            raise KafkaFailed(f"the offset of a time in {partition[0]} is not known: {reason_of(error)}") from error
        if found.error is not None:
            raise KafkaFailed(f"the offset of a time in {partition[0]} is not known: {found.error}")
        return found.offset if found.offset >= 0 else None

    def ids_between(self, partition: Partition, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yields offset and `inflight-id` of the records of QoS 2. Raises KafkaFailed."""
        if self._client is None:
            config = {
                "group.id": self._group_id,  # librdkafka wants one of a consumer that joins none, too
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # what retention has deleted need not be searched
                "isolation.level": "read_committed",
            }
            common = client_config(self._host.bootstrap_servers, self._host.kafka_options, ClientErrors())
            self._client = new_client(Consumer, {**common, **config})
        self._client.assign([TopicPartition(*partition, first)])
        try:
            yield from self._read(end)
        finally:
            self._client.unassign()

    def _read(self, end: int) -> Iterator[tuple[int, bytes]]:
        deadline_s = time.monotonic() + _SEARCH_S
        while time.monotonic() < deadline_s:
            for message in polled(self._client, _POLL_S, _MOST_RECORDS):
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaFailed(error.str())
                    return  # `end` was in the log when the search began
                if message.offset() >= end:
                    return
                try:
                    headers = dict(headers_of(message))
                except UnreadableRecord:
                    continue
                if headers.get(QOS) == b"2":
                    yield message.offset(), headers.get(INFLIGHT_ID) or b""
                if message.offset() == end - 1:
                    return
        raise KafkaFailed(f"a search for copies took longer than {_SEARCH_S:g} s")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
