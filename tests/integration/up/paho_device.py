"""A device with paho-mqtt, which somebody else wrote, on a session that is kept."""

import socket
import threading
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from inflight.demo.up import UpProcess
from tests.integration.up.wire_device import PATIENCE_S


class PahoDevice:
    """paho-mqtt with a kept session, as it comes, but for acknowledging by hand at first.

    max_inflight: of its publications; paho's own default is 20.
    """

    def __init__(self, up: UpProcess, client_id: str, version: int, *, max_inflight: int = 20) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._subscribed = threading.Event()
        options: dict[str, Any] = {}
        if version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3_600
            options = {"clean_start": False, "properties": properties}
        clean = {} if version == paho.MQTTv5 else {"clean_session": False}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            manual_ack=True,
            reconnect_on_failure=True,
            **clean,
        )
        self.client.max_inflight_messages_set(max_inflight)
        self.client.on_message = lambda client, data, message: self.messages.append(message)
        self.client.on_connect = lambda client, data, flags, reason, properties: client.subscribe("cmd/#", qos=2)
        self.client.on_subscribe = lambda client, data, mid, reasons, properties: self._subscribed.set()
        self.client.connect(*up.mqtt, **options)
        self.client.loop_start()

    def __enter__(self) -> "PahoDevice":
        assert self._subscribed.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def cut(self) -> None:
        """Cuts the network connection; paho reconnects."""
        connection = self.client.socket()
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)
