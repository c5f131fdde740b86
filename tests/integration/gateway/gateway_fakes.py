"""Runs a gateway in a thread, on an in-process stand-in for Kafka and the engine. Nothing here outlives the process.

`running_gateway` runs the real gateway on real sockets. `FakeKafka` keeps every record and confirms it, unless told to hold or to
fail it. The engine is scripted: it accepts every connection as `accepting` says and otherwise does what the test tells it.

Tests that share a gateway have client ids of their own, and look at, hold and fail only the records of these: what another
test's device has to say may come late.
"""

import asyncio
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sinks.fast_path.router import Router
from sinks.health import LoopHealth
from sinks.kafka.append import AppendFailed, Confirmation, Headers
from sinks.kafka.tail import CommandListener
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.process import SettingsSource, run_gateway
from sinks.mqtt.settings import GatewaySettings
from state.commands import GatewayCommand
from tests.support.background import in_thread
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import DEADLINE_S

T = TypeVar("T")


@dataclass
class Record:
    topic: str
    key: bytes
    value: bytes
    headers: Headers | None

    def header(self, name: str) -> bytes | None:
        return dict(self.headers or []).get(name)


def carry_out(listener: CommandListener, partition: int, values: list[bytes]) -> None:
    """Applies commands as a tail does that is certain of its partitions."""
    for action in listener.commands(partition, values):
        action()


class FakeKafka(ScriptedEngine):
    """EventLog and CommandTail in one, for one gateway."""

    def __init__(self, partitions: frozenset[int]) -> None:
        super().__init__()
        self.partitions = partitions
        self.records: list[Record] = []
        self.holding: Callable[[Record], bool] = lambda record: False
        self.failing: Callable[[Record], bool] = lambda record: False
        self._held: list[Confirmation] = []
        self._listener: CommandListener | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    # EventLog, on the loop
    def append(self, topic: str, key: bytes, value: bytes | None, headers: Headers | None, done: Confirmation, **_: Any) -> None:
        record = Record(topic, key, value or b"", headers)
        assert self.loop is not None
        if self.failing(record):
            self.loop.call_soon(done, AppendFailed("told to fail"))
            return
        self.records.append(record)
        if self.holding(record):
            self._held.append(done)
        else:
            self.loop.call_soon(done, None)
        if topic.endswith("events"):
            self.heard(key.decode(), record.value)

    async def close(self, timeout_s: float) -> None:
        pass

    # CommandTail, on the loop
    def start(self, listener: CommandListener) -> None:
        self._listener = listener
        if self.partitions:
            asyncio.get_running_loop().call_soon(listener.partitions_assigned, self.partitions)

    def leave(self) -> None:
        assert self._listener is not None
        asyncio.get_running_loop().call_soon(self._listener.partitions_revoked, self.partitions)

    # ScriptedEngine, on the loop
    def soon(self, action: Callable[[], None]) -> None:
        assert self.loop is not None
        self.loop.call_soon(action)

    def write(self, partition: int, client_id: str, value: bytes) -> None:
        assert self._listener is not None
        carry_out(self._listener, partition, [value])

    # For tests, from their thread
    def command(self, client_id: str, kind: type[GatewayCommand], *, number: bool = True, **fields: Any) -> None:
        self.on_loop(super().command, client_id, kind, number=number, **fields)

    def deliver(self, partition: int, values: list[bytes]) -> None:
        assert self._listener is not None
        self.on_loop(carry_out, self._listener, partition, values)

    def revoke(self, *partitions: int) -> None:
        assert self._listener is not None
        self.on_loop(self._listener.partitions_revoked, frozenset(partitions))

    def assign(self, *partitions: int) -> None:
        assert self._listener is not None
        self.on_loop(self._listener.partitions_assigned, frozenset(partitions))

    def release(self) -> None:
        """Confirms the held records, and holds no more."""

        def confirm() -> None:
            self.holding = lambda record: False
            held, self._held = self._held, []
            for done in held:
                done(None)

        self.on_loop(confirm)

    def on_loop(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs before this returns; what it raises is raised here."""
        assert self.loop is not None

        async def call() -> None:
            function(*args, **kwargs)

        asyncio.run_coroutine_threadsafe(call(), self.loop).result(DEADLINE_S)

    def records_of(self, client_id: str) -> list[Record]:
        return [record for record in list(self.records) if record.key == client_id.encode()]

    def uplink(self, client_id: str = "") -> list[Record]:
        """The publications in the log. client_id: of one device; "" = of all, for a test that has the gateway for itself."""
        records = self.records_of(client_id) if client_id else list(self.records)
        return [record for record in records if record.topic.endswith("uplink")]


@dataclass
class GatewayUnderTest:
    kafka: FakeKafka
    counters: GatewayCounters
    host: str = ""
    port: int = 0
    stop: Callable[[], object] = lambda: None
    addresses: list[tuple[str, int]] = field(default_factory=list)
    """The address of each listener, in the order of the settings."""
    reload: Callable[[], object] = lambda: None
    hurry: Callable[[], object] = lambda: None
    health: LoopHealth = field(default_factory=LoopHealth)

    def socket(self) -> "RawClient":
        return RawClient(socket.create_connection((self.host, self.port), timeout=DEADLINE_S))


class RawClient:
    """A device made of bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes | str) -> None:
        """Sends bytes; a text is hexadecimal."""
        self.socket.sendall(bytes.fromhex(data) if isinstance(data, str) else data)

    def expect(self, data: bytes | str) -> None:
        """Checks that exactly these bytes come next."""
        expected = bytes.fromhex(data) if isinstance(data, str) else data
        received = self.read(len(expected))
        assert received == expected, f"got {received.hex(' ')}, expected {expected.hex(' ')}"

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            received = self.socket.recv(65_536)
            if not received:
                break
            self._buffer += received
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def packet(self) -> bytes:
        """The next whole packet, b"" at the end of the stream."""
        header = self.read(2)
        if len(header) < 2:
            return b""
        length, shift, digit = header[1] & 0x7F, 7, header[1]
        while digit & 0x80:
            more = self.read(1)
            header += more
            digit = more[0]
            length |= (digit & 0x7F) << shift
            shift += 7
        return header + self.read(length)

    def rest(self) -> bytes:
        """Returns everything up to the end of the stream. A reset counts as an end."""
        data, self._buffer = self._buffer, b""
        try:
            while received := self.socket.recv(65_536):
                data += received
        except ConnectionError:
            pass
        return data

    def expect_closed(self) -> None:
        assert self.rest() == b""

    def has_more(self, seconds: float) -> bool:
        """True if bytes can be read, or arrive within that time."""
        return bool(self._buffer) or not self.is_silent(seconds)

    def is_silent(self, seconds: float = 0.1) -> bool:
        """True if no byte arrives within `seconds`. Bytes that do arrive are kept for the next read."""
        assert not self._buffer
        self.socket.settimeout(seconds)
        try:
            self._buffer = self.socket.recv(65_536)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(DEADLINE_S)
        return False


