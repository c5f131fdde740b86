"""Who is throttled at the moment: the table that the engine keeps in `inflight.throttle`, and a thread that follows it."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from inflight.producer.connect_timeouts import connect_timeouts
from state.model import ClientId
from state.records.throttle import EVERYBODY, Throttle, decode_throttle

_PAUSE_S: Final = 1.0
_MISSING_TOPIC_PAUSE_S: Final = 15.0
_POLL_TIMEOUT_MS: Final = 500
_READ_TO_END_S: Final = 30.0

_log: Final = structlog.get_logger(__name__)


class ThrottleTable:
    """client id → Throttle. Written by one thread, read by another: every change is one assignment of a dict entry."""

    def __init__(self) -> None:
        self._entries: dict[str, Throttle] = {}

    def of(self, client_id: ClientId) -> Throttle | None:
        """Why this client may not be sent to now; None = it may."""
        if not self._entries:
            return None
        return self._entries.get(EVERYBODY) or self._entries.get(client_id)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """The next record."""
        name = (key or b"").decode(errors="replace")
        if not value:
            self._entries.pop(name, None)
            return
        self._entries[name] = decode_throttle(value)

    def replace(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """The whole topic again, from its beginning."""
        fresh = ThrottleTable()
        for key, value in records:
            fresh.apply(key, value)
        self._entries = fresh._entries


class ThrottleFollower:
    """Keeps a ThrottleTable equal to the topic, in a thread of its own. A topic that does not exist throttles nobody."""

    def __init__(
        self,
        table: ThrottleTable,
        *,
        bootstrap_servers: str,
        topic: str,
        min_connect_timeout_ms: int,
        options: Mapping[str, Any],
    ) -> None:
        self._table = table
        self._topic = topic
        self._config: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "fetch_max_wait_ms": _POLL_TIMEOUT_MS,
            **connect_timeouts(min_connect_timeout_ms),
            "reconnect_backoff_max_ms": 1_000,
            "metrics_enabled": False,
            **options,
        }
        self._known = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-throttle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_known(self, timeout_s: float) -> bool:
        """Whether the topic has been read to its end since the start."""
        return self._known.wait(timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = _PAUSE_S
            try:
                pause_s = self._follow()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, sending goes on with what is known, and a new consumer tries again.
                _log.warning("throttle_consumer_failed", error=repr(error))
            self._stopping.wait(pause_s)

    def _follow(self) -> float:
        """Reads until something fails or we stop. Returns how long to pause before the next try, in seconds."""
        consumer = KafkaConsumer(**self._config)
        try:
            numbers = consumer.partitions_for_topic(self._topic)
            if not numbers:
                self._table.replace(())
                self._known.set()
                return _MISSING_TOPIC_PAUSE_S
            partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            deadline = time.monotonic() + _READ_TO_END_S
            found: list[tuple[bytes | None, bytes | None]] | None = []  # None: the end has been reached
            while not self._stopping.is_set():
                if found is not None and all(consumer.position(partition) >= ends[partition] for partition in partitions):
                    self._table.replace(found)
                    self._known.set()
                    found = None
                if found is not None and time.monotonic() > deadline:
                    raise KafkaError(f"{self._topic} was not read to its end within {_READ_TO_END_S:g} s")
                for records in consumer.poll(timeout_ms=_POLL_TIMEOUT_MS).values():
                    for record in records:
                        if found is None:
                            self._table.apply(record.key, record.value)
                        else:
                            found.append((record.key, record.value))
            return 0.0
        finally:
            consumer.close(autocommit=False, timeout_ms=1_000)
