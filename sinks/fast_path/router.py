"""The router of a gateway process: it reads `inflight.messages` from the end, and offers each message to its client's connection.

A thread of its own has the consumer. Offers for connections of this process cross over to the event loop, all of one poll at
once; those for other gateways go to their partition of the commands topic. A router decides nothing, and may lose or delay any
offer: the session reads every message all the same, and an offer says what came before it.

1. Routers share the partitions out as a consumer group, and commit nothing: where one begins, its memory begins (RouterMemory).
2. A router that has fallen behind goes on at the end. What is old has been handled by the micro-batches, which read the same log.
3. While the gateway is under pressure nothing is offered, here or elsewhere. In a burst, which is a poll that returns as much as
   it can, nothing is offered to a connection of this process that could only hold it (FastPathState): micro-batches deliver a
   burst with less work.
4. That does not hold for messages of few clients, of which each has many: a micro-batch takes as long for each part of them. The
   router then waits for the gateway, and what it has not read waits in the log.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from sinks.fast_path.offering import LocalConnection, OfferRouter, Offers, are_for_few
from sinks.fast_path.route_table import RouteReader, RouteTable
from sinks.fast_path.router_memory import RouterMemory
from sinks.kafka.group_consumer import GroupConsumer, MemberFenced, PartitionsAssigned
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.librdkafka import ClientErrors, client_config, new_client
from sinks.kafka.partitioning import partition_of
from sinks.routing.settings import FastPathSettings
from state.commands import CommandBatch, OfferPublish
from state.model import ClientId, Position, numbered_partition
from state.records.commands import encode_command_batch
from state.records.routes import Route

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.2
_RESTART_PAUSE_S: Final = 1.0
_FETCH_WAIT_MS: Final = 500
_MOST_RECORDS: Final = 100
"""Records of one poll: the event loop handles them in one go."""
_FEW_WAITING: Final = 200
"""Offers that the gateway may have before it, for the router to read on."""


class OfferListener(Protocol):
    """A process that holds connections."""

    def connection_of(self, client_id: ClientId) -> LocalConnection | None:
        """The newest connection here on which this client has logged in, None = there is none. On any thread."""

    @property
    def is_under_pressure(self) -> bool:
        """Safe on any thread."""

    def offers(self, offers: Offers, waiting: int) -> None:
        """Takes what was read for connections here, on the loop.

        Args:
            waiting: How many offers follow.
        """


class Router(Protocol):
    """Reads messages, and offers them."""

    def start(self, listener: OfferListener) -> None: ...

    def read_to(self, client_id: ClientId) -> Position | None:
        """Returns up to where this process has read the partition of a client's messages; None = it does not. On any thread."""

    def newest(self, client_id: ClientId) -> Position | None:
        """Returns a position that no message of the client is above, of those that were read here; None = none is. On any
        thread."""

    async def close(self, timeout_s: float) -> None: ...


