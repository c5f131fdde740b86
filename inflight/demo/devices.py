"""The demo's devices: they misbehave as real ones do, and count for themselves what they receive."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import paho.mqtt.client as mqtt

from inflight.demo.paho_device import PahoDevice


class Manners(StrEnum):
    """Names the ways in which devices of the demo misbehave."""

    STEADY = "steady"
    SWALLOWS_ACKS = "swallows PUBACKs"
    BREAKS_OFF = "breaks off in mid-handshake"
    LATE = "offline at first"


class Device(PahoDevice):
    """A device of the demo, which counts for itself what it receives.

    Args:
        subscribe: The topic filters to which it subscribes at QoS 2.
        misbehave_every: Each so many messages, by first arrival, meet the device's bad manners once.

    Attributes:
        received: How often each payload came, by the device's own count.
        topic_filters: It subscribes to these at QoS 2.
        subscribed: Set when its SUBSCRIBE is answered.
        to_publish: Topics and payloads.
        published: The payloads of its QoS 2 publications until now.
    """

    def __init__(
        self, name: str, manners: Manners, *, mqtt5: bool, subscribe: Sequence[str] = (), misbehave_every: int = 4
    ) -> None:
        super().__init__(name, mqtt5=mqtt5, keep_alive_s=30, manual_ack=manners is Manners.SWALLOWS_ACKS)
        self.manners = manners
        self.received: Counter[bytes] = Counter()
        self.topic_filters = subscribe
        self.subscribed = threading.Event()
        self.to_publish: list[tuple[str, bytes]] = []
        self.published: list[bytes] = []
        self._misbehave_every = misbehave_every
        self._client.max_inflight_messages_set(5)
        self._client.on_subscribe = lambda *_: self.subscribed.set()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 2; paho keeps it until the handshake is complete."""
        self.published.append(payload)
        self._client.publish(topic, payload, qos=2)

    def on_connected(self, client: mqtt.Client) -> None:
        """Subscribes, until that is answered; its session keeps the subscriptions."""
        if self.topic_filters and not self.subscribed.is_set():
            client.subscribe([(topic_filter, 2) for topic_filter in self.topic_filters])

    def on_message(self, client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
        payload = bytes(message.payload)
        self.received[payload] += 1
        first = self.received[payload] == 1
        misbehaves = first and message.qos > 0 and len(self.received) % self._misbehave_every == 0
        if self.manners is Manners.BREAKS_OFF and misbehaves:
            self.cut_the_line()  # before paho answers: the acknowledgement is lost with the connection
        elif self.manners is Manners.SWALLOWS_ACKS and not (misbehaves and message.qos == 1):
            client.ack(message.mid, message.qos)


def wait_until_subscribed(devices: Sequence[Device], timeout_s: float) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    missing = [device.name for device in devices if not device.subscribed.wait(max(0.0, deadline - time.monotonic()))]
    if missing:
        raise TimeoutError(f"not subscribed within {timeout_s:.0f} s: {', '.join(missing)}")
