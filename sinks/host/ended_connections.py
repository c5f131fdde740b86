"""Commands for a connection that this process does not hold, and the connections that the engine knows to be over.

The engine believes in a connection that is gone, with this process's predecessor for instance, until somebody says
`ConnectionLost`. It is said once; when Kafka does not take it, it is said again with the next renewal of the lease, or when the
engine's next command for that connection comes. What this process never gets said ends with its lease.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from sinks.host.connection_ids import ConnectionKind, kind_of
from sinks.kafka.append import Confirmation
from state.commands import CloseConnection, GatewayCommand
from state.events import ConnectionLost
from state.model import ClientId
from state.records.events import encode_event

_REMEMBERED: Final = 65_536

AppendEvent: TypeAlias = Callable[[bytes, bytes, Confirmation], None]
"""Writes a record of the events topic: key, value, and who is told once whether Kafka has it."""


class EndedConnections:
    """Tells the engine once of each connection that is over. Remembers the newest 65,536 ends.

    Args:
        kind: The kind of connections that this process answers for. Another kind of process reads the same commands, and answers
            for the others.
        append: Writes a record of the events topic.
    """

    def __init__(self, kind: ConnectionKind, append: AppendEvent) -> None:
        self._kind = kind
        self._append = append
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._untold: OrderedDict[int, tuple[bytes, bytes]] = OrderedDict()

    def concerns(self, command: GatewayCommand) -> bool:
        """Returns True if the connection is of this process's kind."""
        return kind_of(command.connection_id) is self._kind

    def tell_lost_once(self, client_id: ClientId, command: GatewayCommand, reason: str) -> bool:
        """A command for a connection that is not held here. True: `ConnectionLost` is on its way; False: there is no need."""
        connection_id = command.connection_id
        if not self.concerns(command) or isinstance(command, CloseConnection) or connection_id in self._ended:
            return False
        self.tell_lost(client_id, connection_id, reason)
        return True

    def tell_lost(self, client_id: ClientId, connection_id: int, reason: str) -> None:
        """This connection is over, and the engine does not know yet."""
        self._tell(connection_id, client_id.encode(), encode_event(ConnectionLost(connection_id=connection_id, reason=reason)))

    def not_told(self, connection_id: int, key: bytes, value: bytes) -> None:
        """The record with the end of this connection did not get into the log."""
        self._ended.pop(connection_id, None)
        self._untold[connection_id] = key, value
        if len(self._untold) > _REMEMBERED:
            self._untold.popitem(last=False)

    def say_again(self) -> None:
        """Append once more what was not told."""
        untold, self._untold = self._untold, OrderedDict()
        for connection_id, (key, value) in untold.items():
            self._tell(connection_id, key, value)

    @property
    def all_told(self) -> bool:
        """No ending has failed to get into the log and waits to be said again."""
        return not self._untold

    def _tell(self, connection_id: int, key: bytes, value: bytes) -> None:
        self._untold.pop(connection_id, None)
        self.remember(connection_id)
        self._append(key, value, partial(self._told, connection_id, key, value))

    def remember(self, connection_id: int) -> None:
        """The engine knows that this connection is over."""
        self._ended[connection_id] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def _told(self, connection_id: int, key: bytes, value: bytes, error: Exception | None) -> None:
        if error is not None:
            self.not_told(connection_id, key, value)
