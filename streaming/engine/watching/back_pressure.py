"""Asks all backends to wait when the engine cannot keep up or runs out of storage: key `*` of `inflight.throttle`.

Checked after every micro-batch, in the driver and not in the query: records in Kafka that the sessions have not seen, the size of
the session state, the free disk under a local checkpoint, and the large queues of clients that keep up. Each value has a high and
a low watermark, so that a value near one of them does not make a stream of records. Backends may continue when all values are
below their low watermark.

If those queues are the only reason, the record says `is_progressing`: these clients catch up, so publishers and matchers wait.
For any other reason backends are refused (530).
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

import structlog
from kafka.errors import KafkaError

from state.records.throttle import EVERYBODY, decode_throttle, encode_throttle
from state.setting import MIB
from streaming.config.settings import Settings
from streaming.config.units import format_size
from streaming.engine.kafka_access import TopicLog
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.full_disk import free_disk_of
from streaming.settings import ThrottleSettings

_log: Final = structlog.get_logger(__name__)
_AGAIN_MS: Final = 5_000
_BLOCK_MS: Final = 2_000
_DELIVERY_MS: Final = 6_000


class Verdict(NamedTuple):
    """Says what backends have to do.

    Attributes:
        reason: Why they have to wait, for people; empty if they need not.
        is_progressing: Only clients that catch up are the reason.
    """

    reason: str = ""
    is_progressing: bool = False


class EngineWatermarks:
    """Decides which values are too high: from the high watermark on until they are back at the low one."""

    def __init__(self, settings: ThrottleSettings) -> None:
        self._settings = settings
        self._exceeded: set[str] = set()

    def judge(self, batch: BatchProgress, free_disk_bytes: int | None) -> Verdict:
        """Says whether backends have to wait.

        Args:
            free_disk_bytes: None = unknown.
        """
        watermarks = self._settings
        self._follow("lag", batch.consumer_lag, high=watermarks.lag_high, low=watermarks.lag_low)
        self._follow("state", batch.state_bytes, high=watermarks.state_high, low=watermarks.state_low)
        if free_disk_bytes is not None:
            # Too little free disk is the fault, so the sign is inverted.
            self._follow("disk", -free_disk_bytes, high=-watermarks.free_disk_low, low=-watermarks.free_disk_high)
        self._follow("backlog", batch.backlog_bytes, high=watermarks.backlog_high, low=watermarks.backlog_low)
        texts = {
            "lag": f"the engine is {batch.consumer_lag} records behind",
            "state": f"the session state has {format_size(batch.state_bytes)}",
            "disk": f"{format_size(free_disk_bytes or 0)} are left on the disk of the checkpoint",
            "backlog": f"{batch.backlog_bytes // MIB} MiB wait for clients that are connected and behind",
        }
        reason = "; ".join(text for name, text in texts.items() if name in self._exceeded)
        return Verdict(reason, is_progressing=self._exceeded == {"backlog"})

    def _follow(self, name: str, value: int, *, high: int, low: int) -> None:
        if high == 0 or value <= low:
            self._exceeded.discard(name)
        elif value >= high:
            self._exceeded.add(name)


class BackPressure:
    """Writes the verdict after `start`, and whenever backends have to do something else.

    The first write replaces what an earlier engine may have left. While backends have to wait, `since_ms` stays the same.

    An engine on a new checkpoint does not know the clients that an older one has throttled, and would never release them. So it
    first forgets them.

    A verdict that Kafka does not confirm is written again some seconds later; the engine does not stop for it.
    """

    def __init__(
        self,
        settings: ThrottleSettings,
        topic: "ThrottleTopic",
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
        self._written: tuple[bool, bool] | None = None
        """The verdict in the topic: backends wait, and only clients that catch up are the reason. None = there is none."""
        self._since_ms: int | None = None
        """When backends began to have to wait; None = they need not."""
        self._not_before_ms = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.throttle, ThrottleTopic(settings), free_disk_bytes=free_disk_of(settings.checkpoint_location))

    def start(self) -> None:
        """Lets `observe` write. Call it when the engine is ready: the first write has to connect."""
        self._started = True

    def observe(self, batch: BatchProgress) -> None:
        """Call it after every micro-batch."""
        if self._new_checkpoint is None:
            self._new_checkpoint = batch.batch_id == 0
        reason, is_progressing = self._watermarks.judge(batch, self._free_disk_bytes())
        now_ms, verdict = self._now_ms(), (bool(reason), is_progressing)
        if not self._started or verdict == self._written or now_ms < self._not_before_ms:
            return
        since_ms = now_ms if self._since_ms is None else self._since_ms
        try:
            if self._new_checkpoint:
                self._topic.forget_clients(self._began_ms)
                self._new_checkpoint = False
            self._topic.write(encode_throttle(reason, since_ms, is_progressing=is_progressing) if reason else None)
        except KafkaError as error:
            self._not_before_ms = now_ms + _AGAIN_MS
            _log.warning("throttle_not_written", error=repr(error), action="it is written again in a few seconds")
            return
        if reason:
            _log.warning("backends_throttled", reason=reason, is_progressing=is_progressing)
        elif self._since_ms is not None:
            _log.info("backends_released")
        self._written, self._since_ms = verdict, since_ms if reason else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._topic.close()


class ThrottleTopic:
    """`inflight.throttle`; connects at the first write. Writing raises KafkaError if Kafka does not confirm."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topics.throttle
        self._log = TopicLog(
            settings, self._topic, client_id="inflight-throttle", max_block_ms=_BLOCK_MS, delivery_timeout_ms=_DELIVERY_MS
        )

    def write(self, value: bytes | None) -> None:
        """Writes the value of key `*`; None = a tombstone."""
        self._log.write(self._topic, [(EVERYBODY.encode(), value)])

    def forget_clients(self, before_ms: int) -> None:
        """Writes tombstones for all clients that have been throttled since before that time."""
        throttled = dict(self._log.read())
        self._log.close()
        self._log.write(
            self._topic,
            (
                (key, None)
                for key, value in throttled.items()
                if value is not None and key != EVERYBODY.encode() and decode_throttle(value).since_ms < before_ms
            ),
        )

    def close(self) -> None:
        self._log.close()
