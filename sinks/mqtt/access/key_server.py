"""Keeps the keys of a server: they are asked for again after a while, and when a token names one that is unknown."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import structlog

from sinks.mqtt.access.token_keys import KeyServerError, TokenKey, fetch_token_keys
from sinks.mqtt.settings import LoginSettings

_log: Final = structlog.get_logger(__name__)
_RETRY_MS: Final = 10_000
"""After an error."""
_UNKNOWN_MS: Final = 2_000
"""For unknown keys: tokens of strangers must not make the gateway ask more often."""
_PATIENCE_MS: Final = 5_000
"""How long a login waits for newer keys. A device waits for CONNACK meanwhile."""
_MOST_WAITING: Final = 1_000

Done: TypeAlias = Callable[[bool], None]


class _Waiting(NamedTuple):
    """A login that waits for newer keys.

    Attributes:
        request: The request to the server that it waits for, counted from 1.
    """

    since_ms: int
    request: int
    done: Done


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
        self._waiting: list[_Waiting] = []
        self._requests = 0
        self.keys: tuple[TokenKey, ...] = ()
        self.poll()

    def poll(self) -> None:
        """Asks the server if that is due. Call it about every second."""
        now_ms = self._now_ms()
        if self._asking is None and now_ms >= self._due_ms:
            self._requests += 1
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        self._finish(lambda waiting: now_ms - waiting.since_ms > _PATIENCE_MS, is_answered=False)

    def await_newer(self, done: Done) -> bool:
        """Calls `done` when the server has been asked from now on: with True for an answer, with False if none came in time.

        Returns:
            False if that cannot be in time. Then `done` is not called.
        """
        now_ms = self._now_ms()
        may_ask_ms = now_ms if self._asking is not None else self._retry_ms
        if len(self._waiting) >= _MOST_WAITING or may_ask_ms > now_ms + _PATIENCE_MS:
            return False
        self._waiting.append(_Waiting(now_ms, self._requests + 1, done))
        self._due_ms = min(self._due_ms, self._retry_ms)
        self.poll()
        return True

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        self._finish(lambda waiting: True, is_answered=False)

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
            is_answered = False
        else:
            is_answered = True
            wait_ms = settings.token_jwks_refresh_ms
            if keys != self.keys:
                _log.info("token_keys_read", url=settings.token_jwks_url, keys=len(keys))
            self.keys = keys
        self._asking = None
        self._due_ms = self._now_ms() + wait_ms
        self._retry_ms = self._now_ms() + min(wait_ms, _UNKNOWN_MS if is_answered else _RETRY_MS)
        self._finish(lambda waiting: not is_answered or waiting.request <= self._requests, is_answered=is_answered)
        if self._waiting:
            self._due_ms = self._retry_ms

    def _finish(self, is_over: Callable[[_Waiting], bool], *, is_answered: bool) -> None:
        """Calls what waits no longer."""
        over = [waiting for waiting in self._waiting if is_over(waiting)]
        self._waiting = [waiting for waiting in self._waiting if not is_over(waiting)]
        for waiting in over:
            waiting.done(is_answered)
