"""Sending into Inflight from a backend: `from sinks.producer import Producer`."""

from sinks.producer.model import (
    Attempt,
    Cause,
    InvalidMessage,
    SendFailed,
    SendResult,
    SomeSendsFailed,
    TransactionFailed,
)
from sinks.producer.producer import Producer, ProducerClosed
from sinks.producer.settings import ProducerSettings
from sinks.producer.transaction import Transaction
from state.settings import BackoffSettings

__all__ = [
    "Attempt",
    "BackoffSettings",
    "Cause",
    "InvalidMessage",
    "Producer",
    "ProducerClosed",
    "ProducerSettings",
    "SendFailed",
    "SendResult",
    "SomeSendsFailed",
    "Transaction",
    "TransactionFailed",
]
