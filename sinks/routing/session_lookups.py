"""Waits until the tables of a process have all that was in the log when a CONNECT was read.

A gateway writes the list of a session before it sends CONNACK. So whoever has CONNACK of an earlier connection is in the tables
then, whichever gateway sent it. One thread asks Kafka where `inflight.subscriptions` ends, for all CONNECTs that have come
meanwhile, and waits for the table reader. In trouble it answers no: those CONNECTs wait for their sessions.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import Consumer

from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, client_config, new_client
from sinks.routing.log_ends import END, log_offsets
from sinks.routing.settings import RoutingSettings
from sinks.routing.table_reader import TableReader

_log: Final = structlog.get_logger(__name__)
_PATIENCE_S: Final = 5.0
"""A CONNECT that waits longer for the tables waits for its session instead. What takes Kafka so long delays its record, too."""
_PAUSE_S: Final = 1.0
_LOOK_S: Final = 0.05

Answer = Callable[[bool], None]
"""Is called with True if the tables are as far as the log was when `ask` was called. On the loop on which `start` was called."""


class SessionLookups:
    """Runs a thread from `start` to `close`."""

    def __init__(self, settings: RoutingSettings, host: HostSettings, reader: TableReader) -> None:
        self._topic = settings.subscriptions_topic
        self._config = partial(client_config, host.bootstrap_servers, host.kafka_options)
        self._group_id = settings.group_id
        self._reader = reader
        self._lock = threading.Condition()
        self._waiting: list[Answer] = []
        self._is_stopping = False
        self._broken_until_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="inflight-session-lookups", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._is_stopping = True
            self._lock.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def ask(self, answer: Answer) -> None:
        """Calls `answer` soon. Any thread may ask."""
        with self._lock:
            self._waiting.append(answer)
            self._lock.notify()

    def _run(self) -> None:
        client: Any = None
        asked: list[Answer] = []
        while not self._is_stopping:
            is_current = False
            if time.monotonic() >= self._broken_until_s:
                try:
                    if client is None:
                        client = new_client(Consumer, {**self._config(ClientErrors()), "group.id": self._group_id})
                    is_current = self._catch_up(client)  # the first time for nobody: the client has to find its brokers
                except Exception as error:  # noqa: BLE001 - a CONNECT that is not looked up waits for its session
                    _log.warning("sessions_not_looked_up", error=str(error) or repr(error))
                    self._broken_until_s = time.monotonic() + _PAUSE_S
            self._tell(asked, is_current)
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._is_stopping)
                asked, self._waiting = self._waiting, []
        self._tell(asked, False)
        if client is not None:
            client.close()

    def _tell(self, asked: Sequence[Answer], is_current: bool) -> None:
        """Answers all who have asked. A thousand CONNECTs at once wake the loop once."""
        if asked and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_answer, asked, is_current)

    def _catch_up(self, client: Any) -> bool:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not (partitions := [each for each in self._reader.partitions if each[0] == self._topic]):
            if time.monotonic() > deadline_s or self._is_stopping:
                return False
            time.sleep(_LOOK_S)
        return self._reader.wait_for(log_offsets(client, partitions, END), deadline_s)


def _answer(asked: Sequence[Answer], is_current: bool) -> None:
    for answer in asked:
        answer(is_current)
