"""Remembers of the messages that a router has read which one was the newest of each client.

An offer says that there is no message of its client between `previous` and it. That is known only of what was read without a gap
by this router, so what it knows ends with the assignment of the partition.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

_CLIENTS: Final = 65_536


class _Partition:
    """The memory of one partition.

    Attributes:
        clients: The offset of the newest message by client, the client that was silent for longest first.
        floor: Nothing is known of messages up to this offset.
        last: The highest offset that was read.
    """

    __slots__ = ("clients", "floor", "last")

    def __init__(self, next_offset: int) -> None:
        self.clients: OrderedDict[bytes, int] = OrderedDict()
        self.floor = self.last = next_offset - 1


class RouterMemory:
    """Remembers the offset of the newest message of each client.

    Args:
        clients: How many clients are remembered in each partition. Beyond, the client that was silent for longest is forgotten.
    """

    def __init__(self, clients: int = _CLIENTS) -> None:
        self._most = clients
        self._partitions: dict[int, _Partition] = {}

    def assigned(self, partition: int, next_offset: int) -> None:
        """Start with a partition: every message from here on will be seen, unless this is called again."""
        self._partitions[partition] = _Partition(next_offset)

    def revoked(self, partition: int) -> None:
        self._partitions.pop(partition, None)

    def read_to(self, partition: int) -> int | None:
        """Returns the highest offset of a partition that was read; None = it is not read. On any thread."""
        known = self._partitions.get(partition)
        return None if known is None else known.last

    def newest(self, partition: int, key: bytes) -> int | None:
        """Returns an offset up to which the client's newest message is that was read; None = the partition is not read. On any
        thread."""
        known = self._partitions.get(partition)
        return None if known is None else known.clients.get(key, known.floor)

    def previous(self, partition: int, key: bytes, offset: int) -> int:
        """Records that a message of this client was read at `offset`.

        Returns:
            An earlier offset; between it and `offset` the client has no other message.
        """
        known = self._partitions[partition]
        if offset <= known.last:  # the log was cut off, or somebody has set the offsets back
            known = self._partitions[partition] = _Partition(offset)
        known.last = offset
        clients = known.clients
        previous = clients.get(key, known.floor)
        clients[key] = offset  # never without the key: `newest` may be called meanwhile
        clients.move_to_end(key)
        if len(clients) > self._most:
            self._forget(known)
        return previous

    def previous_of_each(self, partition: int, keys: Iterable[bytes], offset: int) -> list[int]:
        """Does the same for a message with several recipients, and returns an earlier offset for each of them."""
        known = self._partitions[partition]
        if offset <= known.last:
            known = self._partitions[partition] = _Partition(offset)
        known.last = offset
        clients, floor, previous = known.clients, known.floor, []
        for key in keys:
            previous.append(clients.get(key, floor))
            clients[key] = offset
            clients.move_to_end(key)
        while len(clients) > self._most:
            self._forget(known)
        return previous

    def _forget(self, known: _Partition) -> None:
        """Forgets the client that was silent for longest."""
        _, forgotten = known.clients.popitem(last=False)
        known.floor = max(known.floor, forgotten)
