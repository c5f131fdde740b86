"""The thread that runs the send loop: everything that happens to sends goes through one queue and is handled here, in order."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from inflight.producer.carrier import CarrierOpener
from inflight.producer.message import OutgoingMessage
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Cause
from inflight.producer.send import Carrier, Outcome, Send
from inflight.producer.send_loop import SendLoop
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleFollower, ThrottleTable

_BATCH: Final = 256
_IDLE_S: Final = 1.0

_log: Final = structlog.get_logger(__name__)


class Worker:
    """Owns the send loop, the carriers and the follower of the throttle topic. `submit` may be called by any thread."""

    def __init__(self, bootstrap_servers: str, settings: ProducerSettings, metrics: ProducerMetrics) -> None:
        self.throttles = ThrottleTable()
        self._inbox: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self._settings = settings
        self._follower = ThrottleFollower(
            self.throttles, bootstrap_servers=bootstrap_servers, topic=settings.throttle_topic, options=settings.kafka_options
        )
        self._opener = CarrierOpener(
            bootstrap_servers=bootstrap_servers, settings=settings, reports=self, before_first=self.learn_throttles
        )
        self._loop = SendLoop(
            settings,
            throttles=self.throttles,
            metrics=metrics,
            want_carrier=self._opener.want,
            epoch_offset_ms=time.time() * 1_000 - now_ms(),
        )
        self._stopping = False
        self._closed = False
        self._after_end = threading.RLock()
        self._stop_by_ms = 0.0
        self._thread = threading.Thread(target=self._run, name="inflight-producer", daemon=True)

    def start(self) -> None:
        self._follower.start()
        self._opener.start()
        self._thread.start()

    def submit(self, message: OutgoingMessage, deadline_ms: float, settle: Callable[[Outcome], None]) -> None:
        """settle: called once, on the worker's thread."""
        self._inbox.put((self._submit, (message, deadline_ms, settle)))
        if self._closed:
            self._settle_rest()  # the worker may have looked into its inbox for the last time

    def close(self, timeout_s: float) -> None:
        """Waits up to timeout_s for what is under way; what has no outcome by then gets SendFailed. Ends all threads."""
        self._inbox.put((self._stop, (now_ms() + timeout_s * 1_000,)))
        self._thread.join(timeout_s + 5.0)
        self._opener.close()
        self._follower.close()

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    # --- Reports: on any thread -----------------------------------------------------------------------------------------------

    def confirmed(self, send: Send, partition: int, offset: int) -> None:
        self._inbox.put((self._loop.confirmed, (send, partition, offset)))

    def try_failed(self, send: Send, cause: Cause, error: str, began_ms: float, answered: bool) -> None:
        self._inbox.put((self._try_failed, (send, cause, error, began_ms, answered)))

    def carrier_lost(self, send: Send, error: str, permanent: bool, unanswered: bool) -> None:
        self._inbox.put((self._carrier_lost, (send, error, permanent, unanswered)))

    def carrier_ended(self, carrier: Carrier) -> None:
        self._inbox.put((self._loop.carrier_ended, (carrier,)))

    def carrier_opened(self, carrier: Carrier) -> None:
        self._inbox.put((self._carrier_opened, (carrier,)))
        if self._closed:
            self._settle_rest()

    def carrier_unavailable(self, reason: str, permanent: bool) -> None:
        self._inbox.put((self._carrier_unavailable, (reason, permanent)))

    # --- on the worker's thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping or (len(self._loop) and now_ms() < self._stop_by_ms):
                self._turn()
        except Exception:
            _log.exception("producer_worker_failed", action="every send under way fails; make a new Producer")
            raise
        finally:
            self._closed = True
            self._settle_rest()

    def _settle_rest(self) -> None:
        """After the end: whatever comes late gets its outcome too."""
        with self._after_end:
            while True:
                try:
                    handle, arguments = self._inbox.get_nowait()
                except queue.Empty:
                    break
                handle(*arguments, now_ms())
            self._loop.close(now_ms())

    def _turn(self) -> None:
        now = now_ms()
        due = self._loop.next_due_ms()
        timeout_s = _IDLE_S if due is None else min(_IDLE_S, max(0.0, (due - now) / 1_000))
        if self._stopping:
            timeout_s = min(timeout_s, max(0.0, (self._stop_by_ms - now) / 1_000))
        try:
            handle, arguments = self._inbox.get(timeout=timeout_s)
            handle(*arguments, now_ms())
            for _ in range(_BATCH):
                handle, arguments = self._inbox.get_nowait()
                handle(*arguments, now_ms())
        except queue.Empty:
            pass
        self._loop.advance(now_ms())

    def _submit(self, message: OutgoingMessage, deadline_ms: float, settle: Callable[[Outcome], None], now: float) -> None:
        self._loop.submit(message, deadline_ms=deadline_ms, settle=settle, now_ms=now)

    def _try_failed(self, send: Send, cause: Cause, error: str, began_ms: float, answered: bool, now: float) -> None:
        self._loop.try_failed(send, cause, error, began_ms=began_ms, answered=answered, now_ms=now)

    def _carrier_lost(self, send: Send, error: str, permanent: bool, unanswered: bool, now: float) -> None:
        self._loop.carrier_lost(send, error, permanent=permanent, unanswered=unanswered, now_ms=now)

    def _carrier_opened(self, carrier: Carrier, now: float) -> None:
        if self._closed:
            carrier.release()
        else:
            self._loop.carrier_opened(carrier, now)

    def _carrier_unavailable(self, reason: str, permanent: bool, now: float) -> None:
        self._loop.carrier_unavailable(reason, permanent=permanent, now_ms=now)

    def _stop(self, stop_by_ms: float, _now: float) -> None:
        self._stopping = True
        self._stop_by_ms = stop_by_ms

    def learn_throttles(self) -> None:
        """Waits until the throttle topic has been read to its end, or `throttle_timeout_ms`. On any thread but the worker's."""
        if not self._follower.wait_known(self._settings.throttle_timeout_ms / 1_000):
            _log.warning("throttled_clients_unknown", action="sending without knowing; the topic is read as soon as it answers")


def now_ms() -> float:
    """The clock of everything here: monotonic, in milliseconds."""
    return time.monotonic() * 1_000
