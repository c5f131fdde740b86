"""Gateways in processes of their own, for tests that freeze, kill and misdate them, and real sessions behind a real Kafka.

The child is this module, run with a directory that has its settings, pickled. It writes the file `port` when devices can
connect. It writes its number of partitions of commands to the file `partitions`. When it makes a connection id, it reads from the
file `clock` how many seconds its clock is ahead.
"""

import asyncio
import contextlib
import math
import pickle
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import uvloop
from kafka import KafkaConsumer, KafkaProducer

from inflight.local.child_process import start_child
from sinks.host.broker_clock import BrokerClock
from sinks.kafka.kafka_python import abandon, subscribe
from sinks.mqtt import process
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.process import serve
from sinks.mqtt.settings import GatewaySettings
from state.commands import Command, CommandBatch, GatewayCommand
from state.events import DeadlineReached, Event
from state.records.commands import encode_command_batch
from state.records.events import decode_events
from state.session import Session
from tests.integration.gateway.gateway_fakes import GatewayUnderTest
from tests.support.waiting import DEADLINE_S, until, wait_until

_BATCH_MS: Final = 50


@dataclass
class GatewayProcess:
    """under_test: for sockets; its `kafka` and `counters` are in the other process."""

    child: "subprocess.Popen[bytes]"
    under_test: GatewayUnderTest
    directory: Path

    @property
    def pid(self) -> int:
        return self.child.pid

    def set_clock_ahead(self, seconds: int) -> None:
        (self.directory / "clock").write_text(str(seconds))

    def partitions(self) -> int:
        return int((self.directory / "partitions").read_text())


def await_shared(first: GatewayProcess, second: GatewayProcess) -> None:
    """Waits until each gateway has two of four partitions. A gateway closes its connections in a partition that it hands over."""
    wait_until(lambda: first.partitions() == second.partitions() == 2, "each gateway has its partitions")


@contextlib.contextmanager
def gateway_process(settings: GatewaySettings, directory: Path, *, clock_ahead_s: int = 0) -> Iterator[GatewayProcess]:
    """Runs a gateway process; kills it at the end, even when it is frozen."""
    directory.mkdir()
    (directory / "clock").write_text(str(clock_ahead_s))
    port, log = directory / "port", directory / "log"
    with log.open("wb") as output:
        (directory / "settings").write_bytes(pickle.dumps(settings))
        command = [sys.executable, "-m", "tests.integration.gateway.gateway_process", str(directory)]
        child = start_child(command, stdout=output, stderr=output)
        try:
            wait_until(port.exists, lambda: f"the gateway is ready: {log.read_text()[-2_000:]}")
            address = GatewayUnderTest(None, None, "127.0.0.1", int(port.read_text()), child.terminate)  # type: ignore[arg-type]
            yield GatewayProcess(child, address, directory)
        finally:
            child.kill()
            child.wait()


class EngineOnKafka:
    """Reads the events topic in a thread, and writes commands. Neither Spark nor a checkpoint."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__()
        self.settings = settings
        self._stop = threading.Event()
        self._started = threading.Event()
        self._producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        abandon(self._producer)  # a test may have killed the broker

    def micro_batch(self, records: list[tuple[str, bytes]]) -> None:
        """records: what has come since the last call, by client; also called when nothing has."""
        raise NotImplementedError

    def write(self, partition: int, client_id: str, value: bytes) -> None:
        self._producer.send(self.settings.commands_topic, value=value, key=client_id.encode(), partition=partition)

    def _run(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.settings.bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=20, group_id=None
        )
        subscribe(consumer, [self.settings.events_topic])
        self._started.set()
        while not self._stop.is_set():
            polled = consumer.poll(timeout_ms=_BATCH_MS).values()
            self.micro_batch([(record.key.decode(), record.value) for records in polled for record in records])
        consumer.close()


class SessionsOnKafka(EngineOnKafka):
    """Runs every client's session in micro-batches. said: what the sessions have sent to everybody but gateways."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__(settings)
        self.said: list[tuple[str, Command]] = []
        self.sessions: dict[str, Session] = {}

    def of(self, client_id: str, kind: type[Any]) -> list[Any]:
        return [command for client, command in list(self.said) if client == client_id and isinstance(command, kind)]

    def micro_batch(self, records: list[tuple[str, bytes]]) -> None:
        events: dict[str, list[Event]] = defaultdict(list)
        for client_id, value in records:
            events[client_id] += decode_events(value)
        now_ms = int(time.time() * 1_000)
        for client_id, session in self.sessions.items():
            deadline_ms = session.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                events[client_id] = events.get(client_id) or [DeadlineReached()]
        for client_id, its_events in events.items():
            self._activate(client_id, its_events, now_ms)

    def _activate(self, client_id: str, events: list[Event], now_ms: int) -> None:
        session = self.sessions.setdefault(client_id, Session(client_id=client_id, settings=self.settings.session_of(client_id)))
        for command in session.handle_all(events, now_ms=now_ms):
            if isinstance(command, GatewayCommand):
                value = encode_command_batch(CommandBatch(client_id=client_id, commands=(command,)))
                self.write(command.partition, client_id, value)
            else:
                self.said.append((client_id, command))


def main() -> None:
    directory = Path(sys.argv[1])
    settings: GatewaySettings = pickle.loads((directory / "settings").read_bytes())

    def clock_ns() -> int:
        return time.time_ns() + int((directory / "clock").read_text()) * 1_000_000_000

    def write(name: str, number: int) -> None:
        whole = directory / f"{name}.new"
        whole.write_text(str(number))
        whole.rename(directory / name)

    process.BrokerClock = partial(BrokerClock, wall_ns=clock_ns)  # type: ignore[misc,assignment]

    async def run() -> None:
        counters = GatewayCounters()

        async def tell_partitions() -> None:
            while True:
                owned = counters.partitions_owned
                write("partitions", owned)
                await until(lambda owned=owned: counters.partitions_owned != owned, "other partitions", within_s=math.inf)

        telling = asyncio.create_task(tell_partitions())
        await serve(settings, on_ready=lambda _, port: write("port", port), stop=asyncio.Event(), counters=counters)
        telling.cancel()

    uvloop.run(run())


if __name__ == "__main__":
    main()
