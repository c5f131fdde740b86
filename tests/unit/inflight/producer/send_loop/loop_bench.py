"""The send loop with a clock that only the test moves and a Kafka that does what the test says."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from inflight.producer.message import build_cancellation, build_message, build_messages
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Attempt, Cause, SendFailed
from inflight.producer.send_loop import Outcome, Send, SendLoop, SendRefused
from inflight.producer.settings import ProducerSettings
from sinks.kafka.throttles import ThrottleTable

EPOCH_MS = 1_700_000_000_000


@dataclass(eq=False)
class FakeGeneration:
    """Keeps what it was given. room: how many records are written; the next ones are held. takes: whether it takes more."""

    has: list[Send] = field(default_factory=list)
    held: list[Send] = field(default_factory=list)
    room: int = 1_000_000
    takes: bool = True
    refuses: str | None = None
    ended: bool = False

    def hand_over(self, send: Send) -> bool:
        if self.refuses is not None:
            raise SendRefused(self.refuses)
        if self.takes:
            (self.held if self.held or len(self.has) >= self.room else self.has).append(send)
        return self.takes

    def withdraw(self, send: Send) -> bool:
        is_held = send in self.held
        if is_held:
            self.held.remove(send)
        return is_held

    def retire(self) -> list[Send]:
        held, self.held = self.held, []
        return held

    def end(self) -> None:
        assert not self.ended
        self.ended = True

    @property
    def ids(self) -> list[str]:
        return [send.message.message_id for send in self.has]


class Bench:
    """A loop, its clock, and the outcomes so far."""

    def __init__(self, *, opened: bool = True, **options: Any) -> None:
        self.settings = ProducerSettings(**{"attempt_timeout_ms": 1_000, "deadline_ms": 600_000, **options})
        self.throttles = ThrottleTable()
        self.registry = CollectorRegistry()
        self.wanted = 0
        self.now_ms = 0.0
        self.outcomes: dict[str, Outcome] = {}
        self.settled: list[str] = []
        self.loop = SendLoop(
            self.settings,
            throttles=self.throttles,
            metrics=ProducerMetrics(self.registry),
            want_generation=self._want,
            epoch_offset_ms=EPOCH_MS,
        )
        self.generation = FakeGeneration()
        self._numbers = itertools.count(1)
        if opened:
            self.open()

    def _want(self) -> None:
        self.wanted += 1

    def open(self, generation: FakeGeneration | None = None) -> FakeGeneration:
        self.generation = generation or FakeGeneration()
        self.loop.generation_opened(self.generation, self.now_ms)
        self.settle()
        return self.generation

    def settle(self) -> None:
        """Settles the outcomes, as the worker does after each call."""
        outcomes, self.loop.outcomes = self.loop.outcomes, []
        for settle, outcome in outcomes:
            settle(outcome)

    def send(
        self,
        message_id: str,
        client_id: str = "client",
        *,
        deadline_ms: float | None = None,
        is_patient: bool = False,
        payload: bytes = b"x",
    ) -> None:
        message = build_message(client_id, "a/b", payload, settings=self.settings, message_id=message_id)
        name = f"{message_id}#{next(self._numbers)}" if message_id in self.outcomes else message_id

        def settle(outcome: Outcome) -> None:
            self.settled.append(name)
            self.outcomes[name] = outcome

        allowed_ms = self.settings.deadline_ms if deadline_ms is None else deadline_ms
        deadline_ms = self.now_ms + allowed_ms
        self.loop.submit(message, deadline_ms=deadline_ms, settle=settle, now_ms=self.now_ms, is_patient=is_patient)
        self.settle()

    def cancel(self, message_id: str, client_id: str = "client") -> None:
        """Takes a message back. The send is called `cancel MESSAGE_ID`."""
        message = build_cancellation(client_id, message_id, settings=self.settings)._replace(message_id=f"cancel {message_id}")
        deadline_ms = self.now_ms + self.settings.deadline_ms
        settle = partial(self.outcomes.__setitem__, f"cancel {message_id}")
        self.loop.submit(message, deadline_ms=deadline_ms, settle=settle, now_ms=self.now_ms)
        self.settle()

    def send_many(self, message_id: str, clients: Iterable[str], *, deadline_ms: float | None = None) -> None:
        """Sends one record to all of them. The names of the sends are MESSAGE_ID@CLIENT."""
        (message,) = build_messages(list(clients), "a/b", b"x", settings=self.settings, partitions=1, message_id=message_id)

        def settle(name: str, outcome: Outcome) -> None:
            self.settled.append(name)
            self.outcomes[name] = outcome

        allowed_ms = self.settings.deadline_ms if deadline_ms is None else deadline_ms
        settles = {client_id: partial(settle, f"{message_id}@{client_id}") for client_id in clients}
        self.loop.submit_many(message, deadline_ms=self.now_ms + allowed_ms, settle=settles, now_ms=self.now_ms)
        self.settle()

    def handed_over(self, message_id: str, generation: FakeGeneration | None = None) -> Send:
        return next(send for send in (generation or self.generation).has if send.message.message_id == message_id)

    def confirm(self, message_id: str, generation: FakeGeneration | None = None) -> None:
        self.loop.confirmed(self.handed_over(message_id, generation), 0, 7, self.now_ms)
        self.settle()

    def repeat(self, message_id: str, cause: Cause = Cause.NETWORK) -> None:
        """A request with it failed, and Kafka's client repeats it."""
        self.loop.request_failed(self.handed_over(message_id), cause, "broken", self.now_ms)
        self.settle()

    def give_up(self, message_id: str, *, is_refused: bool = False, is_written: bool = False) -> None:
        send = self.handed_over(message_id)
        self.loop.given_up(send, "given up", is_refused=is_refused, is_written=is_written, now_ms=self.now_ms)
        self.settle()

    def unreachable(self, reason: str, *, permanent: bool) -> None:
        self.loop.kafka_unavailable(reason, permanent=permanent, now_ms=self.now_ms)
        self.settle()

    def close(self) -> None:
        self.loop.close(self.now_ms)
        self.settle()

    def throttle(self, key: str, value: bytes | None = b'{"reason": "queue is long"}') -> None:
        self.throttles.apply(key.encode(), value)

    def fall_behind(self, client_id: str = "client") -> None:
        """Throttles a client that is connected and acknowledges."""
        self.throttle(client_id, b'{"reason": "queue is long", "is_progressing": true}')
        self._tell()

    def catch_up(self, client_id: str = "client") -> None:
        self.throttle(client_id, None)
        self._tell()

    def go_away(self, client_id: str = "client") -> None:
        self.throttle(client_id)
        self._tell()

    def _tell(self) -> None:
        self.loop.throttles_changed(self.now_ms)
        self.settle()

    def run_until(self, now_ms: float) -> None:
        """Advances the loop as the worker does: at every moment when something is due."""
        while (due := self.loop.next_due_ms()) is not None and due <= now_ms:
            self.now_ms = max(self.now_ms, due)
            self.loop.advance(self.now_ms)
            self.settle()
        self.now_ms = now_ms

    def failure(self, name: str) -> SendFailed:
        outcome = self.outcomes[name]
        assert isinstance(outcome, SendFailed)
        return outcome

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"inflight_producer_{name}_total", labels) or 0.0


def causes(attempts: tuple[Attempt, ...]) -> list[Cause | None]:
    return [attempt.cause for attempt in attempts]
