"""Inflight delivers messages between Kafka and MQTT devices, and does not lose them.

What a backend imports: `from inflight import Producer` (docs/guides/producer.md), and `Presence`
(docs/guides/presence.md). It needs neither Java nor Spark.
What people type is the command `inflight` (inflight/cli).
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inflight.presence import *  # noqa: F403
    from inflight.producer import *  # noqa: F403

    __version__: str


def __getattr__(name: str) -> Any:
    # At first use: the command imports this package too, and `inflight --help` does not wait for a Kafka client.
    if name == "__version__":
        return version("inflight")
    if name[0].isupper():
        return getattr(import_module("inflight.presence" if "Presence" in name else "inflight.producer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
