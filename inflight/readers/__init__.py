"""Reads what devices publish and what became of messages: `from inflight import Uplink, Receipts` (docs/guides/backend.md)."""

from inflight.readers.receipts import Receipts
from inflight.readers.uplink import Uplink, UplinkMessage
from sinks.kafka.librdkafka import KafkaFailed
from state.model import Outcome
from state.records.receipts import Receipt

__all__ = ["KafkaFailed", "Outcome", "Receipt", "Receipts", "Uplink", "UplinkMessage"]
