"""Takes the pictures in docs/pictures/ (`make pictures`) of a real system with misbehaving devices."""

import contextlib
import fcntl
import math
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from kafka import KafkaProducer
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from inflight.demo.devices import Device, Manners
from inflight.demo.paho_device import wait_until_connected
from inflight.demo.up import UpProcess
from inflight.local.endpoints import Endpoints
from tests.support.browser import browse
from tests.support.waiting import wait_until

PICTURES: Final = Path(__file__).parent.parent / "pictures"
SIZE: Final = (1280, 960)
COLUMNS, LINES = 118, 44
LASTS_S: Final = 90.0
SETTINGS: Final = ("console.port=0", "retry_interval=3s", "retry_mqtt5=timer", "max_mqueue_len=400")
MANNERS: Final = (Manners.STEADY, Manners.STEADY, Manners.SWALLOWS_ACKS, Manners.BREAKS_OFF)


@contextmanager
def messages(kafka: str, console: str, clients: list[str]) -> Iterator[None]:
    """Sends messages at a varying rate, and requests the page repeatedly, as an open browser does."""
    stop = Event()

    def send() -> None:
        producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=5)
        began_s, number = time.monotonic(), 0
        while not stop.wait(0.25):
            for _ in range(round(6 + 5 * math.sin((time.monotonic() - began_s) / 12))):
                number += 1
                headers = [("mqtt-topic", b"cmd/set"), ("mqtt-qos", b"%d" % (1 + number % 2))]
                producer.send("inflight.messages", b"%d" % number, key=clients[number % len(clients)].encode(), headers=headers)
            if number % 7 == 0:
                urllib.request.urlopen(console, timeout=30).close()
        producer.close()

    thread = Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def last_screen(data_dir: Path, command: str, until: str) -> str:
    """Returns the screen of `inflight COMMAND` with its colours, as soon as it contains `until`. On a busy machine the engine may
    answer too late for a command that ends, which then begins again."""
    return wait_until(lambda: _screen(data_dir, command, until), f"{until!r} in `inflight {command}`")


def _screen(data_dir: Path, command: str, until: str) -> str | None:
    """Returns None if the command has ended without it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    arguments = [sys.executable, "-m", "inflight", command, "--data-dir", str(data_dir)]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    os.set_blocking(ours, False)
    said = b""

    def shown() -> tuple[str | None] | None:
        nonlocal said
        has_ended = process.poll() is not None
        with contextlib.suppress(OSError):  # no output yet, or its end
            said += os.read(ours, 1 << 20)
        # Each picture of a live screen begins at the upper left corner.
        pictures = said.decode(errors="replace").split("\x1b[H")
        whole = pictures if has_ended else pictures[:-1]
        found = next((picture for picture in reversed(whole) if until in picture), None)
        return (found,) if found or has_ended else None

    try:
        return wait_until(shown, f"{until!r} in `inflight {command}`")[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        os.close(ours)


def photograph(directory: Path, name: str, screen: str) -> None:
    """Writes a terminal's screen as docs/pictures/NAME.png."""
    lines = re.sub(r"\x1b\[\?[0-9;]*[a-z]|\x1b\[[0-9]*[JK]|\r", "", screen).rstrip().splitlines()
    console = Console(width=COLUMNS, record=True, file=(directory / "unused").open("w"), force_terminal=True)
    console.print(Text("\n").join(Text.from_ansi(line) for line in lines))
    page = directory / f"{name}.html"
    page.write_text(console.export_html(theme=MONOKAI, inline_styles=True), encoding="utf-8")
    browse(directory, page.as_uri(), f"--screenshot={PICTURES / name}.png", size=(920, 20 + 20 * len(lines)))


def main() -> None:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    devices = [Device(f"pump-{number}", MANNERS[number % 4], mqtt5=number % 2 == 0, misbehave_every=30) for number in range(24)]
    with tempfile.TemporaryDirectory(prefix="inflight-picture-") as name, UpProcess(Path(name) / "data", *options) as up:
        wait_until(lambda: Endpoints.read(up.data_dir).console, "the console")
        console = Endpoints.read(up.data_dir).console
        for device in devices:
            device.start(*up.mqtt)
        wait_until_connected(devices, 60)
        with messages(up.kafka, console, [*(device.name for device in devices), "lamp-1"]):
            time.sleep(LASTS_S)  # the time that the plots show
            for command in "status", "top":
                photograph(Path(name), command, last_screen(up.data_dir, command, "Longest queues"))
        # Requests the sessions first, because a census of a small machine may be minutes old.
        wait_until(lambda: b"Longest queues" in urllib.request.urlopen(f"{console}sessions", timeout=30).read(), "the sessions")
        browse(Path(name), console, f"--screenshot={PICTURES / 'console.png'}", size=SIZE)
        for device in devices:
            device.stop()


if __name__ == "__main__":
    main()
