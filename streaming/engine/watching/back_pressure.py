"""The engine asks all backends to wait when it cannot keep up, or when its storage runs out: key `*` of `inflight.throttle`.

Looked at after every micro-batch, in the engine's process and not in the query: records in Kafka that the sessions have not
seen, the size of the session state, and the free disk under a local checkpoint. Each has a high and a low watermark, so that a
value that hovers around one of them makes no stream of records; backends may go on when all values are below their low watermark.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from sinks.kafka.producers import abandon
from state.records.throttle import EVERYBODY, decode_throttle, encode_throttle
from streaming.config.sections import ThrottleSettings
from streaming.config.settings import Settings
from streaming.config.units import format_size
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.full_disk import free_disk_of

_log: Final = structlog.get_logger(__name__)
_AGAIN_MS: Final = 5_000
_READ_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What the engine looks like after a micro-batch. free_disk_bytes: None = unknown."""

    consumer_lag: int
    state_bytes: int
    free_disk_bytes: int | None


class EngineWatermarks:
    """Which values are too high. One that has reached its high watermark counts until it is back at the low one."""

    def __init__(self, settings: ThrottleSettings) -> None:
        self._settings = settings
        self._exceeded: set[str] = set()

    def judge(self, load: EngineLoad) -> str:
        """Why backends have to wait, for people; empty = they need not."""
        watermarks = self._settings
        free = load.free_disk_bytes
        self._follow("lag", load.consumer_lag, high=watermarks.lag_high, low=watermarks.lag_low)
        self._follow("state", load.state_bytes, high=watermarks.state_high, low=watermarks.state_low)
        if free is not None:
            # Too little is what is wrong here, so the sign is turned.
            self._follow("disk", -free, high=-watermarks.free_disk_low, low=-watermarks.free_disk_high)
        texts = {
            "lag": f"the engine is {load.consumer_lag} records behind",
            "state": f"the session state has {format_size(load.state_bytes)}",
            "disk": f"{format_size(free or 0)} are left on the disk of the checkpoint",
        }
        return "; ".join(text for name, text in texts.items() if name in self._exceeded)

    def _follow(self, name: str, value: int, *, high: int, low: int) -> None:
        if high == 0 or value <= low:
            self._exceeded.discard(name)
        elif value >= high:
            self._exceeded.add(name)


class ThrottleTopic(Protocol):
    """Where the verdict goes."""

    def write(self, value: bytes | None) -> None:
        """The value of key `*`; None = a tombstone. Raises KafkaError when Kafka has not confirmed it."""

    def forget_clients(self, before_ms: int) -> None:
        """Tombstones for all clients that have been throttled since before that time. Raises KafkaError."""

    def close(self) -> None: ...


class BackPressure:
    """Writes the verdict when it changes, and after `start`: nobody knows what an engine before this one has left there.

    An engine on a new checkpoint knows nothing of the clients that an older one has throttled, and would never free them: so it
    does that first.

    A verdict that Kafka does not take is written again some seconds later; the engine does not stop for it.
    """

    def __init__(
        self,
        settings: ThrottleSettings,
        topic: ThrottleTopic,
        *,
        free_disk_bytes: Callable[[], int | None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._watermarks = EngineWatermarks(settings)
        self._topic = topic
        self._free_disk_bytes = free_disk_bytes
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._new_checkpoint: bool | None = None
        self._started = False
        self._written: bool | None = None
        self._not_before_ms = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As configured."""
        return cls(settings.throttle, KafkaThrottleTopic(settings), free_disk_bytes=free_disk_of(settings.checkpoint_location))

    def start(self) -> None:
        """From now on `observe` writes; not before the engine is ready, because the first write has to connect."""
        self._started = True

    def observe(self, batch: BatchProgress) -> None:
        """Call after every micro-batch."""
        if self._new_checkpoint is None:
            self._new_checkpoint = batch.batch_id == 0
        free = self._free_disk_bytes()
        reason = self._watermarks.judge(
            EngineLoad(consumer_lag=batch.consumer_lag, state_bytes=batch.state_bytes, free_disk_bytes=free)
        )
        now_ms = self._now_ms()
        if not self._started or bool(reason) is self._written or now_ms < self._not_before_ms:
            return
        try:
            if self._new_checkpoint:
                self._topic.forget_clients(self._began_ms)
                self._new_checkpoint = False
            self._topic.write(encode_throttle(reason, now_ms) if reason else None)
        except KafkaError as error:
            self._not_before_ms = now_ms + _AGAIN_MS
            _log.warning("throttle_not_written", error=repr(error), action="it is written again in a few seconds")
            return
        if reason:
            _log.warning("backends_throttled", reason=reason)
        elif self._written:
            _log.info("backends_released")
        self._written = bool(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._topic.close()


class KafkaThrottleTopic:
    """ThrottleTopic on Kafka; connects at the first write."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topics.throttle
        self._login = {"client_id": "inflight-throttle", "bootstrap_timeout_ms": 5_000, **settings.kafka.client_options()}
        self._options: dict[str, Any] = {
            "acks": "all",
            "max_block_ms": 2_000,
            "request_timeout_ms": 5_000,
            "delivery_timeout_ms": 6_000,
            **self._login,
        }
        self._producer: KafkaProducer | None = None

    def write(self, value: bytes | None) -> None:
        self._send(EVERYBODY.encode(), value)

    def _send(self, key: bytes, value: bytes | None) -> None:
        if self._producer is None:
            self._producer = KafkaProducer(**self._options)
        try:
            self._producer.send(self._topic, key=key, value=value).get(timeout=6)
        except KafkaError:
            self.close()  # kafka-python's idempotent producer is of no use after a failure (docs/producer.md)
            raise

    def forget_clients(self, before_ms: int) -> None:
        consumer = KafkaConsumer(**self._login, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest")
        try:
            throttled = _present(consumer, self._topic)
        finally:
            consumer.close(autocommit=False)
        for key, value in throttled.items():
            if key != EVERYBODY.encode() and decode_throttle(value).since_ms < before_ms:
                self._send(key, None)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            abandon(producer)


def _present(consumer: Any, topic: str) -> dict[bytes, bytes]:
    """What a compacted topic says at this moment: the last value of each key, without tombstones."""
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    found: dict[bytes, bytes] = {}
    deadline = time.monotonic() + _READ_S
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        if time.monotonic() > deadline:
            raise KafkaError(f"{topic} was not read to its end within {_READ_S:.0f} s")
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = record.value
    return found
