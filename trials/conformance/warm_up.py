"""Lets a server that has just started come to its usual speed. The clients of paho wait 0.3 s for each packet."""

import time
from statistics import median
from typing import Final

from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

_CONNECTS: Final = 10
"""Connections one after the other that are measured together."""
_GOOD_ENOUGH_MS: Final = 150.0
_MOST_S: Final = 60.0


def warm_up(server: tuple[str, int]) -> float:
    """Connects to a kept session again and again until that is fast, at most a minute. Returns the last median, ms."""
    began_s = time.monotonic()
    while (now_ms := median(_connect_ms(server) for _ in range(_CONNECTS))) > _GOOD_ENOUGH_MS:
        if time.monotonic() - began_s > _MOST_S:
            break
    return now_ms


def _connect_ms(server: tuple[str, int]) -> float:
    """Returns the time from connecting to CONNACK."""
    client = Client(CallbackAPIVersion.VERSION2, client_id="warm-up", protocol=MQTTv5)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 60
    began_s = time.monotonic()
    client.connect(*server, clean_start=False, properties=properties)
    while not client.is_connected() and time.monotonic() - began_s < _MOST_S:
        client.loop(0.05)
    passed_ms = (time.monotonic() - began_s) * 1000
    client.disconnect()
    return passed_ms
