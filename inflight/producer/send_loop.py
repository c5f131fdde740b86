"""The life of every send, by its rules. No thread, clock or Kafka: one caller at a time, and time is an argument.

1. An attempt starts when a message is handed in, or when the attempt before it has failed. It ends with Kafka's confirmation, a
   broker's error, a lost connection, or after `attempt_timeout_ms`. The next one follows at once, up to `max_attempts`.
2. Only a throttled client's attempt (530) is followed by a wait: `backoff_wait_ms`, counted from the start of that attempt. For
   a client that is connected and behind (`is_progressing`) no attempt runs: rules 7 and 8.
3. A record is given to Kafka's client once. The client repeats it under the same producer id and sequence number, so the broker
   keeps one copy. Further attempts give it further time and never make a second record. A record is given to another generation
   only if it is certain that the first one was never written.
4. Messages of one client reach the log in the order in which they were submitted: while one waits, those behind it wait.
5. Every send ends: confirmed, refused for good, out of attempts, or out of time.
6. A record with several recipients is given to a generation at once, without those that would have to wait. Each of those gets
   a record of its own, and so does every recipient if the record turns out to be not written. So only records for one client
   wait, and steps 2 to 4 hold for each client.
7. What waits for a client that is connected and behind goes when the throttle ends, in portions: the next throttle has a second
   to come before the next portion. Only time ends such a wait, with 530.
8. A send with a time of its own ends by that. For any other, `deadline_ms` begins anew after such a wait, which lasts at most
   `catch_up_timeout_ms` without a portion for its client.

`order_key` is what step 4 calls a client: the client id, or the key of a publication, of whom nobody is throttled alone.

A generation is one idempotent client of Kafka (inflight/producer/generation.py). One is current. One that a send was given up in
is retired: it gets nothing new, and it ends when all that it has is decided, so that nothing of it is written minutes later.
"""

import heapq
import itertools
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

from inflight.producer.message import MessageRecord
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Attempt, Cause, SendFailed, SendResult, too_many_requests
from inflight.producer.settings import ProducerSettings
from sinks.kafka.partition_queue import PartitionQueue
from state.model import ClientId, MessageId
from state.outbound.retry import backoff_wait_ms
from state.records.throttle import Throttle

_RETIRE_AFTER_MS: Final = 1_000
"""A younger generation is not retired for one lost message: short deadlines must not use up producer ids."""
_TIMERS_KEPT: Final = 4_096
_UNREACHABLE: Final = "no broker could be reached"
_PORTION_BYTES: Final = 4_194_304
_PORTION_PAUSE_MS: Final = 1_000
"""The queue of a client that was behind has room for several such portions, from several producers."""

Outcome: TypeAlias = SendResult | SendFailed
Settle: TypeAlias = Callable[[Outcome], None]


class SendState(Enum):
    BACKOFF = auto()
    """The client is throttled and the wait runs."""
    BEHIND = auto()
    """The client is connected and behind. No attempt runs."""
    TURN = auto()
    """An earlier send of the same client waits. No attempt runs."""
    READY = auto()
    """No generation can have it yet. An attempt runs."""
    HANDED_OVER = auto()
    """A generation has it."""
    DONE = auto()


class Generation(Protocol):
    """One idempotent client of Kafka, with one producer id."""

    def hand_over(self, send: "Send") -> bool:
        """Gives it the record; what becomes of it is reported to the loop. False: it cannot have any record any more.

        Raises SendRefused when this record can never be sent.
        """

    def withdraw(self, send: "Send") -> bool:
        """Takes one record back. False: it may have been written."""

    def retire(self) -> list["Send"]:
        """Takes back and returns all records that were never written."""

    def end(self) -> None:
        """Ends the generation: nothing that it holds may be written from now on."""


class SendRefused(Exception):
    """The record can never be sent; the text says why."""


