"""A disk of `inflight up` fills up and is freed again: log messages, a metric for the alert, recovery without an operator.

Root only: each disk is a small tmpfs (tests/support/small_disk.py).
"""

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from prometheus_client import CollectorRegistry

from inflight.demo.up import UpProcess
from inflight.local.child_process import free_port, tail
from inflight.producer import Producer, SendResult
from state.settings import BackoffSettings
from streaming.engine.watching.full_disk import FULL_BYTES
from tests.support.small_disk import SmallDisk
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(480),
    pytest.mark.skipif(not SmallDisk.can_be_mounted(), reason="only root may mount a tmpfs"),
]

SIZE_BYTES = 1 << 30
MESSAGES = 20
PAUSE_S = 0.2
FULL_S = 180.0
"""Seconds until a process dies of the full disk, and at most as many until everything works again."""
PATIENCE = {"max_attempts": 100_000, "deadline_ms": 400_000, "backoff": BackoffSettings(initial_ms=200, max_ms=1_000)}
CLIENT = "device"


@contextmanager
def device(up: UpProcess) -> Iterator[Counter[bytes]]:
    """Counts what comes to an MQTT 3.1.1 device with a kept session."""
    seen: Counter[bytes] = Counter()
    client = Client(CallbackAPIVersion.VERSION2, client_id=CLIENT, clean_session=False)

    def count(_client: Client, _userdata: object, message: MQTTMessage) -> None:
        seen[message.payload] += 1

    client.on_message = count
    client.reconnect_delay_set(1, 1)
    client.connect(*up.mqtt)
    client.loop_start()
    yield seen
    client.disconnect()
    client.loop_stop()


def free_bytes_told(port: int) -> float:
    """Returns the free bytes by the engine's metrics; infinite while there is no engine."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return float("inf")
    found = re.search(r"^inflight_engine_free_disk_bytes (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Returns the log of `inflight up` so far."""
    heard: list[str] = []

    def everything() -> str:
        heard.append(capfd.readouterr().err)
        return "".join(heard)

    return everything


@pytest.mark.parametrize(
    ("place", "dies"),
    [("kafka/data", "Kafka"), ("checkpoint", "the engine"), ("", "(Kafka|the engine)")],
    ids=["the broker's disk", "the disk of the checkpoint", "the only disk"],
)
@pytest.mark.promise("full-disk")
def test_a_full_disk_is_named_and_everything_goes_on_when_there_is_room(
    place: str, dies: str, tmp_path: Path, said: Callable[[], str]
) -> None:
    data_dir, port = tmp_path / "data", free_port()
    options = (f"metrics.engine_port={port}", "retry_interval=2s", "throttle.free_disk_low=0")
    words = [word for option in options for word in ("--set", option)]
    full = re.compile(
        rf"\] {dies} ended unexpectedly.*\. The disk of {re.escape(str(data_dir / place))} is full: make room there"
    )
    sent: set[bytes] = set()
    results: list[Future[SendResult]] = []
    with (
        SmallDisk(data_dir / place, size_bytes=SIZE_BYTES) as disk,
        UpProcess(data_dir, *words, quiet=False) as up,
        device(up) as seen,
        Producer(up.kafka, registry=CollectorRegistry(), **PATIENCE) as producer,
    ):

        def send() -> None:
            sent.add(payload := b"%d" % len(sent))
            results.append(producer.send_async(CLIENT, "cmd", payload, qos=2))

        def send_slowly() -> None:
            send()
            time.sleep(PAUSE_S)

        for _ in range(MESSAGES):
            send()
        wait_until(lambda: seen.keys() == sent, "all is well at first", within_s=FULL_S)

        disk.fill()
        wait_until(
            lambda: full.search(said()), lambda: f"somebody dies of it and says so:\n{said()}", within_s=FULL_S, check=send_slowly
        )
        if place != "kafka/data":
            wait_until(lambda: free_bytes_told(port) < FULL_BYTES, "the alert sees it", within_s=FULL_S)

        disk.free()
        for _ in range(MESSAGES):
            send()
        for result in results:
            result.result(timeout=FULL_S)
        wait_until(lambda: seen.keys() == sent, lambda: f"{len(sent - seen.keys())} messages are missing", within_s=FULL_S)
        if place == "checkpoint":
            log = tail(data_dir / "logs" / "engine.log", lines=1_000, limit_bytes=1 << 20)
            assert re.search(r"inflight: a disk of the engine is full; .* for the checkpoint in .* Make room there", log), log
    assert set(seen.values()) == {1}, "once at QoS 2"
    assert up.exit_code == 0
