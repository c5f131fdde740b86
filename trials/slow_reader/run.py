"""50 devices that read, and one that does not: what it costs them, and what becomes of its messages.

    python -m trials.slow_reader.run                  # a minute beside one more that reads, a minute beside the slow one
    python -m trials.slow_reader.run --minutes 60 --reading-minutes 5
    python -m trials.slow_reader.run --reads          # it reads, and acknowledges nothing

Everything is real, with the product's defaults: Kafka, engine, gateway, sockets. The 50 devices get --rate messages a second at
QoS 1. One more gets 100 a second from a backend that does not read `inflight.throttle`: first a device that reads, so that the
load is the same, then the slow one. The run fails if one of the 50 loses a message or its connection, if their p99 is more than
twice that beside a device that reads, or if the policy does not act: what is above `max_mqueue_len` is dropped with receipts
`maxlen`, what was sent `delivery_limit` times is given up, and backends are told that the client does not catch up.
"""

import argparse
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.devices import percentile
from inflight.demo.up import UpProcess
from tests.support.waiting import wait_until
from trials.attacks.backend import Backend
from trials.attacks.good_devices import GoodDevices, client_ids
from trials.slow_reader.result import MAXLEN, Result, failures
from trials.slow_reader.slow_device import CLIENT_ID, READER_ID, ReadingDevice, Said, SlowDevice, SteadyBackend

DEVICES: Final = 50
RATE_TO_ONE_PER_S: Final = 100.0
_READY_S: Final = 120.0
_WARM_UP_S: Final = 15.0
_LOOK_S: Final = 1.0
_MARGIN_S: Final = 60.0


def measure(seconds: float, reading_s: float, rate_per_s: float, directory: Path, *, reads: bool = False) -> Result:
    """seconds: beside the slow one. reading_s: beside one more that reads. reads: of the slow one."""
    with (
        UpProcess(directory / "data") as up,
        GoodDevices(up.mqtt, DEVICES) as devices,
        Said(up.kafka) as said,
    ):
        devices.wait_until_ready(_READY_S)
        with Backend(up.kafka, client_ids(DEVICES), rate_per_s=rate_per_s) as backend:
            wait_until(lambda: len(devices.arrivals) >= DEVICES, "each device has a message")
            time.sleep(_WARM_UP_S)
            with ReadingDevice(up.mqtt, reading_s + _MARGIN_S), SteadyBackend(up.kafka, READER_ID, RATE_TO_ONE_PER_S):
                began_s = time.time()
                time.sleep(reading_s)
                until_s = time.time()
            beside_s = time.time()
            with SlowDevice(up.mqtt, reads=reads) as slow, SteadyBackend(up.kafka, CLIENT_ID, RATE_TO_ONE_PER_S) as slow_backend:
                while time.time() < beside_s + seconds:
                    time.sleep(_LOOK_S)
                    said.read()
                ended_s = time.time()
            backend.stop()
            with suppress(AssertionError):  # the result says what is missing
                wait_until(lambda: set(backend.sent) <= set(devices.taken), "everything arrives")
        said.read()
        return Result(
            reading_ms=devices.latencies_ms(began_s, until_s),
            beside_ms=devices.latencies_ms(beside_s, ended_s),
            sent=len(backend.sent),
            missing=len(set(backend.sent) - set(devices.taken)),
            lost=devices.lost,
            sent_to_slow=slow_backend.sent,
            outcomes=said.outcomes,
            is_throttled=said.is_throttled,
            is_progressing=said.is_progressing,
            reconnects=slow.connections - 1,
        )


def show(result: Result, console: Console) -> None:
    table = Table("50 devices that read", "messages", "p50, ms", "p99, ms")
    for name, latencies_ms in (("beside one more that reads", result.reading_ms), ("beside the slow one", result.beside_ms)):
        p50_ms, p99_ms = (percentile(latencies_ms, part) for part in (0.5, 0.99))
        table.add_row(name, f"{len(latencies_ms):,}", f"{p50_ms:,.1f}", f"{p99_ms:,.1f}")
    console.print(table)
    throttle = "catches up" if result.is_progressing else "does not catch up" if result.is_throttled else "may be sent to"
    console.print(
        f"{result.missing} of {result.sent:,} messages to them are missing; p99 is {result.times:.1f} times that of the first "
        f"row. The slow one: {result.sent_to_slow:,} messages, {result.outcomes[MAXLEN]:,} dropped (maxlen), "
        f"{result.outcomes['delivery_limit']:,} given up (delivery_limit); backends are told that it {throttle}; "
        f"{result.reconnects} reconnects."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="beside the slow one")
    parser.add_argument("--reading-minutes", type=float, help="beside one more that reads; without it as many")
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second to the devices that read")
    parser.add_argument("--reads", action="store_true", help="the slow one reads, and acknowledges nothing")
    arguments = parser.parse_args()
    console = Console(stderr=True, width=130)
    with tempfile.TemporaryDirectory(prefix="inflight-slow-reader-") as name:
        reading_minutes = arguments.minutes if arguments.reading_minutes is None else arguments.reading_minutes
        seconds, reading_s = 60 * arguments.minutes, 60 * reading_minutes
        result = measure(seconds, reading_s, arguments.rate, Path(name), reads=arguments.reads)
    show(result, console)
    for failure in failures(result):
        console.print(f"failure: {failure}", style="red")
    return int(bool(failures(result)))


if __name__ == "__main__":
    sys.exit(main())
