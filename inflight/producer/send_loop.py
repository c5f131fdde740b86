"""The life of every send: attempts, waits, order, deadline, verdict. No thread, clock or Kafka: one caller, time as an argument.

Rules, by number:
1. An attempt starts when a message is handed over, or when the attempt before it has failed; it ends with Kafka's confirmation, a
   broker's refusal, a lost connection, or after `attempt_timeout_ms`. The next one follows at once, up to `max_attempts`.
2. Only a throttled client's attempt (530) is followed by a wait: `backoff_wait_ms`, counted from the start of that attempt.
3. A record is given to Kafka's client once. That client repeats it under the same producer id and sequence number, so the broker
   keeps one; further attempts of ours are further time for it, never a second record. It is handed over again only when it is
   certain that the first record is not in the log and never will be (`carrier_lost` without doubt).
4. Messages of one client reach the log in the order in which they were submitted: while one waits, those behind it wait.
5. Every send ends: confirmed, refused for good, out of attempts, or out of time.

States of a send: BACKOFF (throttled, wait running), TURN (behind one that waits), READY (no carrier to take it), CARRIED, DONE.
A carrier is one session of Kafka's producer (inflight/producer/carrier.py). One is current; those that failed drain until
all that they carry is decided.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

from inflight.producer.message import OutgoingMessage
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Attempt, Cause, SendFailed, SendResult
from inflight.producer.send import Carrier, Outcome, Send, SendRefused, State
from inflight.producer.settings import ProducerSettings
from inflight.producer.throttle import ThrottleTable
from state.model import ClientId
from state.records.throttle import TOO_MANY_REQUESTS
from state.retry import backoff_wait_ms

_RETIRE_AFTER_MS: Final = 1_000
"""A carrier younger than this is not given up for one lost message: short deadlines must not wear out producer sessions."""
_TIMERS_KEPT: Final = 4_096
_UNREACHABLE: Final = "no broker could be reached"


class SendLoop:
    """epoch_offset_ms: Unix time minus the clock that `now_ms` is read from. want_carrier: called when a new one is needed."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        throttles: ThrottleTable,
        metrics: ProducerMetrics,
        want_carrier: Callable[[], None],
        epoch_offset_ms: float,
    ) -> None:
        self._settings = settings
        self._throttles = throttles
        self._metrics = metrics
        self._want_carrier = want_carrier
        self._epoch_offset_ms = epoch_offset_ms
        self._orders = itertools.count()
        self._by_id: dict[tuple[str, str], Send] = {}
        self._lanes: dict[ClientId, deque[Send]] = {}
        self._advancing: set[ClientId] = set()
        self._ready: deque[Send] = deque()
        self._timers: list[tuple[float, int, int, Send]] = []
        self._carrier: Carrier | None = None
        self._carrier_since_ms = 0.0
        self._carried: dict[Carrier, set[Send]] = {}
        self._draining_clients: dict[ClientId, int] = {}
        self._trouble = _UNREACHABLE

    def __len__(self) -> int:
        """Sends that have no outcome yet."""
        return len(self._by_id)

    # --- what the outside says ------------------------------------------------------------------------------------------------

    def submit(self, message: OutgoingMessage, *, deadline_ms: float, settle: Callable[[Outcome], None], now_ms: float) -> None:
        """A new send. One with the id of a send that is under way shares its record and its outcome."""
        identity = (message.client_id, message.message_id)
        if (under_way := self._by_id.get(identity)) is not None:
            under_way.followers.append(settle)
            return
        send = Send(message, deadline_ms, settle, next(self._orders))
        self._by_id[identity] = send
        self._arm(deadline_ms, send)
        lane = self._lanes.get(send.client_id)
        if lane is not None and self._throttles.of(send.client_id) is None:
            self._join_lane(send)  # 4
            return
        self._begin(send, now_ms)

    def carrier_opened(self, carrier: Carrier, now_ms: float) -> None:
        """Whatever waits for a carrier may go."""
        self._carrier = carrier
        self._carrier_since_ms = now_ms
        self._carried[carrier] = set()
        self._trouble = _UNREACHABLE
        self._hand_over_ready(now_ms)

    def carrier_unavailable(self, reason: str, *, permanent: bool, now_ms: float) -> None:
        """reason: shown by the attempts that fail meanwhile. permanent: no retry changes it (not authorised, no such topic)."""
        self._trouble = reason
        if permanent:
            waiting, self._ready = self._ready, deque()
            for send in waiting:
                if send.state is State.READY:
                    self._refuse(send, reason, now_ms)

    def confirmed(self, send: Send, partition: int, offset: int, now_ms: float) -> None:
        """Kafka has the record. After the verdict it changes nothing."""
        if send.state is State.DONE:
            return
        self._record(send, now_ms, None, None)
        self._metrics.sends.inc()
        message = send.message
        self._finish(send, SendResult(message.message_id, self._settings.topic, partition, offset, tuple(send.attempts)), now_ms)

    def try_failed(self, send: Send, cause: Cause, error: str, *, began_ms: float, answered: bool, now_ms: float) -> None:
        """A produce request with this record failed, and Kafka's client is about to repeat it.

        answered: a broker said no, so this request has put nothing into the log. began_ms: when it was written.
        """
        if send.state is not State.CARRIED:
            return
        send.in_doubt = send.in_doubt or not answered
        if began_ms < send.started_ms:
            return  # of an attempt that had its time-out already
        self._attempt_failed(send, cause, error, now_ms)

    def carrier_lost(self, send: Send, error: str, *, permanent: bool, unanswered: bool, now_ms: float) -> None:
        """Kafka's client has given the record up. permanent: a broker's refusal that stands. unanswered: it is on the wire."""
        if send.state is not State.CARRIED:
            return
        carrier = send.carrier
        send.in_doubt = send.in_doubt or unanswered
        if permanent:
            self._refuse(send, error, now_ms)
        elif send.in_doubt:
            self._record(send, now_ms, Cause.NETWORK, error)
            self._fail(send, f"{error}, after the record was on its way", Cause.NETWORK, now_ms)
        else:
            self._put_down(send, now_ms)  # 3: certainly not in the log
            send.state = State.READY
            self._insert_ready(send)
        if carrier is not None and carrier is self._carrier:
            self._retire(now_ms)

    def carrier_ended(self, carrier: Carrier, now_ms: float) -> None:
        """It takes nothing new; what it carries is still being decided."""
        if carrier is self._carrier:
            self._retire(now_ms)

    def close(self, now_ms: float) -> None:
        """No time is left: whatever has no outcome gets one."""
        for send in sorted(self._by_id.values(), key=lambda send: send.order):
            self._record(send, now_ms, Cause.TIME_OUT, "the producer was closed")
            self._fail(send, "the producer was closed before it was confirmed", None, now_ms)
        for carrier in list(self._carried):
            self._release(carrier)
        self._carrier = None

    # --- time -----------------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> float | None:
        """When `advance` has something to do; None = not by itself."""
        while self._timers and self._timers[0][3].state is State.DONE:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, now_ms: float) -> None:
        """Everything whose time has come."""
        while self._timers and self._timers[0][0] <= now_ms:
            _, _, attempts, send = heapq.heappop(self._timers)
            if send.state is State.DONE:
                continue
            if now_ms >= send.deadline_ms:
                self._out_of_time(send, now_ms)
            elif attempts == len(send.attempts):
                self._attempt_due(send, now_ms)

    def _arm(self, at_ms: float, send: Send) -> None:
        # The number of attempts says whether the timer still means the attempt that it was set for.
        heapq.heappush(self._timers, (at_ms, next(self._orders), len(send.attempts), send))
        if len(self._timers) > 4 * len(self._by_id) + _TIMERS_KEPT:
            # Nearly all sends are confirmed long before their timers: without this, a minute of messages would stay in memory.
            self._timers = [timer for timer in self._timers if timer[3].state is not State.DONE]
            heapq.heapify(self._timers)

    def _attempt_due(self, send: Send, now_ms: float) -> None:
        match send.state:
            case State.BACKOFF:
                send.state = State.TURN
                self._next_in_lane(send.client_id, now_ms)
            case State.READY | State.CARRIED:
                if now_ms >= send.started_ms + self._settings.attempt_timeout_ms:
                    detail = f" ({self._trouble})" if send.state is State.READY else ""
                    self._attempt_failed(send, Cause.TIME_OUT, f"not confirmed in time{detail}", now_ms)
            case _:
                pass

    # --- attempts -------------------------------------------------------------------------------------------------------------

    def _begin(self, send: Send, now_ms: float) -> None:
        """The next attempt of a send that no carrier has. It stays in (or joins) its lane if it must wait."""
        send.started_ms = now_ms
        throttle = self._throttles.of(send.client_id)
        if throttle is None:
            self._leave_lane(send)
            self._hand_over(send, now_ms)
            if send.state in (State.READY, State.CARRIED):
                self._arm(now_ms + self._settings.attempt_timeout_ms, send)
            return
        send.throttled += 1
        last = len(send.attempts) + 1 >= self._settings.max_attempts
        message = send.message
        key = f"{message.client_id}:{message.message_id}:{send.throttled}"
        wait_ms = 0 if last else backoff_wait_ms(send.throttled, self._settings.backoff, jitter_key=key)  # 2
        error = f"{TOO_MANY_REQUESTS} TOO_MANY_REQUESTS" + (f": {throttle.reason}" if throttle.reason else "")
        self._record(send, now_ms, Cause.THROTTLED, error, wait_ms=wait_ms)
        if last:
            self._fail(send, f"throttled in all {len(send.attempts)} attempts", Cause.THROTTLED, now_ms)
            return
        self._metrics.retried(send.attempts[-1])
        send.state = State.BACKOFF
        self._join_lane(send)
        self._arm(now_ms + wait_ms, send)

    def _attempt_failed(self, send: Send, cause: Cause, error: str, now_ms: float) -> None:
        self._record(send, now_ms, cause, error)
        if len(send.attempts) >= self._settings.max_attempts:
            self._fail(send, f"all {len(send.attempts)} attempts failed, the last one: {error}", cause, now_ms)
            return
        self._metrics.retried(send.attempts[-1])
        send.started_ms = now_ms  # 1: at once; 3: with the same record
        self._arm(now_ms + self._settings.attempt_timeout_ms, send)

    def _record(self, send: Send, now_ms: float, cause: Cause | None, error: str | None, *, wait_ms: int = 0) -> None:
        if send.state in (State.BACKOFF, State.TURN) and cause is not Cause.THROTTLED:
            return  # no attempt is running
        started_ms = round(send.started_ms + self._epoch_offset_ms)
        send.attempts.append(Attempt(started_ms, round(now_ms - send.started_ms), cause, error, wait_ms))

    # --- carriers -------------------------------------------------------------------------------------------------------------

    def _hand_over(self, send: Send, now_ms: float) -> None:
        carrier = self._carrier
        if carrier is None or send.client_id in self._draining_clients:
            send.state = State.READY
            self._insert_ready(send)
        else:
            self._carry(carrier, send, now_ms)

    def _carry(self, carrier: Carrier, send: Send, now_ms: float) -> bool:
        """False: the carrier takes nothing now."""
        send.state = State.READY
        try:
            taken = carrier.carry(send)
        except SendRefused as refusal:
            self._refuse(send, str(refusal), now_ms)
            return True
        if not taken:
            self._insert_ready(send)
            self._retire(now_ms)
            return False
        send.state = State.CARRIED
        send.carrier = carrier
        self._carried[carrier].add(send)
        return True

    def _hand_over_ready(self, now_ms: float) -> None:
        """In order; what is held back for an older carrier holds back only its own client."""
        waiting, self._ready = self._ready, deque()
        held: list[Send] = []
        while waiting:
            send = waiting.popleft()
            if send.state is not State.READY:
                continue
            carrier = self._carrier
            if carrier is None or send.client_id in self._draining_clients:
                held.append(send)
            elif self._throttles.of(send.client_id) is not None:
                self._begin(send, now_ms)  # throttled meanwhile
            elif not self._carry(carrier, send, now_ms):
                self._ready.remove(send)
                held.append(send)
        self._ready.extendleft(reversed(held))

    def _insert_ready(self, send: Send) -> None:
        """By order: one that comes back goes before those that were submitted later."""
        ready = self._ready
        position = len(ready)
        while position and ready[position - 1].order > send.order:
            position -= 1
        ready.insert(position, send)

    def _retire(self, now_ms: float) -> None:
        """The current carrier gets nothing new; a client's later messages wait for what the old one still has of it."""
        carrier, self._carrier = self._carrier, None
        if carrier is None:
            return
        self._want_carrier()
        for send in self._carried[carrier]:
            self._draining_clients[send.client_id] = self._draining_clients.get(send.client_id, 0) + 1
        if not self._carried[carrier]:
            self._release(carrier)

    def _put_down(self, send: Send, now_ms: float) -> None:
        """The send leaves its carrier."""
        carrier, send.carrier = send.carrier, None
        if carrier is None:
            return
        carried = self._carried[carrier]
        carried.discard(send)
        if carrier is self._carrier:
            return
        client_id = send.client_id
        self._draining_clients[client_id] -= 1
        if not self._draining_clients[client_id]:
            del self._draining_clients[client_id]
            self._drained(now_ms)
        if not carried:
            self._release(carrier)

    def _drained(self, now_ms: float) -> None:
        if self._carrier is not None and self._ready:
            self._hand_over_ready(now_ms)

    def _release(self, carrier: Carrier) -> None:
        del self._carried[carrier]
        carrier.release()

    # --- verdicts -------------------------------------------------------------------------------------------------------------

    def _out_of_time(self, send: Send, now_ms: float) -> None:
        if send.state in (State.READY, State.CARRIED):
            self._record(send, now_ms, Cause.TIME_OUT, "the deadline of the send passed")
        blocked = "behind earlier messages of a throttled client, " if send.state is State.TURN else ""
        self._fail(send, f"its deadline passed ({blocked}{len(send.attempts)} attempts)", None, now_ms)

    def _refuse(self, send: Send, reason: str, now_ms: float) -> None:
        self._record(send, now_ms, Cause.REJECTED, reason)
        self._fail(send, reason, Cause.REJECTED, now_ms)

    def _fail(self, send: Send, reason: str, cause: Cause | None, now_ms: float) -> None:
        carrier = send.carrier
        # A record that Kafka's client still holds may yet be sent: there is no way to take one record back.
        may_be_sent = cause is not Cause.REJECTED and (send.in_doubt or carrier is not None)
        message = send.message
        self._metrics.failed(cause)
        self._finish(
            send,
            SendFailed(
                reason,
                client_id=message.client_id,
                message_id=message.message_id,
                attempts=send.attempts,
                may_be_sent=may_be_sent,
                cause=cause,
            ),
            now_ms,
        )
        if (
            carrier is not None
            and carrier is self._carrier
            and cause is not Cause.REJECTED
            and now_ms - self._carrier_since_ms >= _RETIRE_AFTER_MS
        ):
            self._retire(now_ms)  # its queue must not be sent minutes later

    def _finish(self, send: Send, outcome: Outcome, now_ms: float) -> None:
        message = send.message
        send.state = State.DONE
        del self._by_id[message.client_id, message.message_id]
        send.settle(outcome)
        for settle in send.followers:
            settle(outcome)
        self._put_down(send, now_ms)
        self._leave_lane(send)
        if send.client_id in self._lanes:
            self._next_in_lane(send.client_id, now_ms)

    # --- lanes: the sends of one client that wait because of throttling, in order ---------------------------------------------

    def _join_lane(self, send: Send) -> None:
        if send.in_lane:
            return
        send.in_lane = True
        lane = self._lanes.setdefault(send.client_id, deque())
        position = len(lane)
        while position and lane[position - 1].order > send.order:
            position -= 1
        lane.insert(position, send)

    def _leave_lane(self, send: Send) -> None:
        if not send.in_lane:
            return
        send.in_lane = False
        lane = self._lanes[send.client_id]
        while lane and not lane[0].in_lane:
            lane.popleft()
        if not lane:
            del self._lanes[send.client_id]

    def _next_in_lane(self, client_id: ClientId, now_ms: float) -> None:
        """The first that waits for its turn tries, and the next if that one went."""
        if client_id in self._advancing:
            return  # the loop below is already at it
        self._advancing.add(client_id)
        while (lane := self._lanes.get(client_id)) and lane[0].state is State.TURN:
            self._begin(lane[0], now_ms)
        self._advancing.discard(client_id)
