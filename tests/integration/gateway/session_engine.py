"""Runs the real session instead of the engine, in this process, without Spark and Kafka but with their behaviour.

Events wait for the next micro-batch. Some micro-batches are executed twice, and the copy of their commands is delivered, too. A
partition of the commands topic without an owner keeps its records for its next owner, from the first unread one.
"""

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from sinks.kafka.append import Confirmation, Headers
from sinks.kafka.tail import CommandListener
from state.commands import Command, CommandBatch, GatewayCommand, SendReceipt
from state.events import DeadlineReached, Event, MessageSubmitted
from state.model import Message
from state.records.commands import encode_command_batch
from state.records.events import decode_events
from state.session import Session
from state.settings import SessionSettings
from tests.integration.gateway.gateway_fakes import carry_out
from tests.support.waiting import DEADLINE_S

BATCH_S = 0.1
EXECUTED_TWICE = 0.1


class SessionEngine:
    """Runs all sessions on one loop. records: all commands but those for gateways and bridges, in order."""

    def __init__(self, settings: SessionSettings, partitions: int) -> None:
        self.outcomes: dict[str, str] = {}
        self.records: list[Command] = []
        self.receipts_twice: list[str] = []
        self.partitions = partitions
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._events: dict[str, list[Event]] = {}
        self._owners: dict[int, Port] = {}
        self._unread: dict[int, list[bytes]] = defaultdict(list)
        self._ports: list[Port] = []
        self._dice = random.Random(1)

    async def run(self) -> None:
        """Executes micro-batches until cancelled."""
        while True:
            await asyncio.sleep(BATCH_S)
            self._micro_batch(int(time.time() * 1_000))

    def submit(self, client_id: str, message: Message) -> None:
        self._events.setdefault(client_id, []).append(MessageSubmitted(message=message, explicit_id=True))

    def happened(self, client_id: str, value: bytes) -> None:
        self._events.setdefault(client_id, []).extend(decode_events(value))

    def joined(self, port: "Port") -> None:
        self._ports.append(port)
        self._share_out()

    def left(self, port: "Port") -> None:
        if port in self._ports:
            self._ports.remove(port)
            self._share_out()

    def owned_by(self, port: "Port") -> frozenset[int]:
        return frozenset(partition for partition, owner in self._owners.items() if owner is port)

    def _share_out(self) -> None:
        """Assigns each partition to one of the present ports."""
        for partition in range(self.partitions):
            old = self._owners.get(partition)
            new = self._ports[partition % len(self._ports)] if self._ports else None
            if new is old:
                continue
            if old is not None and old in self._ports and old.listener is not None:
                old.listener.partitions_revoked(frozenset((partition,)))
            self._owners.pop(partition, None)
            if new is not None:
                self._owners[partition] = new
                new.assigned(partition, self._unread.pop(partition, []))

    def _micro_batch(self, now_ms: int) -> None:
        events, self._events = self._events, {}
        for client_id, session in self._sessions.items():
            deadline_ms = session.next_deadline_ms()
            if client_id not in events and deadline_ms is not None and deadline_ms <= now_ms:
                events[client_id] = [DeadlineReached()]
        for client_id, its_events in events.items():
            session = self._sessions.setdefault(client_id, Session(client_id=client_id, settings=self._settings))
            by_partition: dict[int, list[GatewayCommand]] = defaultdict(list)
            for command in session.handle_all(its_events, now_ms=now_ms):
                if not isinstance(command, GatewayCommand):
                    self.records.append(command)
                if isinstance(command, SendReceipt):
                    message_id = command.receipt.message_id
                    if message_id in self.outcomes:
                        self.receipts_twice.append(message_id)
                    self.outcomes[message_id] = command.receipt.outcome
                elif isinstance(command, GatewayCommand):
                    by_partition[command.partition].append(command)
            for partition, commands in by_partition.items():
                value = encode_command_batch(CommandBatch(client_id=client_id, commands=tuple(commands)))
                copies = 2 if self._dice.random() < EXECUTED_TWICE else 1
                owner = self._owners.get(partition)
                if owner is None:
                    self._unread[partition] += [value] * copies
                else:
                    owner.deliver(partition, [value] * copies)


class Port:
    """EventLog and CommandTail of one bridge. `die`: from now on nothing of it gets anywhere, as after SIGKILL."""

    def __init__(self, engine: SessionEngine) -> None:
        self.listener: CommandListener | None = None
        self._engine = engine
        self._is_dead = False

    def die(self) -> None:
        self._is_dead = True

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Headers | None, done: Confirmation, **_: Any) -> None:
        if self._is_dead:
            return
        if topic.endswith("events"):
            self._engine.happened(key.decode(), value or b"")
        asyncio.get_running_loop().call_soon(done, None)

    def start(self, listener: CommandListener) -> None:
        self.listener = listener
        self._engine.joined(self)

    def leave(self) -> None:
        owned = self._engine.owned_by(self)
        self._engine.left(self)
        if self.listener is not None and not self._is_dead:
            self.listener.partitions_revoked(owned)

    def assigned(self, partition: int, unread: list[bytes]) -> None:
        if self.listener is not None and not self._is_dead:
            self.listener.partitions_assigned(frozenset((partition,)))
            if unread:
                carry_out(self.listener, partition, unread)

    def deliver(self, partition: int, values: list[bytes]) -> None:
        if self.listener is not None and not self._is_dead:
            carry_out(self.listener, partition, values)

    async def close(self, timeout_s: float) -> None:
        self._engine.left(self)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yields an event loop that runs in a thread of its own."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on the loop from another thread. Returns when the coroutine is done."""
    asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE_S)
