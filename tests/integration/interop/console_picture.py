"""Takes the picture of the console in docs/: `make pictures`. A real system under devices with bad manners, in a real browser."""

import math
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from kafka import KafkaProducer

from inflight.demo.devices import Device, Manners
from inflight.demo.paho_device import wait_until_connected
from inflight.demo.up import UpProcess
from inflight.local.endpoints import Endpoints
from tests.support.browser import browse
from tests.support.waiting import wait_until

PICTURE: Final = Path(__file__).parents[3] / "docs" / "console.png"
SIZE: Final = (1280, 960)
LASTS_S: Final = 120.0
SETTINGS: Final = ("console.port=0", "retry_interval=3s", "retry_mqtt5=timer", "max_mqueue_len=400")
MANNERS: Final = (Manners.STEADY, Manners.STEADY, Manners.SWALLOWS_ACKS, Manners.BREAKS_OFF)


def send_for(kafka: str, console: str, clients: list[str], lasts_s: float) -> None:
    """More and less, in waves. The page is asked for all the time, as by somebody who looks at it."""
    producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=5)
    began_s, number = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < lasts_s:
        for _ in range(round(6 + 5 * math.sin(passed_s / 12))):
            number += 1
            headers = [("mqtt-topic", b"cmd/set"), ("mqtt-qos", b"%d" % (1 + number % 2))]
            producer.send("inflight.messages", b"%d" % number, key=clients[number % len(clients)].encode(), headers=headers)
        if number % 7 == 0:
            urllib.request.urlopen(console, timeout=30).close()
        time.sleep(0.25)
    producer.close()


def main() -> None:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    devices = [Device(f"pump-{number}", MANNERS[number % 4], mqtt5=number % 2 == 0, misbehave_every=30) for number in range(24)]
    with tempfile.TemporaryDirectory(prefix="inflight-picture-") as name, UpProcess(Path(name) / "data", *options) as up:
        wait_until(lambda: Endpoints.read(up.data_dir).console, "the console")
        console = Endpoints.read(up.data_dir).console
        for device in devices:
            device.start(*up.mqtt)
        wait_until_connected(devices, 60)
        send_for(up.kafka, console, [*(device.name for device in devices), "lamp-1"], LASTS_S)
        # As somebody who looks at the sessions first: a census of a small machine may be minutes old.
        wait_until(lambda: b"Longest queues" in urllib.request.urlopen(f"{console}sessions", timeout=30).read(), "the sessions")
        browse(Path(name), console, f"--screenshot={PICTURE}", size=SIZE)
        for device in devices:
            device.stop()


if __name__ == "__main__":
    main()
