"""Runs many MQTT 3.1.1 devices in one process: they connect, acknowledge everything, and measure.

It is a load generator and not a client. It reads PUBLISH, PUBREL and CONNACK, and answers with PUBACK, PUBREC and PUBCOMP. It
does as little else as possible, so that the run measures the gateway and the engine. A payload that starts with eight bytes of
big-endian nanoseconds (`time.time_ns()` of the sender, on the same machine) counts for the latency.

    python -m bench.devices --port 1883 --devices 1000 --expect 20000
    python -m bench.devices --subscribe bench/%c --qos 2 --expect 20000     # as a broker needs it; %c: the client id
    python -m bench.devices --publish 20                                    # publishes when a line comes on the standard input
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

CONNACK, PUBLISH, PUBACK, PUBREL, SUBACK, PINGRESP = 0x20, 0x30, 0x40, 0x60, 0x90, 0xD0
PAYLOAD_BYTES = 200
"""The size of the devices' publications."""
UPLINK = "uplink"
"""First level of the topic of the devices' publications; the second one is the client id."""
_AT_ONCE = 10
"""Unacknowledged publications of one device."""
_STAMP = struct.Struct("!Q")
_LATEST_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """The behaviour of all devices.

    clean: with a clean session. subscribe: a topic filter, in which %c is the client id; "" = none. qos: of the subscription.
    publish: the number of QoS 1 publications that each device sends.
    """

    clean: bool = False
    subscribe: str = ""
    qos: int = 1
    publish: int = 0


@dataclass
class Tally:
    """The counts of all devices together.

    latencies_ms: of stamped payloads. first, last: monotonic time of a PUBLISH; began, last_connected: of the first connection
    and the last CONNACK. handshakes_ms: from the stamp of a payload to its PUBREL. granted_qos: the lowest of a SUBACK.
    completed, last_completed: PUBCOMPs as the last step of a QoS 2 handshake, each counted once, and the monotonic time of the
    last one. acknowledged, last_acknowledged: the same for PUBACKs to the devices. duplicates: PUBLISH packets with DUP that
    repeat one of the same connection. DUP alone says only that the server had sent the message before, maybe to a connection
    that was over.
    """

    connected: int = 0
    subscribed: int = 0
    granted_qos: int = 2
    completed: int = 0
    acknowledged: int = 0
    refused: int = 0
    lost: int = 0
    publishes: int = 0
    duplicates: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    handshakes_ms: list[float] = field(default_factory=list)
    connect_ms: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    last_connected: float = 0.0
    first: float = 0.0
    last: float = 0.0
    last_completed: float = 0.0
    last_acknowledged: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(asyncio.Protocol):
    """Parses received bytes in place, and writes all answers to one read with one write."""

    __slots__ = ("_buffer", "_transport")

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class has the same methods, but another base

    def close(self) -> None:
        if self._transport is not None:
            self._transport.write(b"\xe0\x00")
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        answers = bytearray()
        start, end = 0, len(buffer)
        while end - start >= 2:
            # The remaining length has one to four bytes of seven bits.
            length, shift, body = buffer[start + 1] & 0x7F, 7, start + 2
            if buffer[start + 1] & 0x80:
                complete = False
                while body < end:
                    byte = buffer[body]
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    body += 1
                    if not byte & 0x80:
                        complete = True
                        break
                if not complete:
                    break
            if end - body < length:
                break
            self._packet(buffer, start, body, body + length, answers)
            start = body + length
        self._buffer = buffer[start:] if start < end else b""
        if answers and self._transport is not None:
            self._transport.write(answers)

    def _packet(self, buffer: bytes, start: int, body: int, end: int, answers: bytearray) -> None:
        """Handles a packet. start: its offset; body: that of its remaining length; end: the offset behind it."""
        raise NotImplementedError