@dataclass(slots=True, eq=False)
class Send:
    """One record on its way.

    Attributes:
        deadline_ms: Time at which it fails, unless rule 8 gives it more.
        is_patient: It has no time of its own (rule 8).
        waits_since_ms: Time since which it waits for a client that is connected and behind, or behind earlier sends.
        number: The order of submission.
        settle: By order key; each is called once, with the outcome.
        queue: The queue of its partition, set by the generation.
        record: Which one of the partition's records this is, and of which client, set by the generation; None = no client has it
            yet.
    """

    message: MessageRecord
    deadline_ms: float
    number: int
    settle: dict[str, list[Settle]]
    is_patient: bool = False
    waits_since_ms: float = 0.0
    state: SendState = SendState.READY
    attempts: list[Attempt] = field(default_factory=list)
    started_ms: float = 0.0
    throttled: int = 0
    generation: Generation | None = None
    queue: "PartitionQueue[Send] | None" = None
    record: tuple[bool, int] | None = None

    @property
    def order_key(self) -> str:
        """Returns the key by which records without a list of recipients keep their order."""
        return self.message.order_key

    @property
    def size_bytes(self) -> int:
        return self.message.size_bytes

    @property
    def is_written(self) -> bool:
        """True when Kafka's client has the record, or has had it."""
        return self.record is not None


@dataclass(slots=True)
class CatchUp:
    """A client that is connected and behind, or was so a moment ago, and for whom sends wait.

    Attributes:
        since_ms: Time of the last portion; at first, time at which the first send began to wait.
        resumes_ms: Time of the next portion, if the throttle has ended by then.
    """

    since_ms: float
    resumes_ms: float = 0.0


class Throttles(Protocol):
    """Knows who is throttled."""

    def of(self, client_id: ClientId) -> Throttle | None:
        """Says why this client may not be sent to now; None = it may."""


