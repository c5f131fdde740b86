"""Threads that work beside the queries, in the engine's process."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import structlog
from kafka.errors import KafkaError

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 5.0


class BackgroundLoop:
    """A daemon thread that runs `_run` from `start` to the end of a `with`. `_run` must return soon after `_stopping` is set.

    Args:
        name: The name of the thread.
        cancel: Interrupts what the thread waits for. Called at the end of the `with`.
    """

    _join_s = 0.0
    """How long the end of the `with` waits for the thread, in seconds."""

    def __init__(self, name: str, cancel: Callable[[], None] = lambda: None) -> None:
        self._cancel = cancel
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(self._join_s)

    def _run(self) -> None:
        raise NotImplementedError


class KafkaPoller(BackgroundLoop):
    """Polls Kafka every five seconds, from the beginning of a `with` on. After an error it connects again."""

    _unknown = ""
    """The log event of a poll that failed."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_S):
            try:
                client = self._connect()
                try:
                    self._poll(client)
                    while not self._stopping.wait(_POLL_S):
                        self._poll(client)
                finally:
                    self._close(client)
            except KafkaError as error:
                _log.debug(self._unknown, error=repr(error))
            except Exception as error:  # noqa: BLE001 - the sessions continue without it
                _log.warning(self._unknown, error=repr(error), action="it is asked for again; please report this")

    def _connect(self) -> Any:
        raise NotImplementedError

    def _poll(self, client: Any) -> None:
        raise NotImplementedError

    def _close(self, client: Any) -> None:
        client.close()
