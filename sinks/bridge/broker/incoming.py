"""A message that the broker delivers."""

from collections.abc import Callable

import paho.mqtt.client as mqtt

from sinks.bridge.broker.paho_properties import from_paho
from state.model import PublishProperties


class Incoming:
    """Call `confirm` when the message is handled. The broker gets acknowledgements in order [MQTT-4.6.0-2]."""

    __slots__ = ("_on_confirmed", "confirmed", "message")

    def __init__(self, message: mqtt.MQTTMessage, *, on_confirmed: Callable[[], None]) -> None:
        self._on_confirmed = on_confirmed
        self.message = message
        self.confirmed = False

    @property
    def topic(self) -> str | None:
        """Returns None if it is not UTF-8, which no broker should let through."""
        try:
            return self.message.topic
        except UnicodeDecodeError:
            return None

    @property
    def payload(self) -> bytes:
        return bytes(self.message.payload)

    @property
    def properties(self) -> PublishProperties:
        return from_paho(self.message.properties)

    @property
    def expiry_interval_s(self) -> int | None:
        expiry: int | None = getattr(self.message.properties, "MessageExpiryInterval", None)
        return expiry

    def confirm(self) -> None:
        self.confirmed = True
        self._on_confirmed()
