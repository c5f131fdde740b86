"""Tells within three seconds when Kafka is away, before a client of Kafka would say it."""

import time
from typing import Final

from sinks.kafka.first_contact import CONTACT_S, first_contact
from streaming.config.errors import KafkaUnreachable
from streaming.terminal import say

_PAUSE_S: Final = 1.0
_SAY_AGAIN_S: Final = 30.0


def require_kafka(bootstrap_servers: str) -> None:
    """Raises KafkaUnreachable if nobody listens there: for a command that asks once."""
    if (why := first_contact(bootstrap_servers)) is not None:
        raise KafkaUnreachable.without_contact(bootstrap_servers, why)


def say_if_kafka_is_away(bootstrap_servers: str, *, patience_ms: int) -> None:
    """Writes a line if nobody listens there: for a command that goes on trying.

    Args:
        patience_ms: How long it tries.
    """
    if (why := first_contact(bootstrap_servers)) is not None:
        say(f"Kafka at {bootstrap_servers} does not answer ({why}); trying for {patience_ms / 1_000:g} s", err=True)


def await_kafka(bootstrap_servers: str, *, pause_s: float = _PAUSE_S, within_s: float = CONTACT_S) -> None:
    """Returns when somebody listens there, for a process that goes on trying. Writes a line at first and every half minute."""
    began_s = time.monotonic()
    said_s: float | None = None
    while (why := first_contact(bootstrap_servers, within_s=within_s)) is not None:
        if said_s is None or time.monotonic() - said_s >= _SAY_AGAIN_S:
            said_s = time.monotonic()
            say(f"waiting for Kafka at {bootstrap_servers}: {why}. Check kafka.bootstrap_servers, and that Kafka runs", err=True)
        time.sleep(pause_s)
    if said_s is not None:
        say(f"Kafka at {bootstrap_servers} is there after {time.monotonic() - began_s:.0f} s", err=True)
