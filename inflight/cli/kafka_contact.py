"""Tells within three seconds when Kafka is away, before a client of Kafka would say it."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from sinks.health import UnmetCondition
from sinks.kafka.first_contact import CONTACT_S, first_contact
from streaming.config.errors import KafkaUnreachable
from streaming.terminal import say

if TYPE_CHECKING:
    from inflight.cli.metrics_server import ProbeAddress

_PAUSE_S: Final = 1.0
_SAY_AGAIN_S: Final = 30.0


class AwaitingKafka:
    """The health of a process that waits for Kafka: it is alive, and not ready.

    why: Why Kafka's addresses gave no answer the last time, for people.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.why = ""
        self._servers = bootstrap_servers

    def not_alive(self) -> Sequence[UnmetCondition]:
        return ()

    def not_ready(self) -> Sequence[UnmetCondition]:
        what = f"Kafka at {self._servers} does not answer ({self.why})"
        return (UnmetCondition(what, "check kafka.bootstrap_servers, and that Kafka runs; the process goes on by itself then"),)


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


def await_kafka(
    bootstrap_servers: str,
    *,
    probes: "Sequence[ProbeAddress]" = (),
    pause_s: float = _PAUSE_S,
    within_s: float = CONTACT_S,
) -> None:
    """Returns when somebody listens there, for a process that goes on trying. Writes a line at first and every half minute.

    Args:
        probes: Where to answer probes meanwhile: /healthz says that the process is alive, /readyz what it waits for.
    """
    began_s = time.monotonic()
    said_s: float | None = None
    health = AwaitingKafka(bootstrap_servers)
    with ExitStack() as serving:
        while (why := first_contact(bootstrap_servers, within_s=within_s)) is not None:
            health.why = why
            if said_s is None and probes:
                from inflight.cli.metrics_server import serving_probes

                serving.enter_context(serving_probes(probes, health))
            if said_s is None or time.monotonic() - said_s >= _SAY_AGAIN_S:
                said_s = time.monotonic()
                advice = "Check kafka.bootstrap_servers, and that Kafka runs"
                say(f"waiting for Kafka at {bootstrap_servers}: {why}. {advice}", err=True)
            time.sleep(pause_s)
    if said_s is not None:
        say(f"Kafka at {bootstrap_servers} is there after {time.monotonic() - began_s:.0f} s", err=True)
