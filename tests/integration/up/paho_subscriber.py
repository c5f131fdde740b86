"""A client with paho-mqtt that subscribes and publishes, and waits for each answer."""

import threading
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.integration.up.wire_device import PATIENCE_S
from tests.support.waiting import wait_until

VERSION_OF_LEVEL = {4: paho.MQTTv311, 5: paho.MQTTv5}


class PahoSubscriber:
    """A client that is connected within `with`.

    Args:
        keeps_session: Its session outlives the connection by an hour.
        manual_ack: A test acknowledges what it receives, with `client.ack`.

    Attributes:
        messages: What it has received, in order.
    """

    def __init__(
        self, address: tuple[str, int], client_id: str, level: int = 5, *, keeps_session: bool = False, manual_ack: bool = False
    ) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._level = level
        self._answered: dict[int, Any] = {}
        self._connected = threading.Event()
        options: dict[str, Any] = {}
        if level == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3_600 if keeps_session else 0
            options = {"clean_start": not keeps_session, "properties": properties}
        clean = {} if level == 5 else {"clean_session": not keeps_session}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=VERSION_OF_LEVEL[level], manual_ack=manual_ack, **clean
        )
        self.client.on_message = lambda client, data, message: self.messages.append(message)
        self.client.on_connect = lambda client, data, flags, reason, properties: self._connected.set()
        self.client.on_subscribe = lambda client, data, mid, reasons, properties: self._note(mid, reasons)
        self.client.on_unsubscribe = lambda client, data, mid, reasons, properties: self._note(mid, reasons)
        self._address, self._options = address, options

    def __enter__(self) -> Self:
        self._connected.clear()
        self.client.connect(*self._address, **self._options)
        self.client.loop_start()
        assert self._connected.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _note(self, mid: int, reasons: Any) -> None:
        self._answered[mid] = reasons

    def subscribe(self, topic_filter: str, qos: int = 2, *, identifier: int | None = None, **options: Any) -> list[int]:
        """Returns the reason codes of SUBACK. options: those of paho's SubscribeOptions (MQTT 5)."""
        if self._level == 5:
            properties = None
            if identifier is not None:
                properties = Properties(PacketTypes.SUBSCRIBE)
                properties.SubscriptionIdentifier = identifier
            _, mid = self.client.subscribe(topic_filter, options=SubscribeOptions(qos=qos, **options), properties=properties)
        else:
            _, mid = self.client.subscribe(topic_filter, qos)
        assert mid is not None
        reasons = wait_until(lambda: self._answered.get(mid), f"SUBACK for {topic_filter}")
        return [reason.value for reason in reasons]

    def unsubscribe(self, topic_filter: str) -> None:
        _, mid = self.client.unsubscribe(topic_filter)
        wait_until(lambda: mid in self._answered, f"UNSUBACK for {topic_filter}")

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Returns when the handshake is complete."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE_S)

    def payloads(self, count: int) -> list[bytes]:
        """Returns the payloads of all messages so far, as soon as there are `count`."""
        wait_until(lambda: len(self.messages) >= count, lambda: f"{count} messages; there are {self._seen()}")
        return self._seen()

    def _seen(self) -> list[bytes]:
        return [message.payload for message in self.messages]
