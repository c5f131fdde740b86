"""Drives the send loop: every report is handled under one lock, on the thread that makes it.

A timer does the rest, and a thread that opens a generation whenever one is wanted.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from inflight.producer.generation import KafkaGeneration, Report, TopicUnknown, connection_config
from inflight.producer.message import MessageRecord
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.send_loop import Outcome, SendLoop, Settle
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleOfPublications
from sinks.kafka.throttles import ThrottleFollower, ThrottleTable
from sinks.library_log import LibraryLogger
from state.model import ClientId

_IDLE_MS: Final = 1_000.0
_RETRY_OPEN_S: Final = 0.2

_log: Final = LibraryLogger(__name__)


class Worker:
    """Has the send loop, its generations, the timer, and the follower of the throttle topic.

    A sender's thread hands its record to librdkafka, and a thread of librdkafka's client settles it: no other thread is between.

    Args:
        beside: A worker whose records are for clients. The records of this one are then publications: they heed the throttle of
            all clients, and partitions that wait. `beside` follows the throttles for both.
    """

    def __init__(
        self, bootstrap_servers: str, settings: ProducerSettings, metrics: ProducerMetrics, beside: "Worker | None" = None
    ) -> None:
        self.throttles: ThrottleTable = ThrottleTable() if beside is None else beside.throttles
        self._beside = beside
        self._publications: Worker | None = None
        """The worker beside this one."""
        self._servers = bootstrap_servers
        self._settings = settings
        self._newest: KafkaGeneration | None = None
        self._follower = ThrottleFollower(
            self.throttles,
            bootstrap_servers=bootstrap_servers,
            topic=settings.throttle_topic,
            config=connection_config(settings),
            options=settings.kafka_options,
            on_change=self._throttles_changed,
        )
        publications = ThrottleOfPublications(self.throttles, settings.topic, lambda: self.known_partitions)
        self._loop = SendLoop(
            settings,
            throttles=self.throttles if beside is None else publications,
            metrics=metrics,
            want_generation=self._want_generation,
            epoch_offset_ms=time.time() * 1_000 - now_ms(),
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wakes_at_ms = 0.0
        self._settling = 0
        self._here = threading.local()
        self._stopping = False
        self._opens_no_more = threading.Event()
        self._is_answered = threading.Event()
        """A generation has opened, or can never open."""
        self._timer = threading.Thread(target=self._run_timer, name="inflight-producer", daemon=True)

    def start(self) -> None:
        if self._beside is None:
            self._follower.start()
        else:
            self._beside._publications = self
        self._want_generation()
        self._timer.start()

    def post(self, report: Report) -> None:
        """Handles a report, and settles what has ended with it. On any thread."""
        with self._lock:
            report(self._loop, now_ms())
            outcomes, self._loop.outcomes = self._loop.outcomes, []
            self._settling += len(outcomes)
            due_ms = self._loop.next_due_ms()
            if due_ms is not None and due_ms < self._wakes_at_ms:
                self._changed.notify_all()
        if outcomes:
            self._settle(outcomes)

    def submit(self, message: MessageRecord, deadline_ms: float, settle: Settle, *, is_patient: bool) -> None:
        """Hands a message for one client to the send loop.

        Args:
            deadline_ms: Time at which the send fails, on the clock `now_ms`.
            settle: Called once with the outcome, on any thread.
            is_patient: The caller has named no time (rule 8 of the send loop).
        """
        self.post(
            lambda loop, now: loop.submit(message, deadline_ms=deadline_ms, settle=settle, now_ms=now, is_patient=is_patient)
        )

    def submit_many(
        self, message: MessageRecord, deadline_ms: float, settle: Mapping[ClientId, Settle], *, is_patient: bool
    ) -> None:
        """Hands a message for several recipients to the send loop.

        Args:
            deadline_ms: Time at which the sends fail, on the clock `now_ms`.
            settle: What to call by recipient. Each is called once with the outcome, on any thread.
            is_patient: The caller has named no time (rule 8 of the send loop).
        """
        self.post(
            lambda loop, now: loop.submit_many(message, deadline_ms=deadline_ms, settle=settle, now_ms=now, is_patient=is_patient)
        )

    @property
    def is_anybody_behind(self) -> bool:
        """True while sends wait for a client that is connected and behind. Any thread may ask."""
        return self._loop.is_anybody_behind

    def partitions(self, timeout_s: float) -> int | None:
        """Returns the number of the topic's partitions; None if Kafka does not say it in time."""
        self._is_answered.wait(timeout_s)
        return self.known_partitions

    @property
    def known_partitions(self) -> int | None:
        """Returns the number of the topic's partitions; None = it is not known yet."""
        newest = self._newest
        return None if newest is None else newest.partitions

    def close(self, timeout_s: float) -> None:
        """Waits up to timeout_s for what is under way; what has no outcome by then gets SendFailed. Ends all threads."""
        own = self._settling_here()
        self._await(lambda: not len(self._loop) and self._settling <= own, timeout_s)
        self._opens_no_more.set()
        self.post(lambda loop, now: loop.close(now))
        self._await(lambda: self._settling <= own, 1.0)
        if self._beside is None:
            self._follower.close()

    @property
    def is_settling_here(self) -> bool:
        """True in a callback of a future: it must not wait for other sends, because nothing is settled meanwhile."""
        return self._settling_here() > 0

    def learn_throttles(self) -> None:
        """Waits until the throttle topic has been read to its end, or `throttle_timeout_ms`."""
        if self._beside is not None:
            self._beside.learn_throttles()
        elif not self._follower.wait_known(self._settings.throttle_timeout_ms / 1_000):
            _log.warning("throttled_clients_unknown", action="sending without knowing; the topic is read as soon as it answers")

    def _throttles_changed(self) -> None:
        for worker in (self, self._publications):
            if worker is not None and worker.is_anybody_behind:
                worker.post(lambda loop, now: loop.throttles_changed(now))

    def _want_generation(self) -> None:
        """Must not be called again before one has opened."""
        threading.Thread(target=self._open_generation, name="inflight-producer-open", daemon=True).start()

    def _open_generation(self) -> None:
        """Tries until it succeeds. A generation that opens after the end is reported too, and the loop ends it."""
        newest, generation = self._newest, None
        if newest is not None and (refusal := newest.not_authorised) is not None:
            self._not_opened(refusal.str(), permanent=True)
        while not self._opens_no_more.is_set():
            try:
                generation = generation or KafkaGeneration(self._servers, self._settings, self.post)
                generation.connect()
            except Exception as error:  # noqa: BLE001 - whatever it is: sends that wait get the reason, and the next try may succeed
                never_connects = generation is None or generation.is_login_refused
                self._not_opened(str(error), permanent=never_connects or isinstance(error, TopicUnknown))
            else:
                break
        if generation is None:
            return
        if newest is None:
            self.learn_throttles()
        self._newest = opened = generation
        self.post(lambda loop, now: loop.generation_opened(opened, now))
        self._is_answered.set()

    def _not_opened(self, reason: str, *, permanent: bool) -> None:
        if permanent:
            self._is_answered.set()
        self.post(lambda loop, now: loop.kafka_unavailable(f"{self._servers}: {reason}", permanent=permanent, now_ms=now))
        self._opens_no_more.wait(_RETRY_OPEN_S)

    def _settle(self, outcomes: list[tuple[Settle, Outcome]]) -> None:
        before = self._settling_here()
        self._here.settling = before + len(outcomes)
        try:
            for settle, outcome in outcomes:
                settle(outcome)
        finally:
            self._here.settling = before
            with self._lock:
                self._settling -= len(outcomes)
                if self._stopping:
                    self._changed.notify_all()

    def _settling_here(self) -> int:
        return getattr(self._here, "settling", 0)

    def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
            self._changed.wait_for(condition, timeout_s)

    def _run_timer(self) -> None:
        while not self._stopping or len(self._loop):
            with self._lock:
                now, due_ms = now_ms(), self._loop.next_due_ms()
                self._wakes_at_ms = now + _IDLE_MS if due_ms is None else min(due_ms, now + _IDLE_MS)
                if self._wakes_at_ms > now:
                    self._changed.wait((self._wakes_at_ms - now) / 1_000)
            self.post(lambda loop, now: loop.advance(now))


def now_ms() -> float:
    """The clock of everything here: monotonic, in milliseconds."""
    return time.monotonic() * 1_000