@contextmanager
def running_gateway(
    settings: GatewaySettings | None = None,
    partitions: frozenset[int] = frozenset({0, 1}),
    *,
    router: Router | None = None,
    configuration: SettingsSource | None = None,
) -> Iterator[GatewayUnderTest]:
    """A gateway on a free loopback port; stopped, and checked to have stopped, at the end."""
    gateway = GatewayUnderTest(FakeKafka(partitions), GatewayCounters())

    async def main(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        loop = gateway.kafka.loop = asyncio.get_running_loop()
        hurry, reload = asyncio.Event(), asyncio.Event()
        gateway.hurry = lambda: loop.call_soon_threadsafe(hurry.set)
        gateway.reload = lambda: loop.call_soon_threadsafe(reload.set)

        def on_ready(host: str, port: int) -> None:
            gateway.host, gateway.port = host, port
            ready()

        await run_gateway(
            dataclasses.replace(settings or GatewaySettings(), host="127.0.0.1", port=0),
            gateway.kafka,
            gateway.kafka,
            on_ready=on_ready,
            stop=stop,
            hurry=hurry,
            counters=gateway.counters,
            router=router,
            reload=reload,
            configuration=configuration,
            on_listening=gateway.addresses.extend,
            health=gateway.health,
        )

    with in_thread(main, "gateway under test") as gateway.stop:
        yield gateway


@contextmanager
def standing_still(gateway: GatewayUnderTest) -> Iterator[threading.Event]:
    """Stops the gateway's loop until the event is set, and at the end."""
    goes_on, stands_still = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands_still.set()
        goes_on.wait(DEADLINE_S)

    assert gateway.kafka.loop is not None
    gateway.kafka.loop.call_soon_threadsafe(stand_still)
    assert stands_still.wait(DEADLINE_S)
    try:
        yield goes_on
    finally:
        goes_on.set()
