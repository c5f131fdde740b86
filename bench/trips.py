"""Traces four trips through the gateway and the session, with a fake log and transport: `python -m bench.trips`.

It prints a row for each trip: the files entered, the calls of functions of `state/` and `sinks/`, and the moves (calls of a
function of another file than the previous call). Further columns count the moves to connection.py before the first record, and
the calls before the first bytes for the device. `python -m bench.trips --cost` prints the gateway's CPU time for a message, and
the memory of a connection.

The session is called directly: Spark and Kafka's clients are not part of a trip.
"""

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec
import structlog

import sinks
from sinks.fast_path.offering import OfferRouter, Offers
from sinks.fast_path.route_table import RouteTable
from sinks.fast_path.router_memory import RouterMemory
from sinks.kafka.append import Confirmation, Headers
from sinks.mqtt.access.authenticator import auth_policy_of
from sinks.mqtt.gateway import Gateway
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from state.commands import Command, CommandBatch, GatewayCommand, SendPublish, SendReceipt
from state.model import Position, QoS
from state.records.commands import encode_command_batch
from state.records.events import completed, decode_events
from state.records.messages import message_event
from state.records.record import Header
from state.session import Session
from state.settings import RecordLimits, SessionSettings

ROOT: Final = Path(sinks.__file__).parent.parent
_OURS: Final = tuple(str(ROOT / package) + "/" for package in ("state", "sinks"))
_CONNECTION: Final = "sinks/mqtt/connection/connection.py"
_NOT_FUNCTIONS: Final = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"))
_CONNACK_SIZE: Final = 4
_NO_RATES: Final = DeviceLimits(max_packet_rate=0, max_byte_rate=0, max_connect_rate=0)
_SETTINGS: Final = GatewaySettings(lease_ms=3_600_000, device_limits=_NO_RATES)
_SESSION: Final = SessionSettings()
_HEADERS: Final = (("mqtt-topic", b"t"), ("mqtt-qos", b"1"))


# --- the trace ------------------------------------------------------------------------------------------------------------------


class Trace:
    """Counts calls of functions in `state/` and `sinks/` while it is a context.

    before_record: entries of connection.py before the first record. before_bytes: calls before the first bytes for the device.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls = self.moves = self.entries = 0
        self._last = ""
        self.before_record: int | None = None
        self.before_bytes: int | None = None

    def __enter__(self) -> "Trace":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def appended(self) -> None:
        if self.before_record is None:
            self.before_record = self.entries

    def written(self) -> None:
        if self.before_bytes is None:
            self.before_bytes = self.calls

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(_OURS) or frame.f_code.co_name in _NOT_FUNCTIONS:
            return
        self.calls += 1
        self.files.add(name)
        if name != self._last:
            self._last = name
            self.moves += 1
            self.entries += name.endswith(_CONNECTION)


# --- a gateway, a device and a session ------------------------------------------------------------------------------------------


class Append(NamedTuple):
    topic: str
    key: bytes
    value: bytes
    headers: Headers | None
    done: Confirmation


class Log:
    """An EventLog that holds the appended records until `confirm`."""

    def __init__(self) -> None:
        self.waiting: list[Append] = []
        self.on_append: Callable[[], None] = lambda: None

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Headers | None, done: Confirmation, **_: Any) -> None:
        self.on_append()
        self.waiting.append(Append(topic, key, value or b"", headers, done))

    def confirm(self) -> list[Append]:
        waiting, self.waiting = self.waiting, []
        for append in waiting:
            append.done(None)
        return waiting

    async def close(self, timeout_s: float) -> None:
        pass


class Transport(asyncio.Transport):
    """Keeps the written bytes; its device reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: Any) -> None:
        self.on_write()
        self.data += data

    def take(self) -> bytes:
        data = bytes(self.data)
        self.data.clear()
        return data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Record(NamedTuple):
    """Returns the record as a consumer of `inflight.messages` gets it."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    offset: int
    timestamp: int


class Rig:
    """A gateway with one partition."""

    def __init__(self) -> None:
        self.log = Log()
        self.gateway = Gateway(_SETTINGS, self.log, GatewayCounters())
        memory = RouterMemory()
        memory.assigned(0, 0)
        self.router = OfferRouter(memory, RouteTable(), self.gateway.connection_of, max_payload_bytes=65_536)
        self.next_offset = 0

    async def start(self) -> None:
        self.gateway.start()
        self.log.confirm()
        self.gateway.partitions_assigned(frozenset({0}))
        await turn()

    def device(self, client_id: str) -> "Device":
        return Device(self, client_id)

    def read_message(self, client_id: str) -> Offers:
        """Lets the router read the next message, which is for this client."""
        offers, now_ms = Offers(), time.time_ns() // 1_000_000
        record = Record(client_id.encode(), b"p", _HEADERS, self.next_offset, now_ms)
        self.next_offset += 1
        self.router.read(0, [record], offers, under_pressure=False)
        return offers

    def offer(self, client_id: str) -> None:
        """Lets the router read the next message, and passes its offers to the gateway."""
        self.gateway.offers(self.read_message(client_id), 0)


class Device:
    """A device, its connection and its session."""

    def __init__(self, rig: Rig, client_id: str) -> None:
        self.rig, self.client_id = rig, client_id
        self.transport = Transport()
        self.session = Session(client_id=client_id, settings=_SESSION)
        self.receipts: list[SendReceipt] = []
        self.protocol = rig.gateway.new_socket(auth_policy_of(_SETTINGS.plain_listener, _SETTINGS))
        self.protocol.connection_made(self.transport)
        self._now_ms = time.time_ns() // 1_000_000

    def connect(self) -> None:
        name = self.client_id.encode()
        body = b"\x00\x04MQTT\x04\x00\x00\x3c" + len(name).to_bytes(2) + name
        self.protocol.data_received(bytes((0x10, len(body))) + body)

    async def hear(self) -> None:
        """Confirms the records; the session reads the events, and the gateway its commands."""
        for append in self.rig.log.confirm():
            if append.topic == _SETTINGS.events_topic:
                self.handle(decode_events(append.value))
        await turn()

    def submit(self) -> None:
        """Lets the session read the next message. The router has read it too, but the gateway gets no offer."""
        self.rig.read_message(self.client_id)
        self.read_message()

    def read_message(self) -> None:
        """Lets the session read the newest message of the router."""
        position = Position(0, self.rig.next_offset - 1)
        headers = [Header(name, value) for name, value in _HEADERS]
        event = message_event(headers, b"p", accepted_ms=self._now_ms, default_message_id=str(position), limits=RecordLimits())
        self.handle((msgspec.structs.replace(event, position=position),))

    def handle(self, events: Iterable[Any]) -> None:
        now_ms = self._now_ms
        events = [completed(event, topic="e", partition=0, offset=0, accepted_ms=now_ms) for event in events]
        self.carry_out(self.session.handle_all(events, now_ms=now_ms))

    def carry_out(self, commands: Iterable[Command]) -> None:
        mine = tuple(command for command in commands if isinstance(command, GatewayCommand))
        for command in commands:
            if isinstance(command, SendReceipt):
                self.receipts.append(command)
        if mine:
            value = encode_command_batch(CommandBatch(client_id=self.client_id, commands=mine, code="c"))
            for action in self.rig.gateway.commands(0, [value]):
                action()

    async def acknowledge(self) -> None:
        """Answers the packets as the device, and lets the session read the answers."""
        await turn()
        publish = self.transport.take()
        assert publish[0] == 0x32, publish
        self.protocol.data_received(b"\x40\x02" + publish[5:7])
        await turn()
        await self.hear()

    async def get_message(self) -> None:
        """Delivers the first message, with which the session opens the fast path."""
        self.submit()
        await self.acknowledge()
        self.receipts.clear()

    async def connected(self) -> "Device":
        self.connect()
        for _ in range(3):
            await turn()
            await self.hear()
        assert self.transport.take()[0] == 0x20
        return self


async def turn() -> None:
    """Runs one turn of the event loop, and its scheduled calls."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