class KafkaRouter:
    """Router on a consumer in a thread of its own.

    Args:
        host: Settings of the gateway.
    """

    def __init__(self, settings: FastPathSettings, host: HostSettings) -> None:
        self._settings = settings
        self._commands_topic = host.commands_topic
        self._membership = {"group": settings.group_id, "group_instance_id": host.group_instance_id}
        self._new_consumer = partial(
            GroupConsumer,
            settings.messages_topic,
            bootstrap_servers=host.bootstrap_servers,
            group_id=settings.group_id,
            group_instance_id=host.group_instance_id,
            session_timeout_ms=host.group_session_timeout_ms,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            options=host.kafka_options,
            resumes=False,
        )
        self._client_config = partial(client_config, host.bootstrap_servers, host.kafka_options)
        self._memory = RouterMemory()
        self._routes = RouteTable()
        self._route_reader = RouteReader(
            self._routes,
            topic=settings.routes_topic,
            messages_topic=settings.messages_topic,
            group_id=settings.group_id,
            config=self._client_config,
        )
        self._owned: frozenset[int] = frozenset()
        self._of = 0
        """So many partitions the topic had when the last one came; 0 = not asked."""
        self._stopping = threading.Event()
        self._made = 0  # offers handed to the loop; on the thread
        self._looked_at = 0  # … and looked at; on the loop
        self._handled = threading.Event()
        """Set when the loop has looked at offers."""
        self._are_for_few = False
        """The messages of the newest poll were for few clients."""
        self._producer: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: OfferListener | None = None
        self._thread = threading.Thread(target=self._run, name="inflight-router", daemon=True)

    def start(self, listener: OfferListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._route_reader.start()
        self._thread.start()

    def read_to(self, client_id: ClientId) -> Position | None:
        return self._position(client_id.encode(), lambda partition, _: self._memory.read_to(partition))

    def newest(self, client_id: ClientId) -> Position | None:
        return self._position(client_id.encode(), self._memory.newest)

    def _position(self, key: bytes, offset_of: Callable[[int, bytes], int | None]) -> Position | None:
        """Returns an offset of the client's partition, by the partition and the key."""
        generation, count = self._routes.generation, self._of
        if generation is None or not count:
            return None
        partition = partition_of(key, count)
        offset = offset_of(partition, key)
        return None if offset is None else Position(numbered_partition(partition, generation), offset)

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
            except MemberFenced:  # joining again would fence the other one, and the command tail ends the process
                _log.warning("router_fenced", **self._membership)
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, a new consumer is the cure
                _log.warning("router_failed", error=repr(error), action="a new consumer starts in a second")
            self._own(frozenset(), 0)
            self._stopping.wait(_RESTART_PAUSE_S)

    def _consume(self) -> None:
        assert self._listener is not None
        offer_router = OfferRouter(
            self._memory, self._routes, self._listener.connection_of, max_payload_bytes=self._settings.max_payload_bytes
        )
        consumer = self._new_consumer()
        try:
            while not self._stopping.is_set():
                batches = consumer.poll(_POLL_S, _MOST_RECORDS)
                is_slow = self._follow_assignment(consumer)
                is_full = sum(map(len, batches.values())) >= _MOST_RECORDS
                self._are_for_few = is_full and are_for_few([*chain.from_iterable(batches.values())])
                in_burst = is_full and not self._are_for_few
                offers, under_pressure = Offers(in_burst=in_burst, is_slow=is_slow), self._is_under_pressure()
                for partition, records in batches.items():
                    if partition not in self._owned:
                        continue
                    if self._skip_if_behind(consumer, partition, records[-1].offset):
                        offers.is_slow = True
                    else:
                        offer_router.read(partition, records, offers, under_pressure=under_pressure)
                offers.is_slow |= offers.unknown > 0 and not self._is_alone
                for offer in offers.elsewhere:
                    self._send(*offer)
                self._hand_over(offers)
                if self._are_for_few:
                    self._await_gateway()
                if self._producer is not None:
                    self._producer.poll(0)
        finally:
            if self._producer is not None:
                self._producer.purge()
                self._producer = None
            consumer.close()

    @property
    def _is_alone(self) -> bool:
        """Returns True if no other router reads a partition: then no other gateway has connections, or has had for long."""
        return 1 < self._of == len(self._owned)

    def _follow_assignment(self, consumer: GroupConsumer) -> bool:
        """Returns True if partitions were assigned: messages before the place where this router begins may have no reader."""
        if not consumer.changes:
            return False
        is_new = False
        owned, of = self._owned, self._of
        while consumer.changes:
            change = consumer.changes.popleft()
            if isinstance(change, PartitionsAssigned):
                for partition, next_offset in change.starts.items():
                    self._memory.assigned(partition, next_offset)
                owned |= change.starts.keys()
                of, is_new = 0, True
            else:
                for partition in change.partitions:
                    self._memory.revoked(partition)
                owned -= change.partitions
        self._own(owned, of or consumer.partition_count())
        return is_new

    def _own(self, partitions: frozenset[int], of: int) -> None:
        for partition in self._owned - partitions:
            self._memory.revoked(partition)
        self._owned, self._of = partitions, of
        self._route_reader.follow(partitions, of)

    def _skip_if_behind(self, consumer: GroupConsumer, partition: int, last: int) -> bool:
        """Skips to the end of a partition if the router is too far behind.

        Args:
            last: Offset of the newest record that was read.

        Returns:
            True if it was too far behind. The records read are too old to be offered, and the next poll begins at the end.
        """
        settings = self._settings
        max_lag = settings.max_lag_of_few if self._are_for_few else settings.max_lag
        if consumer.known_end(partition) - last - 1 <= max_lag:
            return False
        self._memory.assigned(partition, consumer.skip_to_end(partition))
        return True

    def _await_gateway(self) -> None:
        """Waits until the gateway has handled most of the offers, for as long as a poll may take."""
        deadline_s = time.monotonic() + _POLL_S
        while self._made - self._looked_at > _FEW_WAITING and time.monotonic() < deadline_s and not self._stopping.is_set():
            self._handled.wait(_POLL_S)
            self._handled.clear()

    def _is_under_pressure(self) -> bool:
        assert self._listener is not None
        return self._listener.is_under_pressure or self._made - self._looked_at > self._settings.pressure_offers

    def _send(self, client_id: ClientId, offer: OfferPublish, route: Route) -> None:
        """Writes an offer for another gateway to the commands topic."""
        if self._producer is None:
            # What is lost on the way to another gateway costs latency only: no wait for replicas, no repetition.
            config = {**self._client_config(ClientErrors()), "acks": 1, "retries": 0, "linger.ms": 0, "message.timeout.ms": 1_000}
            self._producer = new_client(Producer, config)
        key, value = client_id.encode(), encode_command_batch(CommandBatch(client_id=client_id, commands=(offer,)))
        try:
            self._producer.produce(self._commands_topic, value, key, route.partition, on_delivery=_sent_or_not)
        except (KafkaException, BufferError) as error:
            _not_sent(str(error))

    def _hand_over(self, offers: Offers) -> None:
        if not (offers.here or offers.dropped or offers.skipped or offers.closed or offers.is_slow):
            return
        assert self._loop is not None
        self._made += len(offers.here)
        try:
            self._loop.call_soon_threadsafe(self._deliver, offers)
        except RuntimeError:
            self._stopping.set()  # the call failed because the loop is closed

    # --- on the loop ----------------------------------------------------------------------------------------------------------

    def _deliver(self, offers: Offers) -> None:
        assert self._listener is not None
        self._looked_at += len(offers.here)
        self._handled.set()
        self._listener.offers(offers, self._made - self._looked_at)


def _sent_or_not(error: KafkaError | None, _message: object) -> None:
    if error is not None:
        _not_sent(error.str())


def _not_sent(error: str) -> None:
    _log.warning("offer_not_sent", error=error, action="a gateway needs WRITE on the commands topic for the fast path")
