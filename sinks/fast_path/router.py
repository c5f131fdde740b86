"""The router of a gateway process: it reads `inflight.messages` from the end, and offers each message to its client's connection.

A thread of its own has the consumer. Offers for connections of this process cross over to the event loop, all of one poll at
once; those for other gateways go to their partition of the commands topic. A router decides nothing, and may lose or delay any
offer: the session reads every message all the same, and an offer says what came before it.

1. Routers share the partitions out as a consumer group, and commit nothing: where one begins, its memory begins (RouterMemory).
2. A router that has fallen behind goes on at the end. What is old has been handled by the micro-batches, which read the same log.
3. While the gateway is under pressure nothing is offered, here or elsewhere.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import FencedInstanceIdError, KafkaError

from sinks.fast_path.offering import Offering, Offers
from sinks.fast_path.route_table import RouteReader, RouteTable
from sinks.fast_path.router_memory import RouterMemory
from sinks.fast_path.settings import FastPathSettings
from sinks.kafka.polling import poll, subscribe
from sinks.kafka.producers import abandon
from sinks.kafka.rebalance import AssignmentChanges, RebalanceWatch
from state.commands import CommandBatch, OfferPublish
from state.model import ClientId
from state.records.commands import encode_command_batch
from state.records.routes import Route

_log: Final = structlog.get_logger(__name__)
_POLL_TIMEOUT_MS: Final = 200
_POSITION_TIMEOUT_MS: Final = 10_000
_RESTART_PAUSE_S: Final = 1.0
_PAUSE_S: Final = 0.003
"""After a poll that brought something: one that brings a single record costs kafka-python nearly a millisecond of processor time,
which the connections need, too. It delays only what comes within that time."""
_MOST_RECORDS: Final = 100
"""Of one poll: what the event loop looks at in one go."""


class OfferListener(Protocol):
    """Who holds connections."""

    def connection_of(self, client_id: ClientId) -> int:
        """The newest connection here on which this client has logged in, 0 = none. On any thread."""

    @property
    def is_under_pressure(self) -> bool:
        """On any thread."""

    def offers(self, offers: list[tuple[ClientId, OfferPublish]], waiting: int, dropped: int) -> None:
        """What was read for connections here, on the loop. waiting: how many offers follow. dropped: for want of time."""


class Router(Protocol):
    """Reads messages, and offers them."""

    def start(self, listener: OfferListener) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class KafkaRouter:
    """Router on a consumer in a thread of its own."""

    def __init__(
        self,
        settings: FastPathSettings,
        *,
        bootstrap_servers: str,
        commands_topic: str,
        group_instance_id: str | None,
        session_timeout_ms: int,
        options: Mapping[str, Any],
    ) -> None:
        heartbeat_interval_ms = max(100, session_timeout_ms // 4)
        self._settings = settings
        self._topic = settings.messages_topic
        self._commands_topic = commands_topic
        common: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "reconnect_backoff_max_ms": 1_000,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            **options,
        }
        reading = {**common, "enable_auto_commit": False, "fetch_min_bytes": 1}
        self._config: dict[str, Any] = {
            **reading,
            "group_id": settings.group_id,
            "group_instance_id": group_instance_id,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": heartbeat_interval_ms,
            "auto_offset_reset": "latest",
            "isolation_level": "read_committed",  # as the engine reads
            "max_poll_records": _MOST_RECORDS,
            "partition_assignment_strategy": (CooperativeStickyAssignor,),
        }
        # What is lost on the way to another gateway costs latency only: no wait for replicas, no repetition.
        self._producer_config = {**common, "acks": 1, "retries": 0, "enable_idempotence": False, "max_block_ms": 200}
        self._memory = RouterMemory()
        self._routes = RouteTable()
        self._route_reader = RouteReader(self._routes, topic=settings.routes_topic, config=reading)
        self._new_watch = partial(
            RebalanceWatch, session_timeout_ms=session_timeout_ms, heartbeat_interval_ms=heartbeat_interval_ms
        )
        self._assignment = AssignmentChanges(self._topic)
        self._owned: frozenset[int] = frozenset()
        self._stopping = threading.Event()
        self._made = 0  # offers handed to the loop; on the thread
        self._looked_at = 0  # … and looked at; on the loop
        self._producer: KafkaProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: OfferListener | None = None
        self._thread = threading.Thread(target=self._run, name="inflight-router", daemon=True)

    def start(self, listener: OfferListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._route_reader.start()
        self._thread.start()

    async def close(self, timeout_s: float) -> None:
        self._stopping.set()
        self._route_reader.stop()
        if self._loop is not None:
            joins = (self._loop.run_in_executor(None, thread.join, timeout_s) for thread in (self._thread, self._route_reader))
            await asyncio.gather(*joins)

    # --- on the router's thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._consume()
            except FencedInstanceIdError:  # joining again would fence the other one, and the command tail ends the process
                _log.warning("router_fenced", group=self._config["group_id"], group_instance_id=self._config["group_instance_id"])
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, a new consumer is the cure
                _log.warning("router_failed", error=repr(error), action="a new consumer starts in a second")
            self._own(frozenset(), 0)
            self._assignment.changes.clear()
            self._stopping.wait(_RESTART_PAUSE_S)

    def _consume(self) -> None:
        assert self._listener is not None
        offering = Offering(
            self._memory, self._routes, self._listener.connection_of, max_payload_bytes=self._settings.max_payload_bytes
        )
        consumer, watch = KafkaConsumer(**self._config), self._new_watch()
        try:
            if not subscribe(consumer, [self._topic], listener=self._assignment, stopping=self._stopping):
                return
            while not self._stopping.is_set():
                batches = poll(consumer, _POLL_TIMEOUT_MS)
                watch.look(consumer.group_metadata(), time.monotonic())
                self._follow_assignment(consumer, batches)
                offers, under_pressure = Offers(), self._is_under_pressure()
                for partition, records in batches.items():
                    if partition.partition in self._owned and not self._skip_if_behind(consumer, partition):
                        offering.read(partition.partition, records, offers, under_pressure=under_pressure)
                for offer in offers.elsewhere:
                    self._send(*offer)
                self._hand_over(offers)
                if batches:
                    self._stopping.wait(_PAUSE_S)
        finally:
            if self._producer is not None:
                abandon(self._producer)
                self._producer = None
            consumer.close(autocommit=False, timeout_ms=2_000)

    def _follow_assignment(self, consumer: Any, batches: Mapping[TopicPartition, list[Any]]) -> None:
        """batches: of the poll that has changed the assignment; a new partition's first records may be among them."""
        owned, changes = self._owned, self._assignment.changes
        if not changes:
            return
        while changes:
            is_assignment, partitions = changes.popleft()
            for partition in partitions:
                if is_assignment:
                    first = batches.get(TopicPartition(self._topic, partition))
                    self._remember_from(consumer, partition, first[0].offset if first else None)
                else:
                    self._memory.revoked(partition)
            owned = owned | partitions if is_assignment else owned - partitions
        self._own(owned, len(consumer.partitions_for_topic(self._topic) or ()))

    def _remember_from(self, consumer: Any, partition: int, next_offset: int | None) -> None:
        """next_offset: None = where the consumer stands; it stays there from then on, also before its first record comes."""
        if next_offset is None:
            next_offset = consumer.position(TopicPartition(self._topic, partition), timeout_ms=_POSITION_TIMEOUT_MS)
        self._memory.assigned(partition, next_offset)

    def _own(self, partitions: frozenset[int], of: int) -> None:
        for partition in self._owned - partitions:
            self._memory.revoked(partition)
        self._owned = partitions
        self._route_reader.follow(partitions, of)

    def _skip_if_behind(self, consumer: Any, partition: TopicPartition) -> bool:
        """True: what was read is too old to be offered, and the next poll goes on at the end."""
        end = consumer.highwater(partition)
        if end is None or end - consumer.position(partition, timeout_ms=_POSITION_TIMEOUT_MS) <= self._settings.max_lag:
            return False
        consumer.seek_to_end(partition)
        self._remember_from(consumer, partition.partition, None)
        return True

    def _is_under_pressure(self) -> bool:
        assert self._listener is not None
        return self._listener.is_under_pressure or self._made - self._looked_at > self._settings.pressure_offers

    def _send(self, client_id: ClientId, offer: OfferPublish, route: Route) -> None:
        """To another gateway."""
        if self._producer is None:
            self._producer = KafkaProducer(**self._producer_config)
            self._producer.partitions_for(self._commands_topic)
        key, value = client_id.encode(), encode_command_batch(CommandBatch(client_id=client_id, commands=(offer,)))
        try:
            future = self._producer.send(self._commands_topic, value=value, key=key, partition=route.partition)
        except (KafkaError, AssertionError, ValueError) as error:
            _not_sent(error)
        else:
            future.add_errback(_not_sent)

    def _hand_over(self, offers: Offers) -> None:
        if not offers.here and not offers.dropped:
            return
        assert self._loop is not None
        self._made += len(offers.here)
        try:
            self._loop.call_soon_threadsafe(self._deliver, offers)
        except RuntimeError:
            self._stopping.set()  # the loop is closed

    # --- on the loop ----------------------------------------------------------------------------------------------------------

    def _deliver(self, offers: Offers) -> None:
        assert self._listener is not None
        self._looked_at += len(offers.here)
        self._listener.offers(offers.here, self._made - self._looked_at, offers.dropped)


def _not_sent(error: BaseException) -> None:
    _log.warning("offer_not_sent", error=repr(error), action="a gateway needs WRITE on the commands topic for the fast path")
