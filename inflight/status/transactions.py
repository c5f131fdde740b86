"""Finds partitions that an open transaction of a backend holds back: nobody reads what comes after its first record."""

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from inflight.status.measurements import HeldPartition

_READ_S: Final = 3.0
_POLL_MS: Final = 200


class HighWatermarks:
    """Ends of partitions, open transactions included. Methods raise KafkaError.

    Read them before the last stable offsets: what is between is held back.

    Args:
        options: Options of kafka-python's clients.
    """

    def __init__(self, options: Mapping[str, Any], partitions: Collection[TopicPartition]) -> None:
        self._options = options
        self._consumer: Any = KafkaConsumer(
            **options, group_id=None, isolation_level="read_uncommitted", enable_auto_commit=False, metrics_enabled=False
        )
        self._ends: dict[TopicPartition, int] = self._consumer.end_offsets(list(partitions))

    def held(self, stable: Mapping[TopicPartition, int]) -> tuple[HeldPartition, ...]:
        """Returns the partitions that are held back.

        Args:
            stable: Last stable offsets, read after this object was made.
        """
        held = {partition: stable[partition] for partition, end in sorted(self._ends.items()) if stable[partition] < end}
        if not held:
            return ()
        began_ms, writers = self._times(held), self._writers(held)
        now_ms = time.time_ns() // 1_000_000
        return tuple(
            HeldPartition(
                topic=partition.topic,
                partition=partition.partition,
                offset=offset,
                records=self._ends[partition] - offset,
                open_s=max(0, now_ms - began_ms[partition]) / 1_000 if partition in began_ms else None,
                writer=writers.get(partition, ""),
            )
            for partition, offset in held.items()
        )

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1_000)

    def _times(self, held: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns the time of the first record of each transaction, in ms since 1970, as far as this user may read them."""
        found: dict[TopicPartition, int] = {}
        with contextlib.suppress(KafkaError):
            self._consumer.assign(list(held))
            for partition, offset in held.items():
                self._consumer.seek(partition, offset)
            deadline = time.monotonic() + _READ_S
            while len(found) < len(held) and time.monotonic() < deadline:
                for partition, records in self._consumer.poll(timeout_ms=_POLL_MS).items():
                    found.setdefault(partition, records[0].timestamp)
        return found

    def _writers(self, held: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Returns the transactional ids, or producer ids, as far as this user may see them."""
        found: dict[TopicPartition, str] = {}
        with contextlib.suppress(KafkaError):
            admin = KafkaAdminClient(**self._options)
            try:
                for partition, state in admin.describe_producers(list(held)).items():
                    for producer in state.active_producers:
                        if producer.current_transaction_start_offset == held[partition]:
                            found[partition] = f"producer id {producer.producer_id}"
                            for listed in admin.list_transactions(producer_id_filters=[producer.producer_id]).values():
                                for transaction in listed:
                                    found[partition] = f"transactional.id {transaction.transactional_id}"
            finally:
                admin.close()
        return found
