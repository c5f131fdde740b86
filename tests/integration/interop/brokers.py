"""One language for RabbitMQ and Inflight, so that steps are written once and played on both (test_rabbitmq_comparison.py).

A queue of RabbitMQ is the queue of a client of Inflight; where a scenario ends, RabbitMQ has a queue that nobody dead-letters
from and Inflight a topic of Kafka. Inflight's side is its engine without Spark and Kafka (tests/scenarios/engine_model.py).
"""

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pika
from pika.adapters.blocking_connection import BlockingChannel

from state.dead_letters.exchanges import DEAD_LETTERS, Binding, Exchange, ExchangeType, parse_destination
from state.dead_letters.policy import Policy
from state.model import Destination, DestinationKind
from state.settings import Overflow, SessionSettings
from tests.integration.interop.rabbitmq_server import get
from tests.scenarios.engine_model import EngineModel

REFUSED_FOR_GOOD = 0x87
REFUSED_FOR_NOW = 0x83
CLOCK_SLACK_S = 2.0
"""RabbitMQ's times are whole seconds."""


@dataclass(frozen=True)
class Queue:
    """dlx: None = nothing is dead-lettered; key: overriding routing key; end: a scenario ends here."""

    name: str
    dlx: str | None = None
    key: str | None = None
    ttl_ms: int | None = None
    max_len: int | None = None
    refuses_when_full: bool = False
    delivery_limit: int | None = None
    end: bool = False


@dataclass(frozen=True)
class Setup:
    """bindings: (exchange, key, queue). arguments: queue arguments stand in headers of the message, not in a policy."""

    queues: tuple[Queue, ...]
    exchanges: tuple[tuple[str, str], ...] = ()
    bindings: tuple[tuple[str, str, str], ...] = ()
    arguments: bool = False


@dataclass(frozen=True)
class DeathSeen:
    """One element of x-death, without its time."""

    queue: str
    reason: str
    count: int
    exchange: str
    routing_keys: tuple[str, ...]
    original_expiration: str | None


@dataclass(frozen=True)
class DeadLetterSeen:
    """A dead letter as its reader sees it. first: x-first-death-reason, -queue, -exchange."""

    text: str
    exchange: str
    routing_key: str
    deaths: tuple[DeathSeen, ...]
    first: tuple[str | None, str | None, str | None]
    cc: tuple[str, ...]
    has_bcc: bool
    has_expiration: bool
    others: dict[str, str] = field(default_factory=dict, compare=False)


class Broker(Protocol):
    def publish(
        self, queue: str, text: str, *, cc: Sequence[str] = (), bcc: Sequence[str] = (), ttl_ms: int | None = None
    ) -> None: ...

    def republish(self, queue: str, letter: DeadLetterSeen) -> None:
        """Sends a dead letter again with everything that it came with, as a backend may."""

    def reject(self, queue: str) -> None:
        """A consumer takes the next message of the queue and rejects it for good."""

    def fail(self, queue: str) -> None:
        """A consumer takes messages and gives them back until the delivery limit is reached."""

    def wait(self, milliseconds: int) -> None:
        """Lets at least `milliseconds` pass on the broker's clock before anything is read."""

    def read(self, end: str) -> DeadLetterSeen: ...

    def waiting(self, queue: str) -> int:
        """Messages in a queue."""


class RabbitBroker:
    def __init__(self, channel: BlockingChannel, setup: Setup) -> None:
        self._channel = channel
        self._setup = setup
        self._began = time.time()
        for exchange, kind in setup.exchanges:
            channel.exchange_declare(exchange, kind)
        for queue in setup.queues:
            channel.queue_declare(queue.name, durable=queue.delivery_limit is not None, arguments=_arguments(queue))
        for exchange, key, name in setup.bindings:
            channel.queue_bind(name, exchange, key)

    def close(self) -> None:
        """Removes everything: messages that still wait for a timer must not reach the next scenario."""
        for queue in self._setup.queues:
            self._channel.queue_delete(queue.name)
        for exchange, _ in self._setup.exchanges:
            self._channel.exchange_delete(exchange)

    def publish(
        self, queue: str, text: str, *, cc: Sequence[str] = (), bcc: Sequence[str] = (), ttl_ms: int | None = None
    ) -> None:
        headers: dict[str, Any] = {}
        if cc:
            headers["CC"] = list(cc)
        if bcc:
            headers["BCC"] = list(bcc)
        expiration = None if ttl_ms is None else str(ttl_ms)
        self._channel.basic_publish("", queue, text.encode(), pika.BasicProperties(headers=headers, expiration=expiration))

    def republish(self, queue: str, letter: DeadLetterSeen) -> None:
        headers = self._last_headers
        self._channel.basic_publish("", queue, letter.text.encode(), pika.BasicProperties(headers=headers))

    def reject(self, queue: str) -> None:
        method, _, _ = get(self._channel, queue)
        self._channel.basic_reject(method.delivery_tag, requeue=False)

    def fail(self, queue: str) -> None:
        while (found := self._channel.basic_get(queue))[0] is not None:
            self._channel.basic_reject(found[0].delivery_tag, requeue=True)

    def wait(self, milliseconds: int) -> None:
        pass  # whoever reads waits for what is to come

    def read(self, end: str) -> DeadLetterSeen:
        method, properties, body = get(self._channel, end)
        self._channel.basic_ack(method.delivery_tag)
        headers = self._last_headers = properties.headers or {}
        for death in headers["x-death"]:
            self._check_time(death["time"])
        return DeadLetterSeen(
            text=body.decode(),
            exchange=method.exchange,
            routing_key=method.routing_key,
            deaths=tuple(
                DeathSeen(
                    death["queue"],
                    death["reason"],
                    int(death["count"]),
                    death["exchange"],
                    tuple(death["routing-keys"]),
                    death.get("original-expiration"),
                )
                for death in headers["x-death"]
            ),
            first=(
                headers.get("x-first-death-reason"),
                headers.get("x-first-death-queue"),
                headers.get("x-first-death-exchange"),
            ),
            cc=tuple(headers.get("CC", ())),
            has_bcc="BCC" in headers,
            has_expiration=properties.expiration is not None,
            others={name: str(value) for name, value in headers.items()},
        )

    def waiting(self, queue: str) -> int:
        return int(self._channel.queue_declare(queue, passive=True).method.message_count)

    def _check_time(self, died: datetime.datetime) -> None:
        assert self._began - CLOCK_SLACK_S <= died.timestamp() <= time.time() + CLOCK_SLACK_S


