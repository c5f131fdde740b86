"""Inflight delivers messages between Kafka and MQTT devices, and does not lose them.

What a backend imports: `from inflight import Producer` (docs/producer.md). It needs neither Java nor Spark.
What people type is the command `inflight` (inflight/cli).
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inflight.producer import (
        Attempt,
        BackoffSettings,
        Cause,
        InvalidMessage,
        NoRunningSystem,
        Producer,
        ProducerClosed,
        ProducerSettings,
        SendFailed,
        SendResult,
        SomeSendsFailed,
        Transaction,
        TransactionFailed,
    )

    __version__: str

__all__ = [
    "Attempt",
    "BackoffSettings",
    "Cause",
    "InvalidMessage",
    "NoRunningSystem",
    "Producer",
    "ProducerClosed",
    "ProducerSettings",
    "SendFailed",
    "SendResult",
    "SomeSendsFailed",
    "Transaction",
    "TransactionFailed",
]


def __getattr__(name: str) -> Any:
    # At first use: the command imports this package too, and `inflight --help` does not wait for a Kafka client.
    if name in __all__:
        return getattr(import_module("inflight.producer"), name)
    if name == "__version__":
        return version("inflight")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
