"""A token bucket: limits how often something may happen."""


class TokenBucket:
    """Starts full. Times are milliseconds of one monotonic clock.

    Args:
        per_s: Tokens added in a second, 0 = no limit.
        burst: Capacity; None = per_s.
        share: Part of per_s and burst that holds during a call; above 0.
    """

    __slots__ = ("_at_ms", "_burst", "_per_s", "_tokens")

    def __init__(self, per_s: int, now_ms: int, *, burst: int | None = None) -> None:
        self._per_s = per_s
        self._burst = float(per_s if burst is None else burst)
        self._tokens = self._burst
        self._at_ms = now_ms

    def admit(self, now_ms: int, share: float = 1.0) -> bool:
        """Takes one token. False: there is none."""
        if not self._per_s:
            return True
        self._fill(now_ms, share)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def consume(self, tokens: int) -> None:
        """Takes tokens, and may overdraw the bucket; the debt delays `ready_ms`."""
        self._tokens -= tokens

    def ready_ms(self, now_ms: int, share: float = 1.0) -> int:
        """Returns when there is a token; not before now."""
        if not self._per_s:
            return now_ms
        self._fill(now_ms, share)
        missing = 1 - self._tokens
        return now_ms if missing <= 0 else now_ms + int(missing * 1_000 / (self._per_s * share)) + 1

    def _fill(self, now_ms: int, share: float = 1.0) -> None:
        most = max(1.0, self._burst * share)
        self._tokens = min(most, self._tokens + (now_ms - self._at_ms) * self._per_s * share / 1_000)
        self._at_ms = now_ms
