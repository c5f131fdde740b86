"""The same faults, twice: a broker alone, and the same broker with Inflight's bridge behind it.

The script, by part of the messages sent (and the same devices with the same bad luck in both runs):

| at | what happens |
|---|---|
| 10 % | a fifth of the devices is switched off |
| 20 % | the broker is stopped and started again; it has no persistence |
| 30 % | one bridge is killed (SIGKILL) and started again |
| 40 % | the broker is killed (SIGKILL) and started again |
| 50 % | those devices are switched on again |
| 60 % | the broker is frozen (SIGSTOP), for longer than anybody waits for it |
| 90 % | it goes on, after 7.5 s |
| 95 % | the other bridge is killed and started again |
| always | devices forget acknowledgements and lose their line before they acknowledge |
"""

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition

from inflight.demo.backend import Sender
from inflight.demo.bridge_broker import BridgeProcess, Mosquitto
from inflight.demo.bridge_devices import TOPIC_TEMPLATE, BridgedDevice
from inflight.demo.paho_device import paho_client, wait_until_connected
from inflight.demo.up import UpProcess

FROZEN_S: Final = 7.5
DRAIN_TIMEOUT_S: Final = 90.0
CONNECT_TIMEOUT_S: Final = 30.0
QUIET_S: Final = 8.0
TICK_S: Final = 0.1
WINDOW: Final = 4
UP_OPTIONS: Final = ("--set", "retry_interval=2s", "--set", f"max_inflight={WINDOW}")
BRIDGE_SETTINGS: Final = (
    f"bridge.topic_template={TOPIC_TEMPLATE}",
    "bridge.keep_alive_ms=2s",
    "bridge.connect_timeout_ms=2s",
    "bridge.backoff.max=3s",
    "bridge.group_session_timeout_ms=6s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """messages: to each device, by turns at QoS 1 and 2. seconds: over which they are sent. drop, cut: see BridgedDevice."""

    devices: int = 50
    messages: int = 40
    seconds: float = 25.0
    drop: float = 0.05
    cut: float = 0.02

    @property
    def total(self) -> int:
        return self.devices * self.messages

    def payload(self, device: str, number: int) -> bytes:
        return f"{device} #{number}".encode()

    @staticmethod
    def qos(number: int) -> int:
        return 1 + number % 2


@dataclass(slots=True, kw_only=True)
class TrialResult:
    """Counted by the devices; receipts: outcomes by message id, of the run with Inflight.

    lost: never received. twice_at_qos2: processed more than once although sent at QoS 2. copies: received beyond the first.
    unproven: a receipt says delivered, but the device has not processed it; must be 0.
    """

    sent: int = 0
    delivered: int = 0
    twice_at_qos2: int = 0
    copies: int = 0
    most_unacknowledged: int = 0
    receipts: Counter[str] = field(default_factory=Counter)
    unproven: int = 0
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        return self.sent - self.delivered


Watch = Callable[[str, Sequence[BridgedDevice], int], None]
"""Told a few times a second: what happens now, the devices, messages sent so far."""


class Side(ABC):
    """Whoever sends the messages: a plain MQTT publisher, or a backend on Kafka with Inflight in between."""

    def __init__(self, broker: Mosquitto) -> None:
        self.broker = broker

    @abstractmethod
    def send(self, device: str, payload: bytes, qos: int) -> None: ...

    @abstractmethod
    def kill_bridge(self, number: int) -> None: ...


class BrokerAlone(Side):
    """A paho publisher with a kept session, which repeats what the broker has not confirmed; QoS 1."""

    def __init__(self, broker: Mosquitto) -> None:
        super().__init__(broker)
        self._client = paho_client("backend", mqtt5=False)
        self._client.connect_async(broker.host, broker.port, keepalive=3)
        self._client.loop_start()
        self._number = 0

    def send(self, device: str, payload: bytes, qos: int) -> None:
        self._number += 1
        self._client.publish(f"devices/{device}/m/{self._number}/cmd", payload, qos=1)

    def kill_bridge(self, number: int) -> None:
        """There is none."""

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class WithInflight(Side):
    """`inflight up` and two bridges."""

    def __init__(self, broker: Mosquitto, data_dir: Path, kafka: str) -> None:
        super().__init__(broker)
        self._sender = Sender(kafka, "inflight.messages")
        self._bridges = [
            BridgeProcess(f"bridge-{number}", data_dir, kafka=kafka, broker=broker, settings=BRIDGE_SETTINGS) for number in (1, 2)
        ]
        self._receipts: dict[str, str] = {}
        self._consumer = KafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest", enable_auto_commit=False)
        partitions = self._consumer.partitions_for_topic("inflight.receipts") or ()
        self._consumer.assign([TopicPartition("inflight.receipts", number) for number in partitions])
        self._consumer.seek_to_beginning()

    def start(self) -> None:
        for bridge in self._bridges:
            bridge.start()
        for bridge in self._bridges:
            bridge.wait_until_ready()

    def send(self, device: str, payload: bytes, qos: int) -> None:
        self._sender.send(device, "cmd", payload, qos, message_id=payload)

    def kill_bridge(self, number: int) -> None:
        bridge = self._bridges[number]
        bridge.kill()
        bridge.start()

    def receipts(self) -> dict[str, str]:
        """Outcome by message id, of those that are final. Reads what has come since the last call."""
        while records := self._consumer.poll(timeout_ms=200):
            for batch in records.values():
                for record in batch:
                    receipt: dict[str, Any] = json.loads(record.value)
                    if receipt.get("final", True):
                        self._receipts[receipt["message_id"]] = receipt["outcome"]
        return self._receipts

    def close(self) -> None:
        for bridge in self._bridges:
            bridge.stop()
        self._consumer.close()
        self._sender.close()


def run_broker_alone(plan: TrialPlan, data_dir: Path, watch: Watch) -> TrialResult:
    """The script without Inflight."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(data_dir / "alone"))
        side = BrokerAlone(broker)
        stack.callback(side.close)
        devices = start_devices(plan, broker, stack)
        perform(plan, side, devices, watch)
        _wait_until_quiet(plan, devices, watch)
        return count_result(plan, devices, seconds=time.monotonic() - started)


def run_with_inflight(plan: TrialPlan, data_dir: Path, watch: Watch, up: UpProcess) -> TrialResult:
    """The same with Inflight. up: running, with UP_OPTIONS."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(data_dir / "bridged"))
        side = WithInflight(broker, data_dir, up.kafka)
        stack.callback(side.close)
        side.start()
        devices = start_devices(plan, broker, stack)
        perform(plan, side, devices, watch)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while len(side.receipts()) < plan.total and time.monotonic() < deadline:
            watch("everything drains", devices, plan.total)
        receipts = side.receipts()
        result = count_result(plan, devices, seconds=time.monotonic() - started)
    result.receipts = Counter(receipts.values())
    processed = {payload.decode() for device in devices for payload in device.processed}
    result.unproven = sum(1 for message_id, outcome in receipts.items() if outcome == "delivered" and message_id not in processed)
    return result


def start_devices(plan: TrialPlan, broker: Mosquitto, stack: contextlib.ExitStack) -> list[BridgedDevice]:
    """Every second one speaks MQTT 3.1.1. Returns when all are connected."""
    devices = [
        BridgedDevice(f"dev-{number:02}", mqtt5=number % 2 == 0, drop=plan.drop, cut=plan.cut, seed=1)
        for number in range(plan.devices)
    ]
    for device in devices:
        stack.callback(device.stop)
        device.start(broker.host, broker.port)
    wait_until_connected(devices, CONNECT_TIMEOUT_S)
    return devices


def perform(plan: TrialPlan, side: Side, devices: list[BridgedDevice], watch: Watch) -> None:
    """Send at an even pace, and let things happen on the way."""
    script = _script(plan, side, devices)
    happened = "all is well"
    started = time.monotonic()
    sent = 0
    while sent < plan.messages:
        part = min(1.0, (time.monotonic() - started) / plan.seconds)
        while script and part >= script[0][0]:
            _, happened, actions = script.pop(0)
            for act in actions:
                act()
        while sent < part * plan.messages:
            for device in devices:
                side.send(device.name, plan.payload(device.name, sent), plan.qos(sent))
            sent += 1
        watch(happened, devices, sent * len(devices))
        time.sleep(TICK_S)


def _script(plan: TrialPlan, side: Side, devices: list[BridgedDevice]) -> list[tuple[float, str, Sequence[Callable[[], None]]]]:
    """(part of the messages sent, what to say then, what to do), in order."""
    broker, some = side.broker, devices[::5]
    thawed_at = min(0.9, 0.60 + FROZEN_S / plan.seconds)
    return [
        (0.10, "some devices are off", [device.stop for device in some]),
        (0.20, "the broker was restarted", [broker.stop, broker.start]),
        (0.30, "a bridge was killed", [partial(side.kill_bridge, 0)]),
        (0.40, "the broker was killed", [broker.kill, broker.start]),
        (0.50, "all devices are on again", [partial(device.start, broker.host, broker.port) for device in some]),
        (0.60, "the broker is frozen", [broker.freeze]),
        (thawed_at, "the broker goes on", [broker.thaw]),
        (0.95, "a bridge was killed", [partial(side.kill_bridge, 1)]),
    ]


def _wait_until_quiet(plan: TrialPlan, devices: list[BridgedDevice], watch: Watch) -> None:
    """Nothing comes any more: whatever is missing is lost."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        now = sum(device.copies.total() for device in devices)
        if now != seen:
            seen, since = now, time.monotonic()
        watch("everything drains", devices, plan.total)
        time.sleep(TICK_S)


def count_result(plan: TrialPlan, devices: list[BridgedDevice], *, seconds: float) -> TrialResult:
    result = TrialResult(sent=plan.total, seconds=seconds)
    for device in devices:
        for number in range(plan.messages):
            payload = plan.payload(device.name, number)
            result.delivered += device.copies[payload] > 0
            result.copies += max(0, device.copies[payload] - 1)
            result.twice_at_qos2 += plan.qos(number) == 2 and device.processed[payload] > 1
        result.most_unacknowledged = max(result.most_unacknowledged, device.most_unacknowledged)
    return result
