"""The topic of the messages is deleted and created again: the engine goes on with all sessions when it is told to.

The command is that of docs/operate/accept_loss.md.
"""

import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import paho.mqtt.client as paho
import pytest
from kafka import KafkaAdminClient

from state.records.ledger import LedgerRow
from streaming.config.settings import load_settings
from streaming.topics import ensure_topics
from tests.integration.up.paho_device import PahoDevice
from tests.spark.engine_topics import EngineTopics
from tests.support.inflight_process import InflightProcess
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "accept_loss.md"
PREFIX = "recreated-messages"
ATTEMPTS = 20


@dataclass
class Gateway:
    """The address that a device needs."""

    mqtt: tuple[str, int]


class Site:
    """Topics, a backend, and the settings of the processes."""

    def __init__(self, kafka: SharedKafka, directory: Path) -> None:
        self.topics = EngineTopics(kafka, PREFIX)
        self.settings = [
            f"kafka.bootstrap_servers={kafka.bootstrap_servers}",
            f"topics.prefix={PREFIX}",
            "topics.partitions.messages=1",
            f"engine.data_dir={directory / 'data'}",
            "engine.driver_memory=512m",
            "engine.state_partitions=1",
            "metrics.engine_port=0",
            "metrics.gateway_port=0",
            "gateway.port=0",
        ]
        ensure_topics(load_settings(None, self.settings))
        self._numbers = itertools.count()

    def recreate_messages(self) -> None:
        name = f"{PREFIX}.messages"
        admin = KafkaAdminClient(bootstrap_servers=self.topics.kafka)
        try:
            admin.delete_topics([name])
            wait_until(lambda: name not in admin.list_topics(), "the topic is deleted")
        finally:
            admin.close()
        ensure_topics(load_settings(None, self.settings))

    def inflight(self, *command: str) -> "subprocess.CompletedProcess[str]":
        flags = [word for setting in self.settings for word in ("--set", setting)]
        words = [sys.executable, "-m", "inflight", *command, *flags]
        return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def send(self, client_id: str) -> str:
        """Returns the id of a new message, which is its payload."""
        message_id = f"{client_id}-{next(self._numbers)}"
        self.topics.append(
            "messages",
            message_id.encode(),
            client_id.encode(),
            [("mqtt-topic", b"cmd/x"), ("mqtt-qos", b"1"), ("message-id", message_id.encode())],
        )
        return message_id

    def ledger(self, message_id: str, transition: str) -> None:
        """Waits for a row about a message."""

        def is_there(records: list[ReadRecord]) -> bool:
            rows = (row for record in records for row in msgspec.json.decode(record.value or b"", type=list[LedgerRow]))
            return any((row.message_id, row.transition) == (message_id, transition) for row in rows)

        read_topic(self.topics.kafka, f"{PREFIX}.ledger", is_there)

    def was_fast(self, message_id: str) -> bool:
        def receipts(records: list[ReadRecord]) -> list[bool]:
            found = [msgspec.json.decode(record.value or b"") for record in records]
            return [receipt["fast_path"] for receipt in found if receipt["message_id"] == message_id]

        return receipts(read_topic(self.topics.kafka, f"{PREFIX}.receipts", lambda records: bool(receipts(records))))[0]

    def deliver(self, device: PahoDevice) -> bool:
        """Sends a message that the device acknowledges. Returns True if it came by the fast path."""
        message_id = self.send("online")
        await_message(device, message_id)
        return self.was_fast(message_id)


def await_message(device: PahoDevice, message_id: str) -> None:
    wait_until(lambda: message_id.encode() in payloads(device), f"{message_id} arrives")
    message = next(message for message in device.messages if message.payload == message_id.encode())
    device.client.ack(message.mid, message.qos)


def payloads(device: PahoDevice) -> list[bytes]:
    return [message.payload for message in device.messages]


@pytest.mark.promise("recreated-topic")
def test_sessions_go_on_after_the_messages_topic_was_recreated(kafka: SharedKafka, tmp_path: Path) -> None:
    (written,) = re.findall(r"^inflight (engine .*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    site = Site(kafka, tmp_path)
    engine = InflightProcess(tmp_path, "engine", "engine", settings=site.settings)
    with InflightProcess(tmp_path, "gateway", "gateway", settings=site.settings) as process, engine:
        gateway = Gateway(process.address("mqtt"))
        with PahoDevice(gateway, "away", paho.MQTTv5):  # type: ignore[arg-type]
            pass
        queued = [site.send("away"), site.send("away")]
        with PahoDevice(gateway, "online", paho.MQTTv5) as device:  # type: ignore[arg-type]
            assert any(site.deliver(device) for _ in range(ATTEMPTS)), "the fast path is open"
            site.ledger(queued[1], "accepted")
            engine.stop()
            site.send("away")  # is lost
            site.recreate_messages()
            refused = site.inflight("engine")
            assert refused.returncode == 1
            assert f"{PREFIX}.messages: deleted and made anew" in refused.stderr
            assert "--accept-loss" in refused.stderr
            early = site.send("online")

            with InflightProcess(tmp_path, "engine-2", *written.split(), settings=site.settings):
                await_message(device, early)
                assert any(site.deliver(device) for _ in range(ATTEMPTS)), "the fast path is open again"
                last = site.send("away")
                with PahoDevice(gateway, "away", paho.MQTTv5) as away:  # type: ignore[arg-type]
                    for message_id in (*queued, last):
                        await_message(away, message_id)
                    assert payloads(away) == [message_id.encode() for message_id in (*queued, last)]
            got = payloads(device)
            assert len(got) == len(set(got)), "nothing comes twice"

    seen = json.loads(site.inflight("status", "--json").stdout)
    (found,) = [finding["what"] for finding in seen["findings"] if "that were deleted unread" in finding["what"]]
    assert f"an unknown number of {PREFIX}.messages" in found
    assert f"{PREFIX}.messages-0 from " in found
