"""Asks the engine to end or restore sessions, by records of `inflight.events`; who is asked about is read from its checkpoint."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from state.events import QuarantineRequest, SessionPurged
from state.records.events import encode_event
from streaming.history.session import HistorySession

Request: TypeAlias = QuarantineRequest | SessionPurged

_TIMEOUT_S: Final = 30
_AT_ONCE: Final = 10_000


def quarantined_clients(history: HistorySession) -> list[str]:
    """The ids of the clients that are quarantined, sorted. Raises NoArchive when there is no checkpoint."""
    rows = history.sessions().where("quarantined").select("client_id").orderBy("client_id")
    return [row["client_id"] for row in history.documents(rows)]


def purgeable_clients(history: HistorySession, condition: str) -> Iterator[str]:
    """The ids of the clients for which the condition holds, and that are neither connected nor quarantined. Raises NoArchive when
    there is no checkpoint, BadQuestion for a condition that Spark refuses."""
    rows = history.where(history.sessions(), condition).where("NOT connected AND NOT quarantined").select("client_id")
    return (row["client_id"] for row in history.documents(rows))


def send_requests(producer: Any, topic: str, client_ids: Iterable[str], request: Request) -> int:
    """Returns how many, when Kafka has all of them. A request may be repeated: the second one finds nothing to do.

    producer: with `send(topic, key=, value=)` and futures, such as kafka-python's. Raises kafka.errors.KafkaError.
    """
    value, count = encode_event(request), 0
    waiting = iter(client_ids)
    while some := list(islice(waiting, _AT_ONCE)):
        for future in [producer.send(topic, key=client_id.encode(), value=value) for client_id in some]:
            future.get(timeout=_TIMEOUT_S)
        count += len(some)
    return count