# --- the trips ------------------------------------------------------------------------------------------------------------------


async def _connect(device: Device) -> None:
    device.connect()
    await turn()
    await device.hear()
    assert device.transport.data[0] == 0x20


async def _slow(device: Device) -> None:
    device.submit()
    await device.acknowledge()
    assert device.receipts


async def _fast(device: Device) -> None:
    device.rig.offer(device.client_id)
    await turn()
    for append in device.rig.log.confirm():
        (event,) = decode_events(append.value)
        device.handle((event,))
    await device.acknowledge()
    assert device.receipts
    assert device.rig.gateway.counters.fast_publishes_sent == 1


async def _publish(device: Device) -> None:
    device.protocol.data_received(b"\x32\x06\x00\x01t\x00\x01p")
    await turn()
    device.rig.log.confirm()
    await turn()
    assert device.transport.take() == b"\x40\x02\x00\x01"


async def _trips() -> None:
    print(f"{'trip':44} {'files':>6} {'calls':>6} {'moves':>6} {'entries before record':>22} {'calls before bytes':>19}")
    for name, trip, is_connected in (
        ("CONNECT: bytes, record, session, CONNACK", _connect, False),
        ("message, fast path, to receipt", _fast, True),
        ("message, slow path, to receipt", _slow, True),
        ("QoS 1 publication to PUBACK", _publish, True),
    ):
        rig = Rig()
        await rig.start()
        device = rig.device("c")
        if is_connected:
            await device.connected()
            await device.get_message()
        trace = Trace()
        rig.log.on_append, device.transport.on_write = trace.appended, trace.written
        with trace:
            await trip(device)
        print(
            f"{name:44} {len(trace.files):6} {trace.calls:6} {trace.moves:6}"
            f" {_shown(trace.before_record):>22} {_shown(trace.before_bytes):>19}"
        )
        rig.gateway.stop()
    print("a PUBLISH: {} calls from command to bytes, {} until the gateway is done".format(*await _command_to_bytes()))


