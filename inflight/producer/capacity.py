"""Limits how much is under way at once."""

import threading


class Capacity:
    """A limit on messages and bytes. A message that does not fit waits, for a limited time; a later one may pass it."""

    def __init__(self, *, messages: int, size_bytes: int) -> None:
        self._messages = messages
        self._bytes = size_bytes
        self._condition = threading.Condition()

    def reserve(self, size_bytes: int, timeout_s: float) -> bool:
        """Reserves room for one message of this size; `release` ends it. False: there was none within timeout_s."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._messages > 0 and self._bytes >= size_bytes, timeout_s):
                return False
            self._messages -= 1
            self._bytes -= size_bytes
            return True

    def has_room(self, size_bytes: int) -> bool:
        """Returns True if `reserve` would not wait now."""
        with self._condition:
            return self._messages > 0 and self._bytes >= size_bytes

    def release(self, size_bytes: int) -> None:
        with self._condition:
            self._messages += 1
            self._bytes += size_bytes
            self._condition.notify_all()
