"""Ends the quarantine of clients (state/dead_letters/quarantine.py): asks the engine, by records of `inflight.events`."""

from collections.abc import Iterable
from typing import Any, Final

from state.events import QuarantineRequest
from state.records.events import encode_event
from streaming.history.session import HistorySession

_TIMEOUT_S: Final = 30


def quarantined_clients(history: HistorySession) -> list[str]:
    """The ids of the clients that are quarantined, sorted. Raises NoArchive when there is no checkpoint."""
    rows = history.sessions().where("quarantined").select("client_id").orderBy("client_id")
    return [row["client_id"] for row in history.documents(rows)]


def send_requests(producer: Any, topic: str, client_ids: Iterable[str], request: QuarantineRequest) -> None:
    """Returns when Kafka has all of them. A request may be repeated: the second one finds nobody in quarantine.

    producer: with `send(topic, key=, value=)` and futures, such as kafka-python's. Raises kafka.errors.KafkaError.
    """
    value = encode_event(request)
    for future in [producer.send(topic, key=client_id.encode(), value=value) for client_id in client_ids]:
        future.get(timeout=_TIMEOUT_S)