class Device(Connection):
    __slots__ = ("_client_id", "_habits", "_incomplete", "_left", "_packet_ids", "_started", "_tally")

    def __init__(self, client_id: str, tally: Tally, habits: Habits) -> None:
        super().__init__()
        self._client_id = client_id.encode()
        self._habits = habits
        self._tally = tally
        self._incomplete: dict[bytes, int] = {}  # the beginning of the payload, by packet id
        self._packet_ids: set[bytes] = set()  # of all PUBLISH packets
        self._left = habits.publish
        self._started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._started = time.monotonic()
        cast(asyncio.Transport, transport).write(connect_packet(self._client_id, clean=self._habits.clean))

    def connection_lost(self, error: Exception | None) -> None:
        self._tally.lost += 1
        self._tally.changed.set()

    def publish(self) -> None:
        """Writes the first publications; each PUBACK allows one more."""
        packets = bytearray()
        for _ in range(_AT_ONCE):
            self._publish_next(packets)
        if packets and self._transport is not None:
            self._transport.write(packets)

    def _publish_next(self, packets: bytearray) -> None:
        if self._left:
            packet_id = self._left & 0xFFFF or 0xFFFF
            self._left -= 1
            payload = _STAMP.pack(time.time_ns()) + b"." * (PAYLOAD_BYTES - 8)
            packets += publish_packet(b"%s/%s" % (UPLINK.encode(), self._client_id), payload, qos=1, packet_id=packet_id)

    def _packet(self, buffer: bytes, start: int, body: int, end: int, answers: bytearray) -> None:
        kind, tally = buffer[start] & 0xF0, self._tally
        if kind == PUBLISH:
            flags = buffer[start]
            payload = body + 2 + (buffer[body] << 8 | buffer[body + 1])
            qos = flags >> 1 & 3
            if qos:
                packet_id = buffer[payload : payload + 2]
                payload += 2
                answers += b"\x40\x02" if qos == 1 else b"\x50\x02"
                answers += packet_id
            tally.last = time.monotonic()
            tally.first = tally.first or tally.last
            tally.publishes += 1
            if qos:
                tally.duplicates += flags >> 3 & 1 and packet_id in self._packet_ids
                self._packet_ids.add(packet_id)
            sent_ns = _STAMP.unpack_from(buffer, payload)[0] if end - payload >= _STAMP.size else 0
            if (latency_ms := _since(sent_ns)) is not None:
                tally.latencies_ms.append(latency_ms)
            if qos == 2:
                self._incomplete[packet_id] = sent_ns
            tally.changed.set()
        elif kind == PUBREL:
            packet_id = buffer[body : body + 2]
            answers += b"\x70\x02"
            answers += packet_id
            if packet_id in self._incomplete:
                if (handshake_ms := _since(self._incomplete.pop(packet_id))) is not None:
                    tally.handshakes_ms.append(handshake_ms)
                tally.completed += 1
                tally.last_completed = time.monotonic()
                tally.changed.set()
        elif kind == PUBACK:
            tally.acknowledged += 1
            tally.last_acknowledged = time.monotonic()
            tally.changed.set()
            self._publish_next(answers)
        elif kind == CONNACK:
            if buffer[body + 1] == 0:
                tally.connected += 1
                tally.last_connected = time.monotonic()
                tally.connect_ms.append((tally.last_connected - self._started) * 1_000)
                if self._habits.subscribe:
                    topic_filter = self._habits.subscribe.encode().replace(b"%c", self._client_id)
                    answers += subscribe_packet(topic_filter, self._habits.qos)
            else:
                tally.refused += 1
            tally.changed.set()
        elif kind == SUBACK:
            granted = buffer[body + 2]
            if granted & 0x80:
                tally.refused += 1
            else:
                tally.subscribed += 1
                tally.granted_qos = min(tally.granted_qos, granted)
            tally.changed.set()


def _since(sent_ns: int) -> float | None:
    """Returns milliseconds; None for a payload without a time."""
    latency_ms = (time.time_ns() - sent_ns) / 1e6
    return latency_ms if 0 <= latency_ms < _LATEST_S * 1_000 else None


