"""The base of all devices of the demo: an unmodified paho-mqtt client with a persistent session."""

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

SESSION_EXPIRY_S: Final = 3_600


def paho_client(client_id: str, *, mqtt5: bool, manual_ack: bool = False) -> mqtt.Client:
    """A client that keeps its session and connects again after a second whenever the connection ends."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if mqtt5 else False,
        protocol=MQTTProtocolVersion.MQTTv5 if mqtt5 else MQTTProtocolVersion.MQTTv311,
        manual_ack=manual_ack,
    )
    client.reconnect_delay_set(min_delay=1, max_delay=1)
    return client


def properties_of(packet_type: int, **values: Any) -> Any:
    """MQTT 5 properties by paho's names."""
    properties: Any = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


class PahoDevice(ABC):
    """One device. connected: set while it is. connections: how many it has had."""

    def __init__(self, name: str, *, mqtt5: bool, keep_alive_s: int, manual_ack: bool = False) -> None:
        self.name = name
        self.mqtt5 = mqtt5
        self.connections = 0
        self.connected = threading.Event()
        self._keep_alive_s = keep_alive_s
        self._client = paho_client(name, mqtt5=mqtt5, manual_ack=manual_ack)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self.connected.clear()
        self._client.on_message = lambda client, _userdata, message: self.on_message(client, message)

    def start(self, host: str, port: int) -> None:
        """Connect in the background, and again whenever the connection ends."""
        options: dict[str, Any] = {}
        if self.mqtt5:
            properties = properties_of(PacketTypes.CONNECT, SessionExpiryInterval=SESSION_EXPIRY_S)
            options = {"clean_start": False, "properties": properties}
        self._client.connect_async(host, port, keepalive=self._keep_alive_s, **options)
        self._client.loop_start()

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self.connected.clear()

    def on_connected(self, client: mqtt.Client) -> None:  # noqa: B027 - not every device does anything then
        """Called in paho's thread after each connect."""

    @abstractmethod
    def on_message(self, client: mqtt.Client, message: mqtt.MQTTMessage) -> None:
        """Called in paho's thread; paho acknowledges when it returns, unless manual_ack."""

    def cut_the_line(self) -> None:
        """Ends the connection as a radio hole does, before paho has answered."""
        sock = self._client.socket()
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):  # it has ended already
                sock.shutdown(socket.SHUT_RDWR)

    def _on_connect(self, client: mqtt.Client, *_: object) -> None:
        self.connections += 1
        self.on_connected(client)
        self.connected.set()


def wait_until_connected(devices: Sequence[PahoDevice], timeout_s: float) -> None:
    """Raises TimeoutError naming the devices that did not get through."""
    deadline = time.monotonic() + timeout_s
    missing = [device.name for device in devices if not device.connected.wait(max(0.0, deadline - time.monotonic()))]
    if missing:
        raise TimeoutError(f"not connected within {timeout_s:.0f} s: {', '.join(missing)}")
