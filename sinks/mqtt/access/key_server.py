"""Keeps the keys of a server: they are asked for again after a while, and when a token names one that is unknown."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from sinks.mqtt.access.settings import LoginSettings
from sinks.mqtt.access.token_keys import KeyServerError, TokenKey, fetch_token_keys

_log: Final = structlog.get_logger(__name__)
_RETRY_MS: Final = 10_000
"""After an error, and for unknown keys: tokens of strangers must not make the gateway ask more often."""


class KeyServer:
    """The keys of `token_jwks_url`, on the event loop. No answer leaves the old keys in force.

    Args:
        now_ms: Returns milliseconds of a monotonic clock.

    Attributes:
        keys: Empty until the first answer.
    """

    def __init__(self, settings: LoginSettings, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._due_ms = self._retry_ms = now_ms()
        self._asking: asyncio.Task[None] | None = None
        self.keys: tuple[TokenKey, ...] = ()
        self.poll()

    def poll(self) -> None:
        """Asks the server if that is due. Call it about every second."""
        if self._asking is None and self._now_ms() >= self._due_ms:
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    def report_unknown(self) -> None:
        """Tells that a token names a key that is not among `keys`: the server may have a new one."""
        self._due_ms = min(self._due_ms, self._retry_ms)
        self.poll()

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        settings = self._settings
        try:
            keys = await asyncio.to_thread(fetch_token_keys, settings.token_jwks_url, settings.token_jwks_cafile)
        except KeyServerError as error:
            wait_ms = _RETRY_MS
            _log.error(
                "token_keys_not_read",
                url=settings.token_jwks_url,
                problem=str(error),
                action="the keys before stay in force" if self.keys else "tokens are refused until the server answers",
            )
        else:
            wait_ms = settings.token_jwks_refresh_ms
            if keys != self.keys:
                _log.info("token_keys_read", url=settings.token_jwks_url, keys=len(keys))
            self.keys = keys
        self._due_ms = self._now_ms() + wait_ms
        self._retry_ms = self._now_ms() + min(wait_ms, _RETRY_MS)
        self._asking = None
