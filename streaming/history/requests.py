"""Asks the engine to end or restore sessions, by records of `inflight.events`. Reads the client ids from its checkpoint.

Steps for each portion of clients, in this order:
1. write a ledger row `operator_request` for each, with who asks, and wait until Kafka has confirmed all of them;
2. send the requests, and wait again.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from state.events import DropRequested, QuarantineRequest, RestoreRequested, SessionPurged
from state.records.events import encode_event
from streaming.history.operator_requests import request_row
from streaming.history.session_relation import SESSIONS
from streaming.history.store import Store

if TYPE_CHECKING:
    from streaming.settings import TopicSettings

SessionRequest: TypeAlias = QuarantineRequest | SessionPurged

VERBS: Final[dict[type[SessionRequest], str]] = {SessionPurged: "purge", RestoreRequested: "restore", DropRequested: "drop"}
"""Names of the requests in the ledger."""

_TIMEOUT_S: Final = 30
_PORTION: Final = 10_000


def purgeable_clients(store: Store, condition: str) -> Iterator[str]:
    """Returns the ids of the clients for which the condition holds and that are neither connected nor quarantined.

    Raises NoArchive when there is no checkpoint, BadQuestion for a condition that is none.
    """
    found = store.where(SESSIONS, condition, order="client_id")
    return (row["client_id"] for row in found if not row["connected"] and not row["quarantined"])


def send_requests(
    producer: Any, topics: "TopicSettings", client_ids: Iterable[str], request: SessionRequest, *, by: str, why: str = ""
) -> int:
    """Sends the request for each client; returns how many, when Kafka has confirmed all. A repeated request has no effect.

    Args:
        producer: Has kafka-python's `send(topic, key=, value=)` and futures.
        by: Who asks, for people.
        why: The condition that chose the clients; empty = they were named.

    Raises:
        kafka.errors.KafkaError: Kafka does not confirm a record.
    """
    value, count = encode_event(request), 0
    detail = f"{VERBS[type(request)]} by {by}" + (f": where {why}" if why else "")
    waiting = iter(client_ids)
    while some := list(islice(waiting, _PORTION)):
        now_ms = time.time_ns() // 1_000_000
        _send(producer, topics.ledger, [(client_id, request_row(client_id, detail, now_ms)) for client_id in some])  # step 1
        _send(producer, topics.events, [(client_id, value) for client_id in some])  # step 2
        count += len(some)
    return count


def _send(producer: Any, topic: str, records: list[tuple[str, bytes]]) -> None:
    for future in [producer.send(topic, key=client_id.encode(), value=value) for client_id, value in records]:
        future.get(timeout=_TIMEOUT_S)
