"""Reads `inflight.leases` for the engine, and writes the ends of connections to `inflight.events`."""

from collections.abc import Iterable
from typing import Final

from state.errors import NewerRecord, UnreadableRecord
from state.events import ConnectionLost
from state.records.events import encode_event
from state.records.leases import Lease, decode_lease
from streaming.config.settings import Settings
from streaming.engine.kafka_access import TopicLog
from streaming.engine.leases.connections import OpenConnection

_BLOCK_MS: Final = 5_000
_DELIVERY_MS: Final = 10_000


class LeaseTopic:
    """Connects at first use. Each method raises KafkaError when Kafka does not do it, and may be called again then."""

    def __init__(self, settings: Settings) -> None:
        self._leases = settings.topics.leases
        self._events = settings.topics.events
        self._log = TopicLog(
            settings, self._leases, client_id="inflight-leases", max_block_ms=_BLOCK_MS, delivery_timeout_ms=_DELIVERY_MS
        )

    def read(self) -> list[tuple[str, Lease | None]]:
        """Returns what is new up to the present end of the topic; after a failure everything once more.

        Raises NewerRecord for a lease of a newer version: with it, connections without a lease cannot be found.
        """
        records = self._log.read()
        try:
            return [(key.decode(errors="replace"), lease_of(value)) for key, value in records]
        except NewerRecord:
            self._log.close()
            raise

    @property
    def skew_s(self) -> float | None:
        """As in TopicLog."""
        return self._log.skew_s

    def tell_lost(self, connections: Iterable[OpenConnection], reason: str) -> None:
        """Appends ConnectionLost for the session of each connection; returns when Kafka has confirmed all."""
        self._log.write(
            self._events,
            (
                (client_id.encode(), encode_event(ConnectionLost(connection_id=connection_id, reason=reason)))
                for client_id, connection_id, _ in connections
            ),
        )

    def forget(self, lease_ids: Iterable[str]) -> None:
        """Writes tombstones."""
        self._log.write(self._leases, ((lease_id.encode(), None) for lease_id in lease_ids))

    def close(self) -> None:
        self._log.close()


def lease_of(value: bytes | None) -> Lease | None:
    """Returns None for a tombstone and for bytes that are no lease. Raises NewerRecord for a newer version's lease."""
    try:
        return None if value is None else decode_lease(value)
    except NewerRecord:
        raise
    except UnreadableRecord:
        return None
