"""Many MQTT 3.1.1 devices in one process: connect, subscribe nothing, acknowledge everything, measure.

A load generator and not a client: it reads PUBLISH, PUBREL and CONNACK, answers with PUBACK, PUBREC and PUBCOMP, and does as
little as possible beside, so that what is measured is the gateway and the engine. A payload that starts with eight bytes of
big-endian nanoseconds (`time.time_ns()` of the sender, on the same machine) counts for the latency.

    python -m bench.devices --port 1883 --devices 1000 --expect 20000
"""

import argparse
import asyncio
import json
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

CONNACK, PUBLISH, PUBREL, PINGRESP = 0x20, 0x30, 0x60, 0xD0
_STAMP = struct.Struct("!Q")
_LATEST_S = 3_600.0


@dataclass
class Tally:
    """What all devices together have seen. latencies_ms: of stamped payloads. first, last: monotonic time of a PUBLISH."""

    connected: int = 0
    refused: int = 0
    lost: int = 0
    publishes: int = 0
    duplicates: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    connect_ms: list[float] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Device(asyncio.Protocol):
    """One connection. It parses what came in place and writes all answers to one read with one write."""

    __slots__ = ("_buffer", "_client_id", "_flags", "_started", "_tally", "_transport")

    def __init__(self, client_id: str, tally: Tally, *, clean: bool = False) -> None:
        self._client_id = client_id.encode()
        self._flags = 0x02 if clean else 0x00
        self._tally = tally
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._started = time.monotonic()
        # Protocol "MQTT", level 4, no keep alive.
        body = (
            b"\x00\x04MQTT\x04" + bytes([self._flags]) + b"\x00\x00" + struct.pack("!H", len(self._client_id)) + self._client_id
        )
        self._transport.write(bytes([0x10]) + _remaining_length(len(body)) + body)

    def connection_lost(self, error: Exception | None) -> None:
        self._tally.lost += 1
        self._tally.changed.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.write(b"\xe0\x00")
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        answers = bytearray()
        start, end = 0, len(buffer)
        while end - start >= 2:
            # Remaining length: one to four bytes of seven bits.
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
            tally.duplicates += flags >> 3 & 1
            if end - payload >= 8:
                sent_ns = _STAMP.unpack_from(buffer, payload)[0]
                latency_ms = (time.time_ns() - sent_ns) / 1e6
                if 0 <= latency_ms < _LATEST_S * 1_000:
                    tally.latencies_ms.append(latency_ms)
            tally.changed.set()
        elif kind == PUBREL:
            answers += b"\x70\x02"
            answers += buffer[body : body + 2]
        elif kind == CONNACK:
            if buffer[body + 1] == 0:
                tally.connected += 1
                tally.connect_ms.append((time.monotonic() - self._started) * 1_000)
            else:
                tally.refused += 1
            tally.changed.set()


async def connect(
    host: str, port: int, count: int, tally: Tally, *, prefix: str = "device-", clean: bool = False, timeout_s: float = 60.0
) -> list[Device]:
    """Connects `count` devices named prefix + number, a hundred at a time. Raises TimeoutError if not all get a CONNACK.

    clean: with a clean session.
    """
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(100)

    async def one(number: int) -> Device:
        async with gate:
            _, device = await loop.create_connection(lambda: Device(f"{prefix}{number}", tally, clean=clean), host, port)
            return device

    devices = await asyncio.gather(*(one(number) for number in range(count)))
    try:
        await until(tally, lambda: tally.connected >= count, timeout_s)
    except TimeoutError:
        raise TimeoutError(
            f"{tally.connected} of {count} devices connected in {timeout_s} s, {tally.refused} refused, {tally.lost} closed"
        ) from None
    return list(devices)


async def until(tally: Tally, condition, timeout_s: float) -> None:
    """Returns when the condition holds, looking after each change. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            tally.changed.clear()
            await tally.changed.wait()


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which `part` (0…1) of the values are; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def report(tally: Tally) -> dict[str, float]:
    """What is printed at the end; milliseconds, messages per second, and time.time() of the last message."""
    seconds = max(1e-9, tally.last - tally.first)
    return {
        "connected": tally.connected,
        "connect_p50_ms": round(percentile(tally.connect_ms, 0.5), 1),
        "publishes": tally.publishes,
        "duplicates": tally.duplicates,
        "messages_per_s": round(tally.publishes / seconds, 1),
        "latency_p50_ms": round(percentile(tally.latencies_ms, 0.5), 1),
        "latency_p99_ms": round(percentile(tally.latencies_ms, 0.99), 1),
        "last_time": time.time() - (time.monotonic() - tally.last),
        "connections_lost": tally.lost,
    }


async def run(arguments: argparse.Namespace) -> Tally:
    """Prints `connected` when all devices are, then waits for the messages."""
    tally = Tally()
    devices = await connect(
        arguments.host,
        arguments.port,
        arguments.devices,
        tally,
        prefix=arguments.prefix,
        clean=arguments.clean,
        timeout_s=arguments.timeout,
    )
    print("connected", tally.connected, flush=True)
    try:
        await until(tally, lambda: tally.publishes >= arguments.expect, arguments.timeout)
    except TimeoutError:
        print(f"only {tally.publishes} of {arguments.expect} messages within {arguments.timeout} s", file=sys.stderr)
    result = report(tally)  # before the devices close their connections themselves
    for device in devices:
        device.close()
    print(json.dumps(result), flush=True)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--prefix", default="device-")
    parser.add_argument("--clean", action="store_true", help="sessions that end with their connections")
    parser.add_argument("--expect", type=int, default=20_000, help="stop after this many PUBLISH packets")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds, for the connections and again for the messages")
    arguments = parser.parse_args()
    try:
        import uvloop

        uvloop.run(run(arguments))
    except ImportError:
        asyncio.run(run(arguments))


def _remaining_length(length: int) -> bytes:
    encoded = bytearray()
    while True:
        length, low = divmod(length, 128)
        encoded.append(low | (0x80 if length else 0))
        if not length:
            return bytes(encoded)


if __name__ == "__main__":
    main()
