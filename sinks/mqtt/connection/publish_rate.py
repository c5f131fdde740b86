"""How fast a device may publish on one connection: a bucket that holds what one second allows."""


class PublishRate:
    """per_s: 0 = no limit. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_at_ms", "_per_s", "_tokens")

    def __init__(self, per_s: int, now_ms: int) -> None:
        self._per_s = per_s
        self._tokens = float(per_s)
        self._at_ms = now_ms

    def admit(self, now_ms: int) -> bool:
        """One more publication; False: it is one too many, and does not count."""
        if not self._per_s:
            return True
        self._tokens = min(float(self._per_s), self._tokens + (now_ms - self._at_ms) * self._per_s / 1_000)
        self._at_ms = now_ms
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
