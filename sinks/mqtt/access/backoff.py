"""Delays further password checks for addresses from which logins failed."""

from collections import OrderedDict
from typing import Final, NamedTuple

from sinks.mqtt.limits.hosts import host_of
from sinks.mqtt.settings import LoginSettings

_MAX_ADDRESSES: Final = 10_000
_MAX_DOUBLINGS: Final = 32


class _Failures(NamedTuple):
    failed: int
    blocked_until_ms: int


class FailedLogins:
    """Failures by host, of which 10,000 are kept: those that failed last. Times are milliseconds of a monotonic clock."""

    def __init__(self, settings: LoginSettings) -> None:
        self._settings = settings
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def reconfigure(self, settings: LoginSettings) -> None:
        self._settings = settings

    def is_blocked(self, address: str, now_ms: int) -> bool:
        failures = self._failures.get(host_of(address))
        return failures is not None and now_ms < failures.blocked_until_ms

    def record_failure(self, address: str, now_ms: int) -> None:
        """Counts a failure. After `max_failure_wait_ms` without one the count starts again."""
        settings, host = self._settings, host_of(address)
        if not settings.max_failures:
            return
        before = self._failures.pop(host, _Failures(0, now_ms))
        count = 1 if now_ms > before.blocked_until_ms + settings.max_failure_wait_ms else before.failed + 1
        over = count - settings.max_failures
        wait_ms = 0 if over < 0 else min(settings.failure_wait_ms << min(over, _MAX_DOUBLINGS), settings.max_failure_wait_ms)
        self._failures[host] = _Failures(count, now_ms + wait_ms)
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def record_success(self, address: str) -> None:
        self._failures.pop(host_of(address), None)