class InflightBroker:
    def __init__(self, setup: Setup) -> None:
        self._queues = {queue.name: queue for queue in setup.queues}
        self._setup = setup
        self._read: dict[str, int] = {}
        exchanges = tuple(
            Exchange(
                name=name,
                type=ExchangeType(kind),
                bindings=tuple(
                    Binding(key=key, destination=self._destination(queue))
                    for exchange, key, queue in setup.bindings
                    if exchange == name
                ),
            )
            for name, kind in setup.exchanges
        )
        policies = tuple(
            Policy(
                name=queue.name,
                clients=queue.name,
                dead_letter_exchange=DEAD_LETTERS if queue.dlx is None or setup.arguments else queue.dlx,
                dead_letter_routing_key=None if setup.arguments else queue.key,
                message_ttl_ms=queue.ttl_ms,
            )
            for queue in setup.queues
            if not queue.end
        )
        profiles = {
            queue.name: SessionSettings(
                max_mqueue_len=queue.max_len or 0,
                overflow=Overflow.REJECT if queue.refuses_when_full else Overflow.DROP_OLDEST,
                delivery_limit=-1 if queue.delivery_limit is None else queue.delivery_limit + 1,
            )
            for queue in setup.queues
        }
        self.engine = EngineModel(policies=policies, exchanges=exchanges, profiles=profiles)
        self._began_ms = self.engine.now_ms

    def publish(
        self, queue: str, text: str, *, cc: Sequence[str] = (), bcc: Sequence[str] = (), ttl_ms: int | None = None
    ) -> None:
        headers = [(name, msgspec.json.encode(keys)) for name, keys in (("CC", cc), ("BCC", bcc)) if keys]
        if ttl_ms is not None:
            headers.append(("expiration", b"%d" % ttl_ms))
        arguments = self._queues[queue]
        if self._setup.arguments and arguments.dlx is not None:
            headers.append(("x-dead-letter-exchange", arguments.dlx.encode()))
        if self._setup.arguments and arguments.key is not None:
            headers.append(("x-dead-letter-routing-key", arguments.key.encode()))
        self.engine.send(queue, text, *headers)

    def republish(self, queue: str, letter: DeadLetterSeen) -> None:
        headers = [(name, value.encode()) for name, value in letter.others.items() if name not in ("mqtt-topic", "message-id")]
        self.engine.send(queue, letter.text, *headers)

    def reject(self, queue: str) -> None:
        self.engine.connect(queue, answer=REFUSED_FOR_GOOD).lose_connection(queue)

    def fail(self, queue: str) -> None:
        self.engine.connect(queue, answer=REFUSED_FOR_NOW).lose_connection(queue)

    def wait(self, milliseconds: int) -> None:
        self.engine.after(milliseconds / 1_000)

    def read(self, end: str) -> DeadLetterSeen:
        index = self._read[end] = self._read.get(end, -1) + 1
        records = self.engine.records(end)
        assert index < len(records), f"nothing in topic {end}"
        headers, deaths = self.engine.headers(end, index), self.engine.deaths(end, index)
        for death in deaths:
            assert self._began_ms <= death["time"] <= self.engine.now_ms
        return DeadLetterSeen(
            text=self.engine.read(end)[index],
            exchange=headers["x-exchange"],
            routing_key=headers["x-routing-key"],
            deaths=tuple(
                DeathSeen(
                    death["queue"],
                    death["reason"],
                    death["count"],
                    death["exchange"],
                    tuple(death["routing-keys"]),
                    death.get("original-expiration"),
                )
                for death in deaths
            ),
            first=(
                headers.get("x-first-death-reason"),
                headers.get("x-first-death-queue"),
                headers.get("x-first-death-exchange"),
            ),
            cc=tuple(msgspec.json.decode(headers.get("CC", "[]"))),
            has_bcc="BCC" in headers,
            has_expiration="expiration" in headers,
            others=headers,
        )

    def waiting(self, queue: str) -> int:
        return len(self.engine.queued(queue))

    def _destination(self, queue: str) -> Destination:
        if queue in self._queues and self._queues[queue].end:
            return parse_destination(f"topic:{queue}")
        return Destination(kind=DestinationKind.CLIENT, name=queue)


def _arguments(queue: Queue) -> dict[str, Any]:
    found = {
        "x-dead-letter-exchange": queue.dlx,
        "x-dead-letter-routing-key": queue.key,
        "x-message-ttl": queue.ttl_ms,
        "x-max-length": queue.max_len,
        "x-overflow": "reject-publish-dlx" if queue.refuses_when_full else None,
        "x-delivery-limit": queue.delivery_limit,
        "x-queue-type": None if queue.delivery_limit is None else "quorum",
    }
    return {name: value for name, value in found.items() if value is not None}
