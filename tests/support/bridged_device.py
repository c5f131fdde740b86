"""A device behind a broker, which counts for itself what it receives and does.

With Inflight a message carries a message id and asks for an answer; then the device does what docs/guides/bridge.md asks of it.
"""

import json
import random
from collections import Counter
from typing import Final
from urllib.parse import unquote

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes

from inflight.demo.paho_device import PahoDevice, properties_of

KEEP_ALIVE_S: Final = 3
TOPIC_TEMPLATE: Final = "devices/{client_id}/m/{message_id}/{topic}"
"""A value for `bridge.topic_template`: the id in the topic is for the devices that speak MQTT 3.1.1."""


class BridgedDevice(PahoDevice):
    """A device behind a broker that answers as a bridge expects.

    processed: how often it acted on each payload.
    copies: how often each payload came.
    acknowledged: payloads that it has acknowledged.
    most_unacknowledged: highest number of messages that it had received and not acknowledged.
    drop: share of the messages whose acknowledgement it forgets once.
    cut: share of the messages at which it loses its connection before it acknowledges.
    """

    def __init__(self, name: str, *, mqtt5: bool, drop: float = 0.0, cut: float = 0.0, seed: int = 0) -> None:
        super().__init__(name, mqtt5=mqtt5, keep_alive_s=KEEP_ALIVE_S)
        self.processed: Counter[bytes] = Counter()
        self.copies: Counter[bytes] = Counter()
        self.acknowledged: set[bytes] = set()
        self.most_unacknowledged = 0
        self._drop = drop
        self._cut = cut
        self._dice = random.Random(f"{seed}/{name}")
        self._done: set[str] = set()
        self._unacknowledged: set[str] = set()
        self._mishaps: set[bytes] = set()
        self._client.will_set(f"devices/{name}/presence", "offline", qos=1, retain=True)

    def stop(self) -> None:
        """Publishes `offline` and disconnects, as a device does that is switched off."""
        self._client.publish(f"devices/{self.name}/presence", "offline", qos=1, retain=True)
        super().stop()

    def on_connected(self, client: mqtt.Client) -> None:
        client.subscribe(f"devices/{self.name}/m/#", qos=2)
        client.publish(f"devices/{self.name}/presence", "online", qos=1, retain=True)

    def on_message(self, client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
        payload = bytes(message.payload)
        self.copies[payload] += 1
        message_id = unquote(message.topic.split("/")[3])
        if message_id not in self._done:  # a copy is acknowledged again, and that is all
            self._done.add(message_id)
            self.processed[payload] += 1
        if payload not in self.acknowledged:
            self._unacknowledged.add(message_id)
            self.most_unacknowledged = max(self.most_unacknowledged, len(self._unacknowledged))
        if not self._has_a_mishap(payload):
            self._acknowledge(client, message, message_id)
            self._unacknowledged.discard(message_id)
            self.acknowledged.add(payload)

    def _acknowledge(self, client: mqtt.Client, message: mqtt.MQTTMessage, message_id: str) -> None:
        response_topic = getattr(message.properties, "ResponseTopic", None)
        if response_topic is not None:
            correlation = getattr(message.properties, "CorrelationData", b"")
            client.publish(response_topic, b"", qos=1, properties=properties_of(PacketTypes.PUBLISH, CorrelationData=correlation))
        elif not self.mqtt5:
            client.publish(f"devices/{self.name}/ack", json.dumps({"id": message_id}), qos=1)

    def _has_a_mishap(self, payload: bytes) -> bool:
        """Draws whether this acknowledgement is lost, and may cut the connection; at most once for a message."""
        if payload in self._mishaps:
            return False
        self._mishaps.add(payload)
        chance = self._dice.random()
        if chance < self._cut:
            self.cut_the_line()
        return chance < self._cut + self._drop
