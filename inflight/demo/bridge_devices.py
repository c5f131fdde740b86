"""Devices behind a broker: paho-mqtt clients with a kept session, which count for themselves what they receive and do.

The same devices run with Inflight and without. With it a message carries a message id and wants an answer; then they do what
docs/bridge.md asks of a device, in the few lines of `_on_message`.
"""

import contextlib
import json
import random
import threading
from collections import Counter
from typing import Any, Final
from urllib.parse import unquote

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

KEEP_ALIVE_S: Final = 3
SESSION_EXPIRY_S: Final = 3_600
TOPIC_TEMPLATE: Final = "devices/{client_id}/m/{message_id}/{topic}"
"""What the bridges of a trial are given: the id in the topic is for the devices that speak MQTT 3.1.1."""


class BridgedDevice:
    """One device.

    processed: how often it acted on each payload. copies: how often each payload came. acknowledged: payloads that it has
    answered for. most_unacknowledged: of messages that it had received and not answered for. drop: part of the messages whose
    acknowledgement it forgets once; cut: part of the messages at which it loses its line before it answers.
    """

    def __init__(self, name: str, *, mqtt5: bool, drop: float = 0.0, cut: float = 0.0, seed: int = 0) -> None:
        self.name = name
        self.processed: Counter[bytes] = Counter()
        self.copies: Counter[bytes] = Counter()
        self.acknowledged: set[bytes] = set()
        self.most_unacknowledged = 0
        self.connections = 0
        self.connected = threading.Event()
        self._mqtt5 = mqtt5
        self._drop = drop
        self._cut = cut
        self._dice = random.Random(f"{seed}/{name}")  # noqa: S311
        self._done: set[str] = set()
        self._unacknowledged: set[str] = set()
        self._mishaps: set[bytes] = set()
        self._client = self._new_client()

    def start(self, host: str, port: int) -> None:
        """Connect in the background, and again whenever the connection ends."""
        options: dict[str, Any] = {}
        if self._mqtt5:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_EXPIRY_S
            options = {"clean_start": False, "properties": properties}
        self._client.connect_async(host, port, keepalive=KEEP_ALIVE_S, **options)
        self._client.loop_start()

    def stop(self) -> None:
        """Say goodbye as a device does that is switched off."""
        self._client.publish(f"devices/{self.name}/presence", "offline", qos=1, retain=True)
        self._client.disconnect()
        self._client.loop_stop()
        self.connected.clear()

    def _new_client(self) -> mqtt.Client:
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.name,
            clean_session=None if self._mqtt5 else False,
            protocol=MQTTProtocolVersion.MQTTv5 if self._mqtt5 else MQTTProtocolVersion.MQTTv311,
        )
        client.reconnect_delay_set(min_delay=1, max_delay=1)
        client.will_set(f"devices/{self.name}/presence", "offline", qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        return client

    def _on_connect(self, client: mqtt.Client, *_: object) -> None:
        self.connections += 1
        client.subscribe(f"devices/{self.name}/m/#", qos=2)
        client.publish(f"devices/{self.name}/presence", "online", qos=1, retain=True)
        self.connected.set()

    def _on_disconnect(self, *_: object) -> None:
        self.connected.clear()

    def _on_message(self, client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
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
            properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.CorrelationData = getattr(message.properties, "CorrelationData", b"")
            client.publish(response_topic, b"", qos=1, properties=properties)
        elif not self._mqtt5:
            client.publish(f"devices/{self.name}/ack", json.dumps({"id": message_id}), qos=1)

    def _has_a_mishap(self, payload: bytes) -> bool:
        """At most once for a message."""
        if payload in self._mishaps:
            return False
        self._mishaps.add(payload)
        chance = self._dice.random()
        if chance < self._cut:
            sock: Any = self._client.socket()
            if sock is not None:
                with contextlib.suppress(OSError):  # the other side was quicker
                    sock.shutdown(2)
            return True
        return chance < self._cut + self._drop