def acknowledge(buffer: bytes, start: int, body: int, answers: bytearray) -> int:
    """Adds the PUBACK of a PUBLISH to the answers, if it has QoS 1. Returns the offset of its payload (MQTT 3.1.1).

    start, body: as in `Connection._packet`.
    """
    payload = body + 2 + (buffer[body] << 8 | buffer[body + 1])
    if buffer[start] & 0x06:
        answers += b"\x40\x02"
        answers += buffer[payload : payload + 2]
        payload += 2
    return payload


def connect_packet(client_id: bytes, *, clean: bool) -> bytes:
    """Encodes a CONNECT of MQTT 3.1.1, without keep alive."""
    flags = 0x02 if clean else 0x00
    body = b"\x00\x04MQTT\x04" + bytes([flags]) + b"\x00\x00" + struct.pack("!H", len(client_id)) + client_id
    return b"\x10" + _remaining_length(len(body)) + body


def subscribe_packet(topic_filter: bytes, qos: int) -> bytes:
    """Encodes a SUBSCRIBE with packet id 1."""
    body = b"\x00\x01" + struct.pack("!H", len(topic_filter)) + topic_filter + bytes([qos])
    return b"\x82" + _remaining_length(len(body)) + body


def publish_packet(topic: bytes, payload: bytes, *, qos: int, packet_id: int) -> bytes:
    """Encodes a PUBLISH at QoS 1 or 2."""
    length = _remaining_length(4 + len(topic) + len(payload))
    return b"%c%b%b%b%b%b" % (PUBLISH | qos << 1, length, len(topic).to_bytes(2), topic, packet_id.to_bytes(2), payload)


async def connect(
    host: str,
    port: int,
    count: int,
    tally: Tally,
    habits: Habits,
    *,
    prefix: str = "device-",
    rate: int = 0,
    timeout_s: float = 60.0,
) -> list[Device]:
    """Connects `count` devices named prefix + number, a hundred at a time. rate: per second, 0 = as fast as possible.

    Raises TimeoutError if not all get a CONNACK, and a SUBACK if they subscribe.
    """
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(100)
    began = loop.time()

    async def one(number: int) -> Device:
        if rate:
            await asyncio.sleep(began + number / rate - loop.time())
        async with gate:
            _, device = await loop.create_connection(lambda: Device(f"{prefix}{number}", tally, habits), host, port)
            return device

    devices = await asyncio.gather(*(one(number) for number in range(count)))
    try:
        await until(tally, lambda: (tally.subscribed if habits.subscribe else tally.connected) >= count, timeout_s)
    except TimeoutError:
        subscribed = f", {tally.subscribed} subscribed" if habits.subscribe else ""
        raise TimeoutError(
            f"{tally.connected} of {count} devices connected{subscribed} in {timeout_s} s, {tally.refused} refused, "
            f"{tally.lost} closed"
        ) from None
    return list(devices)


async def until(tally: Tally, condition: Callable[[], bool], timeout_s: float) -> None:
    """Returns when the condition holds, and checks it after each change. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            tally.changed.clear()
            await tally.changed.wait()


def percentile(values: Sequence[float], part: float) -> float:
    """Returns the value below which `part` (0…1) of the values are; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def report(tally: Tally) -> dict[str, float]:
    """Returns the printed result: milliseconds, messages per second, and times as of time.time().

    The times are of the last message, of the last handshake at QoS 2, and of the last PUBACK to a device.
    """
    seconds = max(1e-9, tally.last - tally.first)
    began = time.time() - time.monotonic()
    return {
        "connected": tally.connected,
        "connect_p50_ms": round(percentile(tally.connect_ms, 0.5), 1),
        "connect_p99_ms": round(percentile(tally.connect_ms, 0.99), 1),
        "connections_per_s": round(tally.connected / max(1e-9, tally.last_connected - tally.began), 1),
        "publishes": tally.publishes,
        "duplicates": tally.duplicates,
        "messages": tally.publishes - tally.duplicates,
        "completed": tally.completed,
        "acknowledged": tally.acknowledged,
        "messages_per_s": round(tally.publishes / seconds, 1),
        "latency_p50_ms": round(percentile(tally.latencies_ms, 0.5), 1),
        "latency_p99_ms": round(percentile(tally.latencies_ms, 0.99), 1),
        "handshake_p50_ms": round(percentile(tally.handshakes_ms, 0.5), 1),
        "handshake_p99_ms": round(percentile(tally.handshakes_ms, 0.99), 1),
        "last_time": began + tally.last,
        "last_completed_time": began + tally.last_completed,
        "last_acknowledged_time": began + tally.last_acknowledged,
        "connections_lost": tally.lost,
    }


