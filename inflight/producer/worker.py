"""The thread that runs the send loop: everything that happens to sends goes through one queue and is handled here, in order."""

import queue
import threading
import time
from typing import Final

import structlog

from inflight.producer.generation import GenerationOpener
from inflight.producer.message import MessageRecord
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.send_loop.loop import Report, SendLoop
from inflight.producer.send_loop.send import Settle
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleFollower, ThrottleTable

_BATCH: Final = 256
_IDLE_S: Final = 1.0

_log: Final = structlog.get_logger(__name__)


class Worker:
    """Owns the send loop, what opens its generations, and the follower of the throttle topic."""

    def __init__(self, bootstrap_servers: str, settings: ProducerSettings, metrics: ProducerMetrics) -> None:
        self.throttles = ThrottleTable()
        self._inbox: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._settings = settings
        self._follower = ThrottleFollower(
            self.throttles,
            bootstrap_servers=bootstrap_servers,
            topic=settings.throttle_topic,
            min_connect_timeout_ms=settings.min_connect_timeout_ms,
            options=settings.kafka_options,
        )
        self._opener = GenerationOpener(bootstrap_servers, settings, post=self.post, before_first=self.learn_throttles)
        self._loop = SendLoop(
            settings,
            throttles=self.throttles,
            metrics=metrics,
            want_generation=self._opener.want,
            epoch_offset_ms=time.time() * 1_000 - now_ms(),
        )
        self._stop_by_ms: float | None = None
        self._ended = False
        self._after_end = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="inflight-producer", daemon=True)

    def start(self) -> None:
        self._follower.start()
        self._opener.want()
        self._thread.start()

    def post(self, report: Report) -> None:
        """On any thread; it is called on the worker's."""
        self._inbox.put(report)
        if self._ended:
            self._settle_rest()  # the worker may have looked into its inbox for the last time

    def submit(self, message: MessageRecord, deadline_ms: float, settle: Settle) -> None:
        """settle: called once, on the worker's thread."""
        self.post(lambda loop, now: loop.submit(message, deadline_ms=deadline_ms, settle=settle, now_ms=now))

    def close(self, timeout_s: float) -> None:
        """Waits up to timeout_s for what is under way; what has no outcome by then gets SendFailed. Ends all threads."""
        stop_by_ms = now_ms() + timeout_s * 1_000

        def stop(_loop: SendLoop, _now_ms: float) -> None:
            self._stop_by_ms = stop_by_ms

        self.post(stop)
        self._thread.join(timeout_s + 5.0)
        self._opener.close()
        self._follower.close()

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def learn_throttles(self) -> None:
        """Waits until the throttle topic has been read to its end, or `throttle_timeout_ms`. On any thread but the worker's."""
        if not self._follower.wait_known(self._settings.throttle_timeout_ms / 1_000):
            _log.warning("throttled_clients_unknown", action="sending without knowing; the topic is read as soon as it answers")

    # --- on the worker's thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._stop_by_ms is None or (len(self._loop) and now_ms() < self._stop_by_ms):
                self._turn()
        except Exception:
            _log.exception("producer_worker_failed", action="every send under way fails; make a new Producer")
            raise
        finally:
            self._ended = True
            self._settle_rest()

    def _turn(self) -> None:
        due = [at_ms for at_ms in (self._loop.next_due_ms(), self._stop_by_ms) if at_ms is not None]
        timeout_s = min([_IDLE_S, *(max(0.0, (at_ms - now_ms()) / 1_000) for at_ms in due)])
        try:
            self._inbox.get(timeout=timeout_s)(self._loop, now_ms())
            for _ in range(_BATCH):
                self._inbox.get_nowait()(self._loop, now_ms())
        except queue.Empty:
            pass
        self._loop.advance(now_ms())

    def _settle_rest(self) -> None:
        """After the end: whatever comes late gets its outcome too."""
        with self._after_end:
            while not self._inbox.empty():
                self._inbox.get()(self._loop, now_ms())
            self._loop.close(now_ms())


def now_ms() -> float:
    """The clock of everything here: monotonic, in milliseconds."""
    return time.monotonic() * 1_000
