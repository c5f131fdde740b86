"""The demo's devices: they misbehave as real ones do, and count for themselves what they receive."""

from collections import Counter
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
    """One device.

    received: how often each payload came, by the device's own count.
    published: the QoS 2 publications it was asked for.
    misbehave_every: each so many messages, by first arrival, meet the device's bad manners once.
    """

    def __init__(self, name: str, manners: Manners, *, mqtt5: bool, misbehave_every: int = 4) -> None:
        super().__init__(name, mqtt5=mqtt5, keep_alive_s=30, manual_ack=manners is Manners.SWALLOWS_ACKS)
        self.manners = manners
        self.received: Counter[bytes] = Counter()
        self.published: list[bytes] = []
        self._misbehave_every = misbehave_every
        self._client.max_inflight_messages_set(5)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 2; paho keeps it until the handshake is complete."""
        self.published.append(payload)
        self._client.publish(topic, payload, qos=2)

    def on_message(self, client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
        payload = bytes(message.payload)
        self.received[payload] += 1
        first = self.received[payload] == 1
        misbehaves = first and message.qos > 0 and len(self.received) % self._misbehave_every == 0
        if self.manners is Manners.BREAKS_OFF and misbehaves:
            self.cut_the_line()  # before paho answers: the acknowledgement is lost with the connection
        elif self.manners is Manners.SWALLOWS_ACKS and not (misbehaves and message.qos == 1):
            client.ack(message.mid, message.qos)
