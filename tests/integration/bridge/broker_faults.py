"""One script of faults for a broker with 50 devices, by share of the messages sent.

| at | what happens |
|---|---|
| 10 % | a fifth of the devices is switched off |
| 20 % | the broker is stopped and started again; it has no persistence |
| 30 % | one bridge is killed (SIGKILL) and started again |
| 40 % | the broker is killed (SIGKILL) and started again |
| 50 % | those devices are switched on again |
| 60 % | the broker is frozen (SIGSTOP), for longer than any client waits for it |
| 90 % | it goes on, after 7.5 s |
| 95 % | the other bridge is killed and started again |
| always | devices forget acknowledgements and lose their connection before they acknowledge |
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from inflight.demo.paho_device import wait_until_connected
from tests.support.bridged_device import BridgedDevice
from tests.support.mosquitto import Mosquitto

DEVICES = 50
MESSAGES = 40
"""Messages to each device, by turns at QoS 1 and 2."""
TOTAL = DEVICES * MESSAGES
WINDOW = 4
"""`max_inflight` of a session."""
_SECONDS = 25.0
_FROZEN_S = 7.5
_FORGETS, _LOSES_CONNECTION = 0.05, 0.02
_TICK_S = 0.05


class Publisher(Protocol):
    """Sends the messages: a plain MQTT client, or a backend with Inflight between it and the broker."""

    broker: Mosquitto

    def send(self, device: str, payload: bytes, qos: int) -> None: ...

    def kill_bridge(self, number: int) -> None: ...


@dataclass(slots=True, kw_only=True)
class Counts:
    """Sums up what the devices have counted.

    lost: messages that never came. twice_at_qos2: messages sent at QoS 2 and processed more than once. copies: received beyond
    the first. most_unacknowledged: at one device at a time.
    """

    lost: int = 0
    twice_at_qos2: int = 0
    copies: int = 0
    most_unacknowledged: int = 0


def start_devices(broker: Mosquitto, stack: ExitStack) -> list[BridgedDevice]:
    """Starts them, half with MQTT 3.1.1. Returns when all are connected; the stack stops them."""
    devices = [
        BridgedDevice(f"dev-{number:02}", mqtt5=number % 2 == 0, drop=_FORGETS, cut=_LOSES_CONNECTION, seed=1)
        for number in range(DEVICES)
    ]
    for device in devices:
        stack.callback(device.stop)
        device.start(broker.host, broker.port)
    wait_until_connected(devices, 30.0)
    return devices


def perform(publisher: Publisher, devices: list[BridgedDevice]) -> None:
    """Sends all messages at an even pace and carries the script out meanwhile."""
    script = _script(publisher, devices)
    started = time.monotonic()
    sent = 0
    while sent < MESSAGES:
        share = min(1.0, (time.monotonic() - started) / _SECONDS)
        while script and share >= script[0][0]:
            for act in script.pop(0)[1]:
                act()
        while sent < share * MESSAGES:
            for device in devices:
                publisher.send(device.name, _payload(device.name, sent), _qos(sent))
            sent += 1
        time.sleep(_TICK_S)


def counted(devices: list[BridgedDevice]) -> Counts:
    counts = Counts(most_unacknowledged=max(device.most_unacknowledged for device in devices))
    for device in devices:
        for number in range(MESSAGES):
            payload = _payload(device.name, number)
            counts.lost += device.copies[payload] == 0
            counts.copies += max(0, device.copies[payload] - 1)
            counts.twice_at_qos2 += _qos(number) == 2 and device.processed[payload] > 1
    return counts


def _script(publisher: Publisher, devices: list[BridgedDevice]) -> list[tuple[float, Sequence[Callable[[], None]]]]:
    """(share of the messages sent, what to do then), in order."""
    broker, some = publisher.broker, devices[::5]
    return [
        (0.10, [device.stop for device in some]),
        (0.20, [broker.stop, broker.start]),
        (0.30, [partial(publisher.kill_bridge, 0)]),
        (0.40, [broker.kill, broker.start]),
        (0.50, [partial(device.start, broker.host, broker.port) for device in some]),
        (0.60, [broker.freeze]),
        (0.60 + _FROZEN_S / _SECONDS, [broker.thaw]),
        (0.95, [partial(publisher.kill_bridge, 1)]),
    ]


def _payload(device: str, number: int) -> bytes:
    return f"{device} #{number}".encode()


def _qos(number: int) -> int:
    return 1 + number % 2
