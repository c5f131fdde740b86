"""Sends messages into Inflight from a backend: `from inflight import Producer`."""

from inflight.producer.async_producer import AsyncProducer
from inflight.producer.deliveries import DeliveryFuture, DeliveryUnknown
from inflight.producer.model import (
    Attempt,
    Cause,
    InvalidMessage,
    SendFailed,
    SendResult,
    SomeSendsFailed,
    TransactionFailed,
)
from inflight.producer.producer import Producer, ProducerClosed
from inflight.producer.requests import RequestFailed
from inflight.producer.settings import ProducerSettings
from inflight.producer.transaction import Transaction
from inflight.running_up import NoRunningSystem
from state.settings import BackoffSettings

__all__ = [
    "AsyncProducer",
    "Attempt",
    "BackoffSettings",
    "Cause",
    "DeliveryFuture",
    "DeliveryUnknown",
    "InvalidMessage",
    "NoRunningSystem",
    "Producer",
    "ProducerClosed",
    "ProducerSettings",
    "RequestFailed",
    "SendFailed",
    "SendResult",
    "SomeSendsFailed",
    "Transaction",
    "TransactionFailed",
]