class SendLoop:
    """Decides what becomes of each send, by the rules at the beginning of this file.

    Args:
        want_generation: Called when a new generation is needed.
        epoch_offset_ms: Unix time in ms minus the clock that `now_ms` is read from.

    Attributes:
        outcomes: Outcomes that the caller settles after each call, without holding a lock.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        throttles: Throttles,
        metrics: ProducerMetrics,
        want_generation: Callable[[], None],
        epoch_offset_ms: float,
    ) -> None:
        self.outcomes: list[tuple[Settle, Outcome]] = []
        self._settings = settings
        self._throttles = throttles
        self._metrics = metrics
        self._want_generation = want_generation
        self._epoch_offset_ms = epoch_offset_ms
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, int, Send]] = []
        """When to look at a send, and how many attempts it had when that was decided: with another number the timer is void."""
        self._pending: dict[tuple[str, str], Send] = {}
        self._waiting: dict[str, deque[Send]] = {}
        """All sends that no generation has, in the order of submission."""
        self._catching_up: dict[str, CatchUp] = {}
        """By order key, if the first send of its queue is BEHIND."""
        self._in_retired: dict[str, int] = {}
        """How many undecided sends an order key has in retired generations: what follows waits for them."""
        self._generation: Generation | None = None
        self._generation_since_ms = 0.0
        self._undecided: dict[Generation, set[Send]] = {}
        self._trouble = _UNREACHABLE
        self._changed: OrderedDict[str, None] = OrderedDict()
        """Order keys to look at, in the order of their changes."""
        self._closed = False

    def __len__(self) -> int:
        """Sends that have no outcome yet."""
        return len(self._pending)

    @property
    def is_anybody_behind(self) -> bool:
        """True while a send waits for a client that is connected and behind."""
        return bool(self._catching_up)

    # --- what the outside reports ---------------------------------------------------------------------------------------------

    def submit(
        self, message: MessageRecord, *, deadline_ms: float, settle: Settle, now_ms: float, is_patient: bool = False
    ) -> None:
        """Begins a send. One with the id of a send that is under way shares its record and its outcome.

        Args:
            is_patient: The send has no time of its own (rule 8).
        """
        order_key = message.order_key
        identity = (order_key, message.message_id)
        if (under_way := self._pending.get(identity)) is not None:
            under_way.settle[order_key].append(settle)
            return
        send = self._pending[identity] = Send(message, deadline_ms, next(self._numbers), {order_key: [settle]}, is_patient)
        self._wake_at(deadline_ms, send)
        waiting = self._waiting.get(order_key)
        throttle = self._throttle_of(message)
        if throttle is not None and not throttle.is_progressing:
            self._wait(send, SendState.TURN)
            self._throttle(send, throttle.reason, now_ms)
        elif throttle is not None or (waiting and waiting[-1].state not in (SendState.READY, SendState.HANDED_OVER)):
            self._wait(send, SendState.TURN)  # step 4
            self._begin_turn(send, now_ms)
            if throttle is not None:
                self._changed[order_key] = None
        else:
            self._start(send, now_ms)
            if waiting or self._is_blocked(order_key):
                self._wait(send, SendState.READY)
            else:
                self._hand_over(send, now_ms)
        self._advance_changed(now_ms)
        if self._closed:
            self.close(now_ms)

    def submit_many(
        self,
        message: MessageRecord,
        *,
        deadline_ms: float,
        settle: Mapping[ClientId, Settle],
        now_ms: float,
        is_patient: bool = False,
    ) -> None:
        """Begins the sends of a record with recipients (step 6).

        Args:
            settle: For each of the recipients.
            is_patient: The sends have no time of their own (rule 8).
        """
        at_once: list[ClientId] = []
        later: list[ClientId] = []
        for each in message.recipients:
            (at_once if self._may_go_at_once(each, message.message_id) else later).append(each)
        if at_once:
            message = message._replace(recipients=tuple(at_once))
            send = Send(message, deadline_ms, next(self._numbers), {each: [settle[each]] for each in at_once}, is_patient)
            self._pending.update(dict.fromkeys([(each, message.message_id) for each in at_once], send))
            self._wake_at(deadline_ms, send)
            self._start(send, now_ms)
            self._hand_over(send, now_ms)
            self._advance_changed(now_ms)
        for each in later:
            one = message.for_one(each)
            self.submit(one, deadline_ms=deadline_ms, settle=settle[each], now_ms=now_ms, is_patient=is_patient)

    def throttles_changed(self, now_ms: float) -> None:
        """Lets go who may go now of those that wait for a client that is connected and behind."""
        self._changed.update(dict.fromkeys(self._catching_up))
        self._advance_changed(now_ms)

    def generation_opened(self, generation: Generation, now_ms: float) -> None:
        """Lets everything go that has waited for a generation."""
        if self._closed:
            generation.end()
            return
        self._generation = generation
        self._generation_since_ms = now_ms
        self._undecided[generation] = set()
        self._trouble = _UNREACHABLE
        self._changed.update(dict.fromkeys(self._waiting))
        self._advance_changed(now_ms)

    def kafka_unavailable(self, reason: str, *, permanent: bool, now_ms: float) -> None:
        """Notes that no generation can be opened now. Refuses the sends that wait if that is permanent.

        Args:
            reason: The text that the attempts show that fail meanwhile.
            permanent: True if no retry changes it, as when the producer is not authorised or the topic does not exist.
        """
        self._trouble = reason
        if permanent:
            waiting = [send for sends in self._waiting.values() for send in sends if send.state is SendState.READY]
            for send in sorted(waiting, key=_number):
                self._refuse(send, reason, now_ms)
            self._advance_changed(now_ms)

    def confirmed(self, send: Send, partition: int, offset: int, now_ms: float) -> None:
        """Kafka has the record. After the verdict this changes nothing."""
        if send.state is not SendState.DONE:
            self._end_attempt(send, None, None, now_ms)
            self._metrics.sends.inc(len(send.settle))
            result = SendResult(send.message.message_id, self._settings.topic, partition, offset, tuple(send.attempts))
            self._settle(send, dict.fromkeys(send.settle, result))
            self._advance_changed(now_ms)

    def request_failed(self, send: Send, cause: Cause, error: str, now_ms: float) -> None:
        """A request with this record failed, and Kafka's client is about to repeat it."""
        if send.state is SendState.HANDED_OVER:
            self._attempt_failed(send, cause, error, now_ms)
            self._advance_changed(now_ms)

    def given_up(self, send: Send, error: str, *, is_refused: bool, is_written: bool, now_ms: float) -> None:
        """Handles a record that the generation has given up.

        Args:
            is_refused: True if a broker has refused the record, which stands.
            is_written: True if the record may be in the log, or may get there.
        """
        if send.state is not SendState.HANDED_OVER:
            return
        generation = send.generation
        if is_refused:
            self._refuse(send, error, now_ms)
        elif is_written:
            self._end_attempt(send, Cause.NETWORK, error, now_ms)
            self._fail(send, f"{error}, after the record was on its way", Cause.NETWORK, now_ms)
        else:
            self._return(send)  # step 3
        if not is_refused and generation is self._generation:
            self._retire()
        self._advance_changed(now_ms)

    def close(self, now_ms: float) -> None:
        """No time is left: gives everything an outcome that has none."""
        self._closed = True
        for send in list(dict.fromkeys(self._pending.values())):
            self._end_attempt(send, Cause.TIME_OUT, "the producer was closed", now_ms)
            self._fail(send, "the producer was closed before it was confirmed", None, now_ms)
        for generation in list(self._undecided):
            self._end(generation)
        self._generation = None

    # --- time -----------------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> float | None:
        """Returns the time at which `advance` must be called; None = no timer runs."""
        while self._timers and self._timers[0][3].state is SendState.DONE:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, now_ms: float) -> None:
        """Handles sends whose deadline, attempt or wait is over."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, _, attempts, send = heapq.heappop(self._timers)
            if send.state is SendState.DONE or (now_ms < send.deadline_ms and attempts != len(send.attempts)):
                continue
            limit_ms = self._limit_ms(send)
            if now_ms >= limit_ms:
                self._out_of_time(send, now_ms)
            elif send.state is SendState.BACKOFF:
                send.state = SendState.TURN
                self._changed[send.order_key] = None
            elif send.state in (SendState.BEHIND, SendState.TURN):
                if limit_ms != send.deadline_ms:
                    self._wake_at(limit_ms, send)
                if send.state is SendState.BEHIND:
                    self._changed[send.order_key] = None
            elif now_ms >= send.started_ms + self._settings.attempt_timeout_ms:
                detail = f" ({self._trouble})" if send.state is SendState.READY else ""
                self._attempt_failed(send, Cause.TIME_OUT, f"not confirmed in time{detail}", now_ms)
            self._advance_changed(now_ms)

    def _limit_ms(self, send: Send) -> float:
        """Returns when the send has no more time."""
        catch_up = self._catching_up.get(send.order_key) if send.state in (SendState.BEHIND, SendState.TURN) else None
        if catch_up is None or not send.is_patient:
            return send.deadline_ms
        return max(send.waits_since_ms, catch_up.since_ms) + self._settings.catch_up_timeout_ms  # step 8

    def _out_of_time(self, send: Send, now_ms: float) -> None:
        detail = f" ({self._trouble})" if send.state is SendState.READY else ""
        self._end_attempt(send, Cause.TIME_OUT, f"not confirmed before the deadline of the send{detail}", now_ms)
        if send.state in (SendState.BEHIND, SendState.TURN) and send.order_key in self._catching_up:
            throttle = self._throttle_of(send.message)
            queue = f" ({throttle.reason})" if throttle is not None and throttle.reason else ""
            waited_s = (now_ms - send.waits_since_ms) / 1_000
            who = "a subscriber" if send.message.is_publication else "the client"
            reason = f"{who} is connected and behind{queue}, and its turn did not come in {waited_s:.1f} s"
            self._fail(send, too_many_requests(reason), Cause.THROTTLED, now_ms)  # step 7
            return
        behind = "behind earlier messages of a throttled client, " if send.state is SendState.TURN else ""
        self._fail(send, f"its deadline passed ({behind}{len(send.attempts)} attempts)", None, now_ms)

    def _wake_at(self, at_ms: float, send: Send) -> None:
        heapq.heappush(self._timers, (at_ms, next(self._numbers), len(send.attempts), send))
        if len(self._timers) > 4 * len(self._pending) + _TIMERS_KEPT:
            # Nearly all sends are confirmed long before their timers: without this, a minute of messages would stay in memory.
            self._timers = [timer for timer in self._timers if timer[3].state is not SendState.DONE]
            heapq.heapify(self._timers)

    # --- attempts -------------------------------------------------------------------------------------------------------------

    def _start(self, send: Send, now_ms: float) -> None:
        send.started_ms = now_ms
        self._wake_at(now_ms + self._settings.attempt_timeout_ms, send)

    def _attempt_failed(self, send: Send, cause: Cause, error: str, now_ms: float) -> None:
        self._end_attempt(send, cause, error, now_ms)
        if len(send.attempts) >= self._settings.max_attempts:
            self._fail(send, f"all {len(send.attempts)} attempts failed, the last one: {error}", cause, now_ms)
        else:
            self._metrics.retried(send.attempts[-1])
            self._start(send, now_ms)  # 1: at once; 3: with the same record

    def _throttle(self, send: Send, reason: str, now_ms: float) -> None:
        """An attempt of a throttled client: it is due again after a wait, or it was the last one."""
        send.started_ms = now_ms
        send.throttled += 1
        is_last = len(send.attempts) + 1 >= self._settings.max_attempts
        key = f"{send.order_key}:{send.message.message_id}:{send.throttled}"
        wait_ms = 0 if is_last else backoff_wait_ms(send.throttled, self._settings.backoff, jitter_key=key)
        self._end_attempt(send, Cause.THROTTLED, too_many_requests(reason), now_ms, wait_ms=wait_ms)
        if is_last:
            self._fail(send, f"throttled in all {len(send.attempts)} attempts", Cause.THROTTLED, now_ms)
        else:
            self._metrics.retried(send.attempts[-1])
            send.state = SendState.BACKOFF
            self._wake_at(now_ms + wait_ms, send)  # step 2

    def _end_attempt(self, send: Send, cause: Cause | None, error: str | None, now_ms: float, *, wait_ms: int = 0) -> None:
        """Records how the attempt that runs has ended. While a send waits none runs, and nothing is recorded."""
        if cause is Cause.THROTTLED or send.state not in (SendState.BACKOFF, SendState.BEHIND, SendState.TURN):
            started_ms = round(send.started_ms + self._epoch_offset_ms)
            send.attempts.append(Attempt(started_ms, round(now_ms - send.started_ms), cause, error, wait_ms))

    # --- the order of a client ------------------------------------------------------------------------------------------------

    def _wait(self, send: Send, state: SendState) -> None:
        if send.message.recipients:
            for each in self._divided(send):
                self._wait(each, state)
        else:
            send.state = state
            _insert(self._waiting.setdefault(send.order_key, deque()), send)

    def _divided(self, send: Send) -> list[Send]:
        """Returns a send for each recipient of a record that was not written (step 6)."""
        send.state = SendState.DONE
        divided = []
        for client_id, settle in send.settle.items():
            message = send.message.for_one(client_id)
            attempts = list(send.attempts)
            each = Send(message, send.deadline_ms, send.number, {client_id: settle}, send.is_patient, attempts=attempts)
            self._pending[client_id, message.message_id] = each
            self._wake_at(each.deadline_ms, each)
            self._start(each, send.started_ms)
            divided.append(each)
        return divided

    def _is_blocked(self, order_key: str) -> bool:
        return self._generation is None or order_key in self._in_retired

    def _may_go_at_once(self, client_id: ClientId, message_id: MessageId) -> bool:
        return not (
            self._is_blocked(client_id)
            or client_id in self._waiting
            or (client_id, message_id) in self._pending
            or self._throttles.of(client_id) is not None
        )

    def _throttle_of(self, message: MessageRecord) -> Throttle | None:
        """Says why this record may not be sent now; None = it may. A cancellation makes the queue of its client shorter."""
        return None if message.is_cancellation else self._throttles.of(message.order_key)

    def _advance_changed(self, now_ms: float) -> None:
        while self._changed:
            self._advance(self._changed.popitem(last=False)[0], now_ms)

    def _advance(self, order_key: str, now_ms: float) -> None:
        """Hands over what may go now, in order."""
        left_bytes = _PORTION_BYTES
        while (waiting := self._waiting.get(order_key)) and (first := waiting[0]).state is not SendState.BACKOFF:
            throttle = self._throttle_of(first.message)
            if throttle is not None and throttle.is_progressing:
                self._catching_up.setdefault(order_key, CatchUp(now_ms))
                self._wait_behind(waiting, now_ms)
                return
            if throttle is not None:
                self._end_catch_up(order_key, now_ms)
                for send in [send for send in waiting if send is first or send.state is SendState.READY]:
                    self._throttle(send, throttle.reason, now_ms)
                continue
            if self._is_blocked(order_key):
                self._end_catch_up(order_key, now_ms)
            elif (catch_up := self._catching_up.get(order_key)) is not None:
                if left_bytes <= 0:
                    catch_up.since_ms, catch_up.resumes_ms = now_ms, now_ms + _PORTION_PAUSE_MS
                if now_ms < catch_up.resumes_ms:
                    self._wait_behind(waiting, now_ms)
                    self._wake_at(catch_up.resumes_ms, first)
                    return
                self._metrics.throttled_seconds.inc((now_ms - first.waits_since_ms) / 1_000)
                self._extend(first, now_ms)
            if first.state in (SendState.BEHIND, SendState.TURN):
                first.state = SendState.READY
                self._start(first, now_ms)
            if self._is_blocked(order_key):
                return
            left_bytes -= first.size_bytes
            self._leave_waiting(first)
            self._hand_over(first, now_ms)
        if not waiting:
            self._catching_up.pop(order_key, None)

    # --- clients that are connected and behind --------------------------------------------------------------------------------

    def _wait_behind(self, waiting: deque[Send], now_ms: float) -> None:
        """Stops the attempts of sends that begin to wait."""
        first = waiting[0]
        if first.state is SendState.BEHIND:
            return
        if first.state is SendState.READY:
            for send in waiting:
                if send.state in (SendState.READY, SendState.BEHIND):
                    send.state = SendState.TURN
                    self._begin_turn(send, now_ms)
        first.state = SendState.BEHIND
        if not first.waits_since_ms:
            self._begin_turn(first, now_ms)

    def _begin_turn(self, send: Send, now_ms: float) -> None:
        send.waits_since_ms = now_ms
        if send.is_patient:
            self._wake_at(now_ms + self._settings.catch_up_timeout_ms, send)

    def _end_catch_up(self, order_key: str, now_ms: float) -> None:
        """Handles a client that is away now, or sends that wait for a broker now."""
        if self._catching_up.pop(order_key, None) is not None:
            for send in self._waiting[order_key]:
                self._extend(send, now_ms)

    def _extend(self, send: Send, now_ms: float) -> None:
        """Begins the deadline of a send anew (step 8)."""
        if send.is_patient:
            send.deadline_ms = max(send.deadline_ms, now_ms + self._settings.deadline_ms)
            self._wake_at(send.deadline_ms, send)

    def _leave_waiting(self, send: Send) -> None:
        if send.state is SendState.HANDED_OVER or (waiting := self._waiting.get(send.order_key)) is None:
            return
        waiting.remove(send)
        if not waiting:
            del self._waiting[send.order_key]

    # --- generations ----------------------------------------------------------------------------------------------------------

    def _hand_over(self, send: Send, now_ms: float) -> None:
        generation = self._generation
        assert generation is not None
        send.state = SendState.HANDED_OVER
        send.generation = generation
        self._undecided[generation].add(send)
        try:
            if not generation.hand_over(send):
                self._return(send)
                self._retire()
        except SendRefused as refusal:
            if send.message.recipients:
                self._return(send)  # a record for one client is smaller
            else:
                self._refuse(send, str(refusal), now_ms)

    def _return(self, send: Send) -> None:
        """The record was never written: the send waits for a generation again."""
        self._leave_generation(send)
        self._wait(send, SendState.READY)
        self._changed.update(dict.fromkeys(send.settle))

    def _retire(self) -> None:
        generation, self._generation = self._generation, None
        if generation is None or self._closed:
            return
        self._want_generation()
        undecided = self._undecided[generation]
        for send in sorted(generation.retire(), key=_number, reverse=True):
            if send in undecided:
                undecided.discard(send)
                send.generation = None
                self._wait(send, SendState.READY)
        for send in undecided:
            for order_key in send.settle:
                self._in_retired[order_key] = self._in_retired.get(order_key, 0) + 1
        if not undecided:
            self._end(generation)

    def _leave_generation(self, send: Send) -> None:
        generation, send.generation = send.generation, None
        if generation is None:
            return
        undecided = self._undecided[generation]
        undecided.discard(send)
        if generation is self._generation:
            return
        for order_key in send.settle:
            self._in_retired[order_key] -= 1
            if not self._in_retired[order_key]:
                del self._in_retired[order_key]
                self._changed[order_key] = None
        if not undecided:
            self._end(generation)

    def _end(self, generation: Generation) -> None:
        del self._undecided[generation]
        generation.end()

    # --- verdicts -------------------------------------------------------------------------------------------------------------

    def _refuse(self, send: Send, reason: str, now_ms: float) -> None:
        self._end_attempt(send, Cause.REJECTED, reason, now_ms)
        self._fail(send, reason, Cause.REJECTED, now_ms)

    def _fail(self, send: Send, reason: str, cause: Cause | None, now_ms: float) -> None:
        """Ends a send, and settles each of its recipients with SendFailed.

        Args:
            cause: The cause of the last attempt's failure; None = the deadline has passed, or the producer has ended.
        """
        generation = send.generation
        may_be_sent = cause is not Cause.REJECTED and generation is not None and not generation.withdraw(send)
        failures: dict[str, Outcome] = {}
        for order_key in send.settle:
            self._metrics.failed(cause)
            failures[order_key] = SendFailed(
                reason,
                client_id="" if send.message.is_publication else order_key,
                message_id=send.message.message_id,
                attempts=send.attempts,
                may_be_sent=may_be_sent,
                cause=cause,
            )
        self._settle(send, failures)
        if may_be_sent and generation is self._generation and now_ms - self._generation_since_ms >= _RETIRE_AFTER_MS:
            self._retire()  # what it still has must not be written minutes later

    def _settle(self, send: Send, outcomes: Mapping[str, Outcome]) -> None:
        self._leave_waiting(send)
        self._leave_generation(send)
        send.state = SendState.DONE
        for order_key, settles in send.settle.items():
            del self._pending[order_key, send.message.message_id]
            self.outcomes += [(settle, outcomes[order_key]) for settle in settles]
        self._changed.update(dict.fromkeys(send.settle))


def _insert(waiting: deque[Send], send: Send) -> None:
    """Inserts a send in the order of submission. At either end this takes no search, of which a long deque would make seconds."""
    if not waiting or waiting[-1].number < send.number:
        waiting.append(send)
    elif send.number < waiting[0].number:
        waiting.appendleft(send)
    else:
        insort(waiting, send, key=_number)


def _number(send: Send) -> int:
    return send.number
