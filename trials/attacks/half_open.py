"""Opens sockets that send nothing. They are bare sockets: an attacker shares its victim's machine and must be cheap."""

import select
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from threading import Event
from typing import Final

_PAUSE_S: Final = 0.002
_SILENT_S: Final = 5.0
"""Seconds before a closed socket is opened again."""
_MOST_AT_ONCE: Final = 50


class _HalfOpen:
    """The sockets of one thread."""

    def __init__(self, address: tuple[str, int], size: int, done: Counter[str]) -> None:
        self._address = address
        self._done = done
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._next_s = deque([0.0] * size)
        """The times at which sockets are to be opened, the first one first."""

    def begin(self, now_s: float) -> None:
        """Opens the sockets that are due."""
        for _ in range(_MOST_AT_ONCE):
            if not self._next_s or self._next_s[0] > now_s:
                return
            self._next_s.popleft()
            opened = socket.socket()
            opened.setblocking(False)
            with suppress(BlockingIOError):
                opened.connect(self._address)
            self._sockets[opened.fileno()] = opened
            self._poll.register(opened.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def look(self, now_s: float) -> None:
        """Counts the sockets that were opened, and closes those that the victim has closed."""
        for number, event in self._poll.poll(0):
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._sockets.pop(number).close()
                self._next_s.append(now_s + _SILENT_S)
                self._done["closed"] += 1
            else:
                self._done["opened"] += 1

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.close()
        self._poll.close()


def hold_half_open(address: tuple[str, int], size: int, done: Counter[str], stop: Event) -> None:
    """Runs until `stop`. size: sockets at the same time, as many as the gateway accepts."""
    sockets = _HalfOpen(address, size, done)
    while not stop.wait(_PAUSE_S):
        now_s = time.monotonic()
        sockets.begin(now_s)
        sockets.look(now_s)
    sockets.close()
