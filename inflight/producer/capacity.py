"""How much may be under way at once."""

import threading
import time


class Capacity:
    """A counting limit on messages and bytes; whoever does not fit waits. Not fair, and never waits without an end."""

    def __init__(self, *, messages: int, size_bytes: int) -> None:
        self._messages = messages
        self._bytes = size_bytes
        self._condition = threading.Condition()
        self._waiting = 0

    def take(self, size_bytes: int, timeout_s: float) -> bool:
        """Room for one message of this size; False: there was none within timeout_s. Return it with `give_back`."""
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

    def give_back(self, size_bytes: int) -> None:
        with self._condition:
            self._messages += 1
            self._bytes += size_bytes
            if self._waiting:
                self._condition.notify_all()
