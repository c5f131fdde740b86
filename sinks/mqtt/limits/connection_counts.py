"""Counts sockets: in total, by host, and those that have not sent CONNECT."""

from collections import Counter, OrderedDict
from collections.abc import Callable

from sinks.log_throttle import RefusalLog
from sinks.mqtt.limits.hosts import Hosts
from sinks.mqtt.settings import DeviceLimits, Limit


def _nothing() -> None:
    pass


class ConnectionSlot:
    """One counted socket, from its acceptance to `ConnectionCounts.release`.

    close: Closes the socket; its owner sets it at once. It is called at most once, and only before CONNECT was read.
    """

    __slots__ = ("address", "close", "host")

    def __init__(self) -> None:
        self.address = ""
        self.host: str | None = None
        self.close: Callable[[], object] = _nothing


class ConnectionCounts:
    """Counts the sockets of one gateway, over all of its listeners."""

    def __init__(self, limits: DeviceLimits, hosts: Hosts, refusals: RefusalLog) -> None:
        self._limits = limits
        self._hosts = hosts
        self._refusals = refusals
        self._slots: set[ConnectionSlot] = set()
        self._of_host: Counter[str] = Counter()
        self._awaiting: OrderedDict[ConnectionSlot, None] = OrderedDict()

    def reconfigure(self, limits: DeviceLimits, hosts: Hosts) -> None:
        """Applies other limits. Open sockets stay."""
        self._limits = limits
        self._hosts = hosts

    def acquire(self, address: str) -> ConnectionSlot | None:
        """Counts an accepted socket.

        Args:
            address: Empty = `identify` gives it later.

        Returns:
            The slot of the socket; None = close the socket.
        """
        if len(self._slots) >= self._limits.max_connections:
            self._refusals.refused(Limit.CONNECTIONS, address)
            return None
        slot = ConnectionSlot()
        if not self.identify(slot, address):
            return None
        if len(self._awaiting) >= self._limits.max_awaiting_connect:
            oldest, _ = self._awaiting.popitem(last=False)
            self._refusals.refused(Limit.AWAITING_CONNECT, oldest.address)
            oldest.close()
        self._slots.add(slot)
        self._awaiting[slot] = None
        return slot

    def identify(self, slot: ConnectionSlot, address: str) -> bool:
        """Counts the socket for its host. False: close the socket; it is not counted for the host."""
        host = self._hosts.limited(address)
        slot.address = address
        if host is None:
            return True
        if self._of_host[host] >= self._limits.max_connections_per_address:
            self._refusals.refused(Limit.CONNECTIONS_PER_ADDRESS, address)
            return False
        slot.host = host
        self._of_host[host] += 1
        return True

    def connect_read(self, slot: ConnectionSlot) -> None:
        """Stops counting the socket as one that has not sent CONNECT."""
        self._awaiting.pop(slot, None)

    def release(self, slot: ConnectionSlot) -> None:
        """Stops counting a closed socket. A second call does nothing."""
        if slot not in self._slots:
            return
        self._slots.discard(slot)
        self._awaiting.pop(slot, None)
        slot.close = _nothing  # breaks the reference cycle with the socket
        if slot.host is not None:
            self._of_host[slot.host] -= 1
            if not self._of_host[slot.host]:
                del self._of_host[slot.host]
