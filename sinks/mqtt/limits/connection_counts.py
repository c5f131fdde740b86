"""How many sockets there are: in total, of one host, and of those that have not sent CONNECT."""

from collections import Counter, OrderedDict
from collections.abc import Callable

from sinks.mqtt.limits.hosts import Hosts
from sinks.mqtt.limits.refusals import Limit, LimitRefusals
from sinks.mqtt.limits.settings import DeviceLimits


def _nothing() -> None:
    pass


class Place:
    """What one socket counts as, from when it was accepted until `ConnectionCounts.leave`.

    turn_away: to be set at once by who has the socket: it closes it. Called at most once, before CONNECT was read.
    """

    __slots__ = ("address", "host", "turn_away")

    def __init__(self) -> None:
        self.address = ""
        self.host: str | None = None
        self.turn_away: Callable[[], object] = _nothing


class ConnectionCounts:
    """Of one gateway, over all of its listeners."""

    def __init__(self, limits: DeviceLimits, hosts: Hosts, refusals: LimitRefusals) -> None:
        self._limits = limits
        self._hosts = hosts
        self._refusals = refusals
        self._places: set[Place] = set()
        self._of_host: Counter[str] = Counter()
        self._awaiting: OrderedDict[Place, None] = OrderedDict()

    def take(self, limits: DeviceLimits, hosts: Hosts) -> None:
        """From now on; who is there stays."""
        self._limits = limits
        self._hosts = hosts

    def enter(self, address: str) -> Place | None:
        """A socket was accepted. None: close it. address: empty = not known yet."""
        if len(self._places) >= self._limits.max_connections:
            self._refusals.reached(Limit.CONNECTIONS, address)
            return None
        place = Place()
        if not self.identify(place, address):
            return None
        if len(self._awaiting) >= self._limits.max_awaiting_connect:
            longest, _ = self._awaiting.popitem(last=False)
            self._refusals.reached(Limit.AWAITING_CONNECT, longest.address)
            longest.turn_away()
        self._places.add(place)
        self._awaiting[place] = None
        return place

    def identify(self, place: Place, address: str) -> bool:
        """Now it is known whose socket it is. False: close it; it is not counted for the address."""
        host = self._hosts.limited(address)
        place.address = address
        if host is None:
            return True
        if self._of_host[host] >= self._limits.max_connections_per_address:
            self._refusals.reached(Limit.CONNECTIONS_PER_ADDRESS, address)
            return False
        place.host = host
        self._of_host[host] += 1
        return True

    def connect_read(self, place: Place) -> None:
        """It has sent its CONNECT."""
        self._awaiting.pop(place, None)

    def leave(self, place: Place) -> None:
        """It is closed."""
        if place not in self._places:
            return
        self._places.discard(place)
        self._awaiting.pop(place, None)
        place.turn_away = _nothing  # it holds the socket, which holds the place
        if place.host is not None:
            self._of_host[place.host] -= 1
            if not self._of_host[place.host]:
                del self._of_host[place.host]
