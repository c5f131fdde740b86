"""A real Mosquitto is restarted, killed and frozen under 50 devices, bridges are killed, devices forget to acknowledge."""

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from inflight.demo.paho_device import paho_client
from inflight.demo.up import UpProcess
from tests.integration.bridge.broker_faults import TOTAL, WINDOW, counted, perform, start_devices
from tests.support.bridged_device import TOPIC_TEMPLATE
from tests.support.mosquitto import BridgeProcess, Mosquitto, needs_mosquitto

pytestmark = [pytest.mark.interop, pytest.mark.faults, pytest.mark.timeout(900), needs_mosquitto]

_QUIET_S = 8.0
_STALLED_S = 60.0
"""Seconds without a new receipt after which missing ones are lost: longer than all backoffs and session time-outs together."""
_SETTINGS = (
    f"bridge.topic_template={TOPIC_TEMPLATE}",
    "bridge.keep_alive_ms=2s",
    "bridge.connect_timeout_ms=2s",
    "bridge.backoff.max=3s",
    "bridge.group_session_timeout_ms=6s",
)


class BrokerAlone:
    """A paho publisher with a kept session, which repeats what the broker has not confirmed; QoS 1."""

    def __init__(self, broker: Mosquitto) -> None:
        self.broker = broker
        self._client = paho_client("backend", mqtt5=False)
        self._client.connect_async(broker.host, broker.port, keepalive=3)
        self._client.loop_start()
        self._number = 0

    def send(self, device: str, payload: bytes, qos: int) -> None:
        self._number += 1
        self._client.publish(f"devices/{device}/m/{self._number}/cmd", payload, qos=1)

    def kill_bridge(self, number: int) -> None:
        """Does nothing: this variant has no bridge."""

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class WithInflight:
    """A backend on the Kafka of `inflight up`, and two bridges."""

    def __init__(self, broker: Mosquitto, data_dir: Path, kafka: str) -> None:
        self.broker = broker
        self._sender = KafkaProducer(bootstrap_servers=kafka, acks="all", enable_idempotence=True, linger_ms=5)
        names = ("bridge-1", "bridge-2")
        self._bridges = [BridgeProcess(name, data_dir, kafka=kafka, broker=broker, settings=_SETTINGS) for name in names]
        self._receipts: dict[str, str] = {}
        self._consumer = KafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest", enable_auto_commit=False)
        partitions = self._consumer.partitions_for_topic("inflight.receipts") or ()
        self._consumer.assign([TopicPartition("inflight.receipts", number) for number in partitions])
        self._consumer.seek_to_beginning()

    def start(self) -> None:
        for bridge in self._bridges:
            bridge.spawn()
        for bridge in self._bridges:
            bridge.await_ready()

    def send(self, device: str, payload: bytes, qos: int) -> None:
        headers = [("mqtt-topic", b"cmd"), ("mqtt-qos", b"%d" % qos), ("message-id", payload)]
        self._sender.send("inflight.messages", key=device.encode(), value=payload, headers=headers)

    def kill_bridge(self, number: int) -> None:
        self._bridges[number].kill()
        self._bridges[number].spawn()

    def receipts(self) -> dict[str, str]:
        """Outcomes of the final receipts by message id. Reads what has come since the last call."""
        while records := self._consumer.poll(timeout_ms=200):
            for receipt in (json.loads(record.value) for batch in records.values() for record in batch):
                if receipt.get("final", True):
                    self._receipts[receipt["message_id"]] = receipt["outcome"]
        return self._receipts

    def close(self) -> None:
        for bridge in self._bridges:
            bridge.kill()
        self._consumer.close()
        self._sender.close()


def test_with_inflight_nothing_is_lost_and_the_receipts_say_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        options = ("--set", "retry_interval=2s", "--set", f"max_inflight={WINDOW}", "--set", "engine.nice=0")
        up = stack.enter_context(UpProcess(tmp_path / "up", *options))
        broker = stack.enter_context(Mosquitto(tmp_path))
        side = WithInflight(broker, tmp_path, up.kafka)
        stack.callback(side.close)
        side.start()
        devices = start_devices(broker, stack)
        perform(side, devices)
        known, since = 0, time.monotonic()
        while len(receipts := side.receipts()) < TOTAL and time.monotonic() - since < _STALLED_S:
            if len(receipts) != known:
                known, since = len(receipts), time.monotonic()
        counts = counted(devices)
    print(counts)
    assert Counter(receipts.values()) == {"delivered": TOTAL}
    assert (counts.lost, counts.twice_at_qos2) == (0, 0)
    assert counts.most_unacknowledged <= WINDOW
    assert counts.copies > 0, "no fault had any effect"
    processed = {payload.decode() for device in devices for payload in device.processed}
    assert receipts.keys() == processed


def test_the_broker_alone_loses_messages_in_the_same_script(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(tmp_path))
        side = BrokerAlone(broker)
        stack.callback(side.close)
        devices = start_devices(broker, stack)
        perform(side, devices)
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < _QUIET_S:  # no further messages come: the missing ones are lost
            now = sum(device.copies.total() for device in devices)
            if now != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.1)
        counts = counted(devices)
    print(counts)
    assert counts.lost > 0