async def _command_to_bytes() -> tuple[int, int]:
    """Measures the gateway alone: from the record of the command to the bytes of the PUBLISH."""
    rig = Rig()
    await rig.start()
    device = await rig.device("c").connected()
    await device.get_message()
    trace, values = Trace(), []
    device.transport.on_write = trace.written
    commands, rig.gateway.commands = rig.gateway.commands, lambda _, batch: values.extend(batch) or []  # type: ignore[method-assign,assignment,func-returns-value]
    device.submit()
    with trace:
        commands(0, values)
        await turn()
    rig.gateway.stop()
    assert trace.before_bytes is not None
    return trace.before_bytes, trace.calls


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)


# --- the cost -------------------------------------------------------------------------------------------------------------------


async def _cost(messages: int, connections: int) -> dict[str, float]:
    rig = Rig()
    await rig.start()
    device = await rig.device("c").connected()
    await device.get_message()
    return {
        "slow path, µs a message": await _per_message(_slow_messages, device, messages),
        "fast path, µs a message": await _per_message(_fast_messages, device, messages),
        "QoS 1 publication, µs": await _per_message(_publications, device, messages),
        "bytes a connection": await _bytes_per_connection(connections),
    }


async def _per_message(way: Callable[[Device, int], Any], device: Device, messages: int) -> float:
    """Returns the minimum of seven runs, in CPU time of the gateway without the session."""
    return min([await way(device, messages) for _ in range(7)]) / messages / 1_000


def rest(number: int) -> None:
    """Sleeps, because a gateway reads at most 32 packets of a device in a millisecond. Sleeping uses no CPU time."""
    if number % 16 == 0:
        time.sleep(0.0011)


async def _slow_messages(device: Device, messages: int) -> float:
    connection = device.session.connection
    assert connection is not None
    gateway, log, transport, protocol = device.rig.gateway, device.rig.log, device.transport, device.protocol
    sequence = connection.sequence
    values = []
    for _ in range(messages):
        sequence += 1
        publish = SendPublish(
            connection_id=connection.connection_id,
            partition=0,
            sequence=sequence,
            packet_id=1,
            topic="t",
            payload=b"p" * 100,
            qos=QoS.AT_LEAST_ONCE,
        )
        values.append(encode_command_batch(CommandBatch(client_id="c", commands=(publish,), code="c")))
    connection.sequence = sequence
    began = time.process_time_ns()
    for number, value in enumerate(values):
        rest(number)
        gateway.commands(0, [value])
        await asyncio.sleep(0)
        protocol.data_received(b"\x40\x02\x00\x01")
        await asyncio.sleep(0)
        log.confirm()
        await asyncio.sleep(0)
    took = time.process_time_ns() - began
    assert len(transport.take()) > messages * 100
    return took


async def _fast_messages(device: Device, messages: int) -> float:
    """Measures the fast path. After each message, the session reads it and renews the grant outside the measured time."""
    gateway, log, transport, protocol = device.rig.gateway, device.rig.log, device.transport, device.protocol
    sent_before, took = gateway.counters.fast_publishes_sent, 0
    transport.take()
    for number in range(messages):
        rest(number)
        began = time.process_time_ns()
        device.rig.offer(device.client_id)
        await asyncio.sleep(0)
        appends = log.confirm()
        await asyncio.sleep(0)
        packet_id = bytes(transport.data[5:7])
        transport.data.clear()
        protocol.data_received(b"\x40\x02" + packet_id)
        await asyncio.sleep(0)
        appends += log.confirm()
        await asyncio.sleep(0)
        took += time.process_time_ns() - began
        device.read_message()
        device.handle([event for append in appends for event in decode_events(append.value)])
        await asyncio.sleep(0)
    assert gateway.counters.fast_publishes_sent - sent_before == messages
    return took


async def _publications(device: Device, messages: int) -> float:
    log, protocol = device.rig.log, device.protocol
    device.transport.take()
    began = time.process_time_ns()
    for number in range(messages):
        rest(number)
        protocol.data_received(b"\x32\x06\x00\x01t\x00\x01p")
        await asyncio.sleep(0)
        log.confirm()
        await asyncio.sleep(0)
    took = time.process_time_ns() - began
    assert len(device.transport.take()) == 4 * messages
    return took


async def _bytes_per_connection(connections: int) -> float:
    """Measures the gateway's memory, without the session, the transport and the kernel."""
    rig = Rig()
    await rig.start()
    names = [f"c{number}" for number in range(2 * connections)]
    kept = []
    for name in names[:connections]:  # allocates what is made once, and the tables
        kept.append(await _only_protocol(rig, name))
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for name in names[connections:]:
        kept.append(await _only_protocol(rig, name))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / connections


async def _only_protocol(rig: Rig, name: str) -> Any:
    device = await rig.device(name).connected()
    transport = _SILENT
    device.protocol._transport = transport
    return device.protocol


_SILENT: Final = Transport()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cost", action="store_true", help="CPU time a message and memory a connection, as JSON")
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--connections", type=int, default=1_000)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if arguments.cost:
        print(msgspec.json.encode(asyncio.run(_cost(arguments.messages, arguments.connections))).decode())
    else:
        asyncio.run(_trips())


if __name__ == "__main__":
    main()