async def run(arguments: argparse.Namespace) -> Tally:
    """Prints `connected` when all devices are, with the granted QoS if they have subscribed; then waits for the messages.

    The result at the end has the processor time of the connections, and of the work after them.
    """
    tally = Tally()
    habits = Habits(clean=arguments.clean, subscribe=arguments.subscribe, qos=arguments.qos or 1, publish=arguments.publish)
    began_cpu_s = time.process_time()
    devices = await connect(
        arguments.host,
        arguments.port,
        arguments.devices,
        tally,
        habits,
        prefix=arguments.prefix,
        rate=arguments.connect_rate,
        timeout_s=arguments.timeout,
    )
    connected_cpu_s = time.process_time()
    print("connected", tally.connected, *(("granted", tally.granted_qos) if habits.subscribe else ()), flush=True)
    times: dict[str, float] = {}
    expect = arguments.expect
    if habits.publish:
        expect = habits.publish * arguments.devices
        await until_told(arguments.timeout)
        times["started"] = time.time()
        for device in devices:
            device.publish()

    def seen() -> int:
        if habits.publish:
            return tally.acknowledged
        if arguments.qos is None:
            return tally.publishes
        # Repeats do not count. At QoS 2 a handshake ends once.
        return tally.completed if arguments.qos == 2 else tally.publishes - tally.duplicates

    try:
        await until(tally, lambda: seen() >= expect, arguments.timeout)
    except TimeoutError:
        print(f"only {seen()} of {expect} messages within {arguments.timeout} s", file=sys.stderr)
    # Measured before the devices close their connections.
    times |= {"connect_cpu_s": connected_cpu_s - began_cpu_s, "cpu_s": time.process_time() - connected_cpu_s}
    result = report(tally) | times
    if arguments.hold:
        print(json.dumps(result), flush=True)
        await until_told(arguments.timeout)
    for device in devices:
        device.close()
    if arguments.hold:
        await until(tally, lambda: tally.lost >= len(devices), arguments.timeout)
    else:
        print(json.dumps(result), flush=True)
    return tally


async def until_told(timeout_s: float) -> None:
    """Returns at a line or the end of the standard input. Raises TimeoutError."""
    told = asyncio.Event()
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()
    loop.add_reader(source, told.set)
    try:
        async with asyncio.timeout(timeout_s):
            await told.wait()
    finally:
        loop.remove_reader(source)
    os.read(source, 4_096)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--prefix", default="device-")
    parser.add_argument("--clean", action="store_true", help="sessions that end with their connections")
    parser.add_argument("--connect-rate", type=int, default=0, metavar="N", help="connect so many in a second; 0 = at once")
    parser.add_argument("--expect", type=int, default=20_000, help="stop after this many PUBLISH packets")
    parser.add_argument("--subscribe", default="", metavar="TOPIC", help="topic filter; %%c in it is the client id")
    parser.add_argument(
        "--qos",
        type=int,
        choices=(1, 2),
        help="of the subscription; --expect counts messages without repeats, at QoS 2 handshakes",
    )
    parser.add_argument(
        "--publish", type=int, default=0, metavar="N", help="QoS 1 publications of each device; stop when acknowledged"
    )
    parser.add_argument("--hold", action="store_true", help="stay connected until a line comes on the standard input, or its end")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds, for the connections and again for the messages")
    arguments = parser.parse_args()
    run_fast(run(arguments))


def run_fast(main: Coroutine[Any, Any, Any]) -> None:
    """Runs with uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _remaining_length(length: int) -> bytes:
    encoded = bytearray()
    while True:
        length, low = divmod(length, 128)
        encoded.append(low | (0x80 if length else 0))
        if not length:
            return bytes(encoded)


if __name__ == "__main__":
    main()
