"""The demo's devices: unmodified paho-mqtt clients that misbehave as real ones do, and count for themselves what they receive."""

import contextlib
import socket
import threading
import time
from collections import Counter
from enum import StrEnum
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

SESSION_EXPIRY_INTERVAL_S: Final = 3_600


class Manners(StrEnum):
    """How a device treats the protocol."""

    STEADY = "steady"
    SWALLOWS_ACKS = "swallows PUBACKs"
    BREAKS_OFF = "breaks off in mid-handshake"
    LATE = "offline at first"


class Device:
    """One device: a paho client with a kept session.

    received: how often each payload came, by the device's own count. published: the QoS 2 publications it was asked for.
    misbehave_every: each so many messages, by first arrival, meet the device's bad manners once.
    """

    def __init__(self, name: str, manners: Manners, *, mqtt5: bool, misbehave_every: int = 4) -> None:
        self.name = name
        self.manners = manners
        self.mqtt5 = mqtt5
        self.received: Counter[bytes] = Counter()
        self.resent = 0
        self.connections = 0
        self.connected = threading.Event()
        self.published: list[bytes] = []
        self._misbehave_every = misbehave_every
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            clean_session=None if mqtt5 else False,
            protocol=MQTTProtocolVersion.MQTTv5 if mqtt5 else MQTTProtocolVersion.MQTTv311,
            manual_ack=manners is Manners.SWALLOWS_ACKS,
        )
        self._client.max_inflight_messages_set(5)
        self._client.reconnect_delay_set(min_delay=1, max_delay=2)
        self._client.on_message = self._on_message
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect

    def start(self, host: str, port: int) -> None:
        """Connect in the background, and again whenever the connection ends."""
        self._client.connect_async(host, port, keepalive=30, **self._session())
        self._client.loop_start()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 2; paho keeps it until the handshake is complete."""
        self.published.append(payload)
        self._client.publish(topic, payload, qos=2)

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _session(self) -> dict[str, Any]:
        if not self.mqtt5:
            return {}
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_EXPIRY_INTERVAL_S
        return {"clean_start": False, "properties": properties}

    def _on_connect(self, *_: object) -> None:
        self.connections += 1
        self.connected.set()

    def _on_disconnect(self, *_: object) -> None:
        self.connected.clear()

    def _on_message(self, client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
        payload = bytes(message.payload)
        self.received[payload] += 1
        self.resent += message.dup
        first = self.received[payload] == 1
        misbehaves = first and message.qos > 0 and len(self.received) % self._misbehave_every == 0
        if self.manners is Manners.BREAKS_OFF and misbehaves:
            self._cut_the_line(client)  # before paho answers: the acknowledgement is lost with the connection
        elif self.manners is Manners.SWALLOWS_ACKS and not (misbehaves and message.qos == 1):
            client.ack(message.mid, message.qos)

    @staticmethod
    def _cut_the_line(client: mqtt.Client) -> None:
        sock = client.socket()
        if isinstance(sock, socket.socket):
            with contextlib.suppress(OSError):  # paho still works through what it had read before the last cut
                sock.shutdown(socket.SHUT_RDWR)


def wait_until_connected(devices: list[Device], timeout_s: float) -> None:
    """Raises TimeoutError naming the devices that did not get through."""
    deadline = time.monotonic() + timeout_s
    missing = [device.name for device in devices if not device.connected.wait(max(0.0, deadline - time.monotonic()))]
    if missing:
        raise TimeoutError(f"not connected within {timeout_s:.0f} s: {', '.join(missing)}")
