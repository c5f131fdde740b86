"""Measures constants of `inflight size`: bytes in Kafka, checkpoint of a session, cost of publications and PINGREQ.

    python -m bench.sizing                  # three minutes; prints a table and writes bench/results/sizing.json
    python -m bench.sizing --devices 200 --seconds 5

Starts `inflight up` in its own directory, with default settings. A thousand devices with kept sessions (MQTT 3.1.1) connect. They
are sent messages of 200 bytes at a steady rate, publish at the same rate, and send PINGREQ. Bytes are those of the files of each
topic (`*.log`): one replica, with Kafka's headers of batches, without indexes. A batch has few records at a low rate, so the rate
matters. At the end each device has had more messages than `session.deduplication_window` keeps.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contestants.processor_time import ProcessorTime, parts_of_up
from bench.end_to_end import Backend, await_handled, await_rest
from bench.running_engine import disk_bytes
from bench.simulated_devices import unstamped
from inflight.demo.up import UpProcess
from state.settings import SessionSettings

PAYLOAD_BYTES = 200
_PREFIX = "sized-"
_WINDOW = SessionSettings().deduplication_window
RESULTS = Path(__file__).parent / "results" / "sizing.json"


class Device:
    """An MQTT 3.1.1 device with a kept session. It acknowledges at once, and counts what it gets."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._answers: asyncio.Queue[int] = asyncio.Queue()
        self.received = 0

    async def connect(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)
        body = b"\x00\x04MQTT\x04\x00\x02\x58" + len(self._name).to_bytes(2) + self._name
        self._writer.write(bytes((0x10, len(body))) + body)
        self._reading = asyncio.create_task(self._read())
        await self._answers.get()

    async def ping(self) -> None:
        self._writer.write(b"\xc0\x00")
        await self._answers.get()

    async def publish(self) -> None:
        body = b"\x00\x07bench/t\x00\x01" + bytes(PAYLOAD_BYTES)
        self._writer.write(b"\x32" + (len(body) & 0x7F | 0x80).to_bytes() + (len(body) >> 7).to_bytes() + body)
        await self._answers.get()

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.write(b"\xe0\x00")
        self._writer.close()

    async def _read(self) -> None:
        while True:
            kind = (await self._reader.readexactly(1))[0]
            length = shift = 0
            while True:
                byte = (await self._reader.readexactly(1))[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            body = await self._reader.readexactly(length)
            if kind & 0xF0 != 0x30:
                self._answers.put_nowait(kind)
                continue
            self.received += 1
            if kind & 0x06:
                start = 2 + int.from_bytes(body[:2])
                self._writer.write(b"\x40\x02" + body[start : start + 2])


def topic_bytes(kafka: Path) -> Counter[str]:
    """Returns the bytes of the log of each topic, without the prefix."""
    sizes: Counter[str] = Counter()
    for file in kafka.rglob("*.log"):
        topic = file.parent.name.rpartition("-")[0]
        if topic.startswith("inflight."):
            sizes[topic.removeprefix("inflight.")] += file.stat().st_size
    return sizes


class Measurement:
    """One `inflight up` with its devices. result: name → figure."""

    def __init__(self, up: UpProcess, arguments: argparse.Namespace) -> None:
        self.up, self.rate, self.seconds = up, arguments.rate, arguments.seconds
        self.devices = [Device(f"{_PREFIX}{number}") for number in range(arguments.devices)]
        self.backend = Backend(up.kafka)
        self.result: dict[str, float] = {"devices": arguments.devices, "rate": arguments.rate}

    async def run(self) -> dict[str, float]:
        devices, count = self.devices, self.rate * self.seconds

        async def publish() -> None:
            await self._each_in_turn(count, Device.publish)

        await self._bytes("connect", len(devices), self._connect)
        self.result["checkpoint_new"] = await self._checkpoint()
        await self._send(len(devices), rate=0)  # opens the fast path
        await asyncio.to_thread(await_handled, self.up)
        await self._bytes("message", count, lambda: self._send(count, rate=self.rate))
        await self._cpu("publication", count, lambda: self._bytes("publication", count, publish))
        await self._cpu("ping", count, lambda: self._each_in_turn(count, Device.ping))
        await self._send((_WINDOW + 10) * len(devices), rate=0)
        self.result["checkpoint_full_window"] = await self._checkpoint()
        for part, process in parts_of_up(self.up.data_dir):
            self.result[f"resident_{part}"] = self.result.get(f"resident_{part}", 0) + process.memory_info().rss
        for device in devices:
            await device.close()
        return self.result

    async def _connect(self) -> None:
        host, port = self.up.mqtt
        await asyncio.gather(*(device.connect(host, port) for device in self.devices))

    async def _send(self, count: int, *, rate: int) -> None:
        before = sum(device.received for device in self.devices)
        payload = partial(unstamped, PAYLOAD_BYTES)
        send = partial(self.backend.send, _PREFIX, len(self.devices), count, rate=rate, payload=payload)
        await asyncio.to_thread(send)
        deadline_s = time.monotonic() + 120
        while sum(device.received for device in self.devices) < before + count:
            if time.monotonic() > deadline_s:
                raise TimeoutError("not every message has arrived")
            await asyncio.sleep(0.1)

    async def _each_in_turn(self, count: int, what: Callable[[Device], Coroutine[Any, Any, None]]) -> None:
        """Lets the devices do it in turn, at the steady rate."""
        began_s, tasks = time.monotonic(), []
        for number in range(count):
            if (wait_s := began_s + number / self.rate - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(what(self.devices[number % len(self.devices)])))
        await asyncio.gather(*tasks)

    async def _bytes(self, name: str, count: int, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Measures by how much each topic grows for each of `count`."""
        before = topic_bytes(self.up.data_dir / "kafka")
        await what()
        await asyncio.to_thread(await_handled, self.up)
        grown = topic_bytes(self.up.data_dir / "kafka") - before
        self.result |= {f"{name}_{topic}": size / count for topic, size in sorted(grown.items())}

    async def _cpu(self, name: str, count: int, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Measures the processor time of Kafka and the gateway for each of `count`, with what they take for nothing."""
        spent = ProcessorTime(partial(parts_of_up, self.up.data_dir))
        await what()
        self.result |= {f"{name}_{part}_ms": 1_000 * spent.spent()[part] / count for part in ("kafka", "gateway")}

    async def _checkpoint(self) -> float:
        """Returns the bytes of the checkpoint for each session, when the engine is at rest."""
        await asyncio.to_thread(await_handled, self.up)
        await asyncio.to_thread(await_rest, self.up.data_dir)
        return disk_bytes(self.up.data_dir / "checkpoint") / len(self.devices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=200, help="messages, publications and PINGREQs a second")
    parser.add_argument("--seconds", type=int, default=20, help="for each of them")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name, UpProcess(Path(name) / "data") as up:
        result = asyncio.run(Measurement(up, arguments).run())
    table = Table("for each", "bytes; ms of CPU", title=f"{arguments.rate} a second, {arguments.devices} devices")
    for key, value in result.items():
        table.add_row(key.replace("_", " ", 1), f"{value:,.3f}" if key.endswith("_ms") else f"{value:,.0f}")
    Console().print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
