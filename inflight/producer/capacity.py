"""Limits how much is under way at once."""

import threading
import time


class Capacity:
    """A limit on messages and bytes. A message that does not fit waits, for a limited time; a later one may pass it."""

    def __init__(self, *, messages: int, size_bytes: int) -> None:
        self._messages = messages
        self._bytes = size_bytes
        self._condition = threading.Condition()
        self._waiting = 0

    def reserve(self, size_bytes: int, timeout_s: float) -> bool:
        """Reserves room for one message of this size; `release` ends it. False: there was none within timeout_s."""
        deadline = None
        with self._condition:
            while self._messages < 1 or self._bytes < size_bytes:
                now = time.monotonic()
                deadline = deadline or now + timeout_s
                if now >= deadline:
                    return False
                self._waiting += 1
                self._condition.wait(deadline - now)
                self._waiting -= 1
            self._messages -= 1
            self._bytes -= size_bytes
            return True

    def release(self, size_bytes: int) -> None:
        with self._condition:
            self._messages += 1
            self._bytes += size_bytes
            if self._waiting:
                self._condition.notify_all()
