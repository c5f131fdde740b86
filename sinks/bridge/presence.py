"""Tracks which devices are online. Pure."""

from typing import Final

import msgspec

from sinks.bridge.settings import BridgeSettings, PresenceSource
from sinks.bridge.topics import is_addressable
from sinks.kafka.partitioning import partition_of
from state.errors import UNDECODABLE
from state.model import ClientId


class _ClientEvent(msgspec.Struct):
    clientid: str = ""
    client_id: str = ""


_events: Final = msgspec.json.Decoder(_ClientEvent)


def read_client_event(payload: bytes) -> ClientId | None:
    """Returns the client id in a broker's JSON event (EMQX: `clientid`); None = there is none."""
    try:
        event = _events.decode(payload)
    except UNDECODABLE:
        return None
    return event.clientid or event.client_id or None


class PresenceTracker:
    """Keeps all online devices, those of other bridges too, so that a bridge can take over any of them at once."""

    def __init__(self, settings: BridgeSettings, partitions: int) -> None:
        self._kind = settings.presence
        self._partitions = partitions
        self._online: dict[int, set[ClientId]] = {}
        if settings.presence is PresenceSource.ALWAYS:
            for client_id in settings.clients:
                if is_addressable(client_id):
                    self.came_online(client_id)

    @property
    def may_miss_devices(self) -> bool:
        """Returns True if a new bridge does not learn of online devices. Then commands of a session show that one was online."""
        return self._kind is not PresenceSource.TOPIC

    def partition(self, client_id: ClientId) -> int:
        """Returns the partition of `inflight.commands` whose owner holds the device."""
        return partition_of(client_id.encode(), self._partitions)

    def online(self, partition: int) -> list[ClientId]:
        return list(self._online.get(partition, ()))

    def is_online(self, client_id: ClientId) -> bool:
        return client_id in self._online.get(self.partition(client_id), ())

    def came_online(self, client_id: ClientId) -> None:
        self._online.setdefault(self.partition(client_id), set()).add(client_id)

    def went_offline(self, client_id: ClientId) -> None:
        self._online.get(self.partition(client_id), set()).discard(client_id)

    def connection_lost(self) -> None:
        """Forgets devices whose retained messages the next connection brings again. Events do not come again, so theirs stay."""
        if self._kind is PresenceSource.TOPIC:
            self._online.clear()
