"""200 well-behaved devices in a process of their own, and what they see: `python -m trials.attacks.good_devices`.

Standard output has a line `ready` when all are connected, and then one for each event: `message PAYLOAD LATENCY_MS`, or `lost`
when a connection has ended, which is made anew. A payload begins with the nanoseconds of `time.time_ns()` when it was sent.
"""

import argparse
import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import uvloop

from trials.attacks.device import Device
from trials.attacks.packets import connect_kept

PREFIX: Final = "good-"
_CLOSED: Final = (OSError, EOFError)
_PAUSE_S: Final = 0.2
_STOP_S: Final = 10.0
_NANOSECONDS: Final = 1_000_000


def client_ids(size: int) -> list[str]:
    return [f"{PREFIX}{number}" for number in range(size)]


@dataclass(frozen=True)
class Arrival:
    """The arrival of a message. sent_s: time.time()."""

    sent_s: float
    latency_ms: float


class GoodDevices:
    """Handle of the process. taken: how often each payload has arrived; lost: connections that have ended."""

    def __init__(self, address: tuple[str, int], size: int) -> None:
        self.taken: Counter[str] = Counter()
        self.arrivals: list[Arrival] = []
        self.lost = 0
        self._is_ready = threading.Event()
        options = ["--host", address[0], "--port", str(address[1]), "--size", str(size)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trials.attacks.good_devices", *options], stdout=subprocess.PIPE, text=True
        )
        self._reading = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reading.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join(_STOP_S)

    def latencies_ms(self, from_s: float, to_s: float) -> list[float]:
        """Returns the latencies of messages that were sent between these times."""
        return [arrival.latency_ms for arrival in list(self.arrivals) if from_s <= arrival.sent_s < to_s]

    def wait_until_ready(self, within_s: float) -> None:
        assert self._is_ready.wait(within_s), "the good devices are not connected"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *values = line.split()
            if what == "message":
                payload, latency_ms = values
                self.taken[payload] += 1
                self.arrivals.append(Arrival(_sent_ns(payload) / 1e9, float(latency_ms)))
            elif what == "lost":
                self.lost += 1
            else:
                self._is_ready.set()


def _sent_ns(payload: str) -> int:
    return int(payload.partition("/")[0])


async def _device(address: tuple[str, int], client_id: str, connected: asyncio.Semaphore) -> None:
    while True:
        try:
            async with await Device.open(address, connect_kept(client_id)) as device:
                connected.release()
                while True:
                    payload = (await device.publication()).decode()
                    print("message", payload, (time.time_ns() - _sent_ns(payload)) / _NANOSECONDS, flush=True)
        except _CLOSED:
            print("lost", flush=True)
        await asyncio.sleep(_PAUSE_S)


async def _run(address: tuple[str, int], size: int) -> None:
    connected = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for client_id in client_ids(size):
            group.create_task(_device(address, client_id, connected))
        for _ in range(size):
            await connected.acquire()
        print("ready", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--size", type=int, default=200)
    arguments = parser.parse_args()
    uvloop.run(_run((arguments.host, arguments.port), arguments.size))


if __name__ == "__main__":
    main()
