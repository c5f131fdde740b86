"""Waits for micro-batches of an engine, which an idle one has rarely."""

from collections.abc import Callable

from kafka import KafkaProducer

from state.records.events import WAKE_UP_KEY
from tests.support.waiting import wait_until


def await_batches(
    bootstrap_servers: str,
    committed: Callable[[], int],
    count: int,
    *,
    topic: str = "inflight.events",
    check: Callable[[], object] = lambda: None,
) -> None:
    """Returns when `count` more have been committed. Each is begun by a record that is for no session.

    Args:
        committed: Returns the number of the newest one.
        topic: The events of the engine.
        check: Raises when waiting is of no use.
    """
    target, begun = committed() + count, -1
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")

    def are_committed() -> bool:
        nonlocal begun
        if (last := committed()) >= target:
            return True
        if last > begun:
            begun = last
            producer.send(topic, b"", key=WAKE_UP_KEY).get(30)
        return False

    try:
        wait_until(are_committed, f"{count} more micro-batches", check=check)
    finally:
        producer.close()
