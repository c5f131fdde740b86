"""A device that cannot keep up, with everything real: the Producer is throttled for it alone, and nothing is dropped."""

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from prometheus_client import CollectorRegistry

from inflight.demo.up import UpProcess
from inflight.producer import Cause, Producer, SendResult
from state.settings import BackoffSettings
from tests.support.kafka_topics import read_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

MESSAGES = 1_200
PACE_S = 0.004
"""The backend sends 250 a second, so what it sends before the news reaches it fits above the high watermark."""
SETTINGS = (
    "session.max_mqueue_len=1000",
    "session.high_watermark=0.3",
    "session.low_watermark=0.1",
    "session.max_inflight=50",
)


class SlowDevice:
    """Acknowledges nothing before `go_on` was called."""

    def __init__(self, host: str, port: int) -> None:
        self.payloads: list[bytes] = []
        self._may_go_on = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id="slow", clean_session=False)
        self._client.on_message = self._received
        self._client.connect(host, port)
        self._client.loop_start()

    def go_on(self) -> None:
        self._may_go_on.set()

    def stop(self) -> None:
        self._may_go_on.set()
        self._client.disconnect()
        self._client.loop_stop()

    def _received(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        # paho acknowledges when this returns.
        self._may_go_on.wait()
        self.payloads.append(message.payload)


def outcomes(bootstrap_servers: str) -> dict[str, str]:
    """message id → outcome, of the slow device's receipts so far."""
    receipts = [msgspec.json.decode(record.value or b"") for record in read_topic(bootstrap_servers, "inflight.receipts")]
    return {receipt["message_id"]: receipt["outcome"] for receipt in receipts if receipt["client_id"] == "slow"}


def test_a_slow_device_throttles_only_its_own_backends(tmp_path: Path) -> None:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    with UpProcess(tmp_path / "data", *options) as up:
        kafka, device = up.kafka, SlowDevice(*up.mqtt)
        backoff = BackoffSettings(initial_ms=200, max_ms=1_000)
        with Producer(kafka, max_attempts=1_000, deadline_ms=300_000, backoff=backoff, registry=CollectorRegistry()) as producer:
            results: list[SendResult] = []

            def send_all() -> None:
                for number in range(MESSAGES):
                    results.append(producer.send("slow", "t", b"%d" % number, message_id=f"slow-{number}"))
                    time.sleep(PACE_S)

            backend = threading.Thread(target=send_all)
            backend.start()
            wait_until(lambda: producer.throttled("slow") is not None, "the queue of the device crosses its high watermark")
            wait_until(lambda: not growing(results), "sending to the slow device pauses")
            assert backend.is_alive()
            others = [producer.send("fast", "t", b"x") for _ in range(50)]
            assert all(len(result.attempts) == 1 for result in others), "other clients are slowed"
            device.go_on()
            backend.join(timeout=240)
            assert not backend.is_alive()
        wait_until(lambda: len(device.payloads) >= MESSAGES, "everything arrives")
        device.stop()
        assert device.payloads == [b"%d" % number for number in range(MESSAGES)]
        assert any(result.attempts[0].cause is Cause.THROTTLED for result in results)
        wait_until(lambda: len(outcomes(kafka)) >= MESSAGES, "receipts")
        assert set(outcomes(kafka).values()) == {"delivered"}


def growing(results: list[Any]) -> bool:
    before = len(results)
    time.sleep(0.3)
    return len(results) > before
