"""Asks the engine to end or restore sessions, by records of `inflight.events`. Reads the client ids from its checkpoint."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from state.events import QuarantineRequest, SessionPurged
from state.records.events import encode_event
from streaming.history.session_relation import SESSIONS
from streaming.history.store import Store

SessionRequest: TypeAlias = QuarantineRequest | SessionPurged

_TIMEOUT_S: Final = 30
_PORTION: Final = 10_000


def purgeable_clients(store: Store, condition: str) -> Iterator[str]:
    """Returns the ids of the clients for which the condition holds and that are neither connected nor quarantined.

    Raises NoArchive when there is no checkpoint, BadQuestion for a condition that is none.
    """
    found = store.where(SESSIONS, condition, order="client_id")
    return (row["client_id"] for row in found if not row["connected"] and not row["quarantined"])


def send_requests(producer: Any, topic: str, client_ids: Iterable[str], request: SessionRequest) -> int:
    """Sends the request for each client; returns how many, when Kafka has confirmed all. A repeated request has no effect.

    Args:
        producer: Has kafka-python's `send(topic, key=, value=)` and futures.

    Raises:
        kafka.errors.KafkaError: Kafka does not confirm a request.
    """
    value, count = encode_event(request), 0
    waiting = iter(client_ids)
    while some := list(islice(waiting, _PORTION)):
        for future in [producer.send(topic, key=client_id.encode(), value=value) for client_id in some]:
            future.get(timeout=_TIMEOUT_S)
        count += len(some)
    return count
