"""The life of every send, by its rules. No thread, clock or Kafka: one caller, time as an argument.

1. An attempt starts when a message is handed in, or when the attempt before it has failed; it ends with Kafka's confirmation, a
   broker's error, a lost connection, or after `attempt_timeout_ms`. The next one follows at once, up to `max_attempts`.
2. Only a throttled client's attempt (530) is followed by a wait: `backoff_wait_ms`, counted from the start of that attempt.
3. A record is given to Kafka's client once. That client repeats it under the same producer id and sequence number, so the broker
   keeps one; further attempts of ours are further time for it, never a second record. It is handed over again only when it is
   certain that the first record is not in the log and never will be (`given_up` without doubt).
4. Messages of one client reach the log in the order in which they were submitted: while one waits, those behind it wait.
5. Every send ends: confirmed, refused for good, out of attempts, or out of time.

A generation is one producer of Kafka (inflight/producer/generation.py). One is current; those that failed are kept until all that
they have is decided. Attempts, order and verdicts have modules of their own beside this one.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from inflight.producer.message import MessageRecord
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Cause
from inflight.producer.send_loop.attempts import Attempts
from inflight.producer.send_loop.client_order import ClientOrder
from inflight.producer.send_loop.send import Generation, Send, SendRefused, Settle, State
from inflight.producer.send_loop.verdicts import Verdicts
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleTable
from state.model import ClientId

_RETIRE_AFTER_MS: Final = 1_000
"""A generation younger than this is not given up for one lost message: short deadlines must not wear out producer ids."""
_UNREACHABLE: Final = "no broker could be reached"


class SendLoop:
    """epoch_offset_ms: Unix time minus the clock that `now_ms` is read from. want_generation: called when a new one is needed."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        throttles: ThrottleTable,
        metrics: ProducerMetrics,
        want_generation: Callable[[], None],
        epoch_offset_ms: float,
    ) -> None:
        self._throttles = throttles
        self._want_generation = want_generation
        self._attempts = Attempts(settings, metrics, epoch_offset_ms)
        self._order = ClientOrder()
        self._verdicts = Verdicts(settings.topic, metrics)
        self._numbers = itertools.count()
        self._ready: set[Send] = set()
        self._generation: Generation | None = None
        self._generation_since_ms = 0.0
        self._handed_over: dict[Generation, set[Send]] = {}
        self._trouble = _UNREACHABLE
        self._advancing: set[ClientId] = set()
        self._closed = False

    def __len__(self) -> int:
        """Sends that have no outcome yet."""
        return len(self._verdicts)

    # --- what the outside says ------------------------------------------------------------------------------------------------

    def submit(self, message: MessageRecord, *, deadline_ms: float, settle: Settle, now_ms: float) -> None:
        """A new send. One with the id of a send that is under way shares its record and its outcome."""
        send = self._verdicts.submitted(message, deadline_ms, next(self._numbers), settle)
        if send is None:
            return
        self._attempts.submitted(send)
        if self._order.first(send.client_id) is not None and self._throttles.of(send.client_id) is None:
            self._order.join(send)  # 4
        else:
            self._begin(send, now_ms)

    def generation_opened(self, generation: Generation, now_ms: float) -> None:
        """Whatever waits for one may go."""
        if self._closed:
            generation.end()
            return
        self._generation = generation
        self._generation_since_ms = now_ms
        self._handed_over[generation] = set()
        self._trouble = _UNREACHABLE
        self._hand_over_ready(self._ready, now_ms)

    def kafka_unavailable(self, reason: str, *, permanent: bool, now_ms: float) -> None:
        """reason: shown by the attempts that fail meanwhile. permanent: no retry changes it (not authorised, no such topic)."""
        self._trouble = reason
        if permanent:
            for send in sorted(self._ready, key=_submission):
                self._refuse(send, reason, now_ms)

    def confirmed(self, send: Send, partition: int, offset: int, now_ms: float) -> None:
        """Kafka has the record. After the verdict it changes nothing."""
        if send.state is State.DONE:
            return
        self._attempts.end(send, now_ms, None, None)
        self._verdicts.confirm(send, partition, offset)
        self._decided(send, now_ms)

    def try_failed(self, send: Send, cause: Cause, error: str, *, began_ms: float, answered: bool, now_ms: float) -> None:
        """A produce request with this record failed, and Kafka's client is about to repeat it.

        answered: a broker said no, so this request has put nothing into the log. began_ms: when it was written.
        """
        if send.state is not State.HANDED_OVER:
            return
        send.in_doubt = send.in_doubt or not answered
        if began_ms >= send.started_ms:  # else it is of an attempt that had its time-out already
            self._attempt_failed(send, cause, error, now_ms)

    def given_up(self, send: Send, error: str, *, permanent: bool, now_ms: float) -> None:
        """Kafka's client has given the record up, and nothing of it is on the wire. permanent: a broker's refusal that stands."""
        if send.state is not State.HANDED_OVER:
            return
        generation = send.generation
        if permanent:
            self._refuse(send, error, now_ms)
        elif send.in_doubt:
            self._attempts.end(send, now_ms, Cause.NETWORK, error)
            self._fail(send, f"{error}, after the record was on its way", Cause.NETWORK, now_ms)
        else:
            self._take_back(send, now_ms)  # 3: certainly not in the log
            send.state = State.READY
            self._ready.add(send)
        if generation is not None and generation is self._generation:
            self._retire()

    def close(self, now_ms: float) -> None:
        """No time is left: whatever has no outcome gets one."""
        self._closed = True
        for send in self._verdicts.pending():
            self._attempts.end(send, now_ms, Cause.TIME_OUT, "the producer was closed")
            self._fail(send, "the producer was closed before it was confirmed", None, now_ms)
        for generation in list(self._handed_over):
            self._end(generation)
        self._generation = None

    # --- time -----------------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> float | None:
        """When `advance` has something to do; None = not by itself."""
        return self._attempts.next_due_ms()

    def advance(self, now_ms: float) -> None:
        """Everything whose time has come."""
        for send in self._attempts.due(now_ms):
            if now_ms >= send.deadline_ms:
                self._out_of_time(send, now_ms)
            elif send.state is State.BACKOFF:
                send.state = State.TURN
                self._next_in_order(send.client_id, now_ms)
            elif send.state is not State.TURN and self._attempts.is_over(send, now_ms):
                detail = f" ({self._trouble})" if send.state is State.READY else ""
                self._attempt_failed(send, Cause.TIME_OUT, f"not confirmed in time{detail}", now_ms)

    # --- from one state to the next -------------------------------------------------------------------------------------------

    def _begin(self, send: Send, now_ms: float) -> None:
        """The next attempt of a send that no generation has."""
        throttle = self._throttles.of(send.client_id)
        if throttle is None:
            self._order.leave(send)
            self._attempts.start(send, now_ms)
            self._hand_over(send, now_ms)
        elif self._attempts.throttled(send, throttle.reason, now_ms):  # 2
            self._order.join(send)
        else:
            self._fail(send, f"throttled in all {len(send.attempts)} attempts", Cause.THROTTLED, now_ms)

    def _attempt_failed(self, send: Send, cause: Cause, error: str, now_ms: float) -> None:
        if not self._attempts.failed(send, cause, error, now_ms):  # 1: at once; 3: with the same record
            self._fail(send, f"all {len(send.attempts)} attempts failed, the last one: {error}", cause, now_ms)

    def _hand_over(self, send: Send, now_ms: float) -> None:
        send.state = State.READY
        generation = self._generation
        try:
            if generation is None or self._order.has_older(send.client_id):
                self._ready.add(send)
            elif generation.hand_over(send):
                send.state = State.HANDED_OVER
                send.generation = generation
                self._handed_over[generation].add(send)
            else:
                self._ready.add(send)
                self._retire()
        except SendRefused as refusal:
            self._refuse(send, str(refusal), now_ms)

    def _hand_over_ready(self, sends: Iterable[Send], now_ms: float) -> None:
        """In order; what is held back for an older generation holds back only its own client."""
        for send in sorted(sends, key=_submission):
            if self._generation is None:
                return
            if send.state is not State.READY or self._order.has_older(send.client_id):
                continue
            self._ready.discard(send)
            if self._throttles.of(send.client_id) is not None:
                self._begin(send, now_ms)  # throttled meanwhile
            else:
                self._hand_over(send, now_ms)

    def _next_in_order(self, client_id: ClientId, now_ms: float) -> None:
        """The first that waits for its turn tries, and the next if that one went."""
        if client_id in self._advancing:
            return  # the loop below is already at it
        self._advancing.add(client_id)
        while (first := self._order.first(client_id)) is not None and first.state is State.TURN:
            self._begin(first, now_ms)
        self._advancing.discard(client_id)

    # --- generations ----------------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """The current generation gets nothing new; a client's later messages wait for what it still has of that client."""
        generation, self._generation = self._generation, None
        if generation is None:
            return
        self._want_generation()
        self._order.generation_retired(self._handed_over[generation])
        if not self._handed_over[generation]:
            self._end(generation)

    def _take_back(self, send: Send, now_ms: float) -> None:
        """The send leaves its generation."""
        generation, send.generation = send.generation, None
        if generation is None:
            return
        undecided = self._handed_over[generation]
        undecided.discard(send)
        if generation is self._generation:
            return
        if self._order.left_older(send.client_id):
            self._hand_over_ready([ready for ready in self._ready if ready.client_id == send.client_id], now_ms)
        if not undecided:
            self._end(generation)

    def _end(self, generation: Generation) -> None:
        del self._handed_over[generation]
        generation.end()

    # --- verdicts -------------------------------------------------------------------------------------------------------------

    def _out_of_time(self, send: Send, now_ms: float) -> None:
        self._attempts.end(send, now_ms, Cause.TIME_OUT, "the deadline of the send passed")
        blocked = "behind earlier messages of a throttled client, " if send.state is State.TURN else ""
        self._fail(send, f"its deadline passed ({blocked}{len(send.attempts)} attempts)", None, now_ms)

    def _refuse(self, send: Send, reason: str, now_ms: float) -> None:
        self._attempts.end(send, now_ms, Cause.REJECTED, reason)
        self._fail(send, reason, Cause.REJECTED, now_ms)

    def _fail(self, send: Send, reason: str, cause: Cause | None, now_ms: float) -> None:
        generation = send.generation
        self._verdicts.fail(send, reason, cause)
        self._decided(send, now_ms)
        old_enough = now_ms - self._generation_since_ms >= _RETIRE_AFTER_MS
        if generation is not None and generation is self._generation and cause is not Cause.REJECTED and old_enough:
            self._retire()  # what it still has must not be sent minutes later

    def _decided(self, send: Send, now_ms: float) -> None:
        self._attempts.decided()
        self._ready.discard(send)
        self._take_back(send, now_ms)
        self._order.leave(send)
        self._next_in_order(send.client_id, now_ms)


def _submission(send: Send) -> int:
    return send.number


Report: TypeAlias = Callable[[SendLoop, float], None]
"""Something that has happened: called with the loop and the time, on the loop's thread."""
