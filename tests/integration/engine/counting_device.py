"""A device with paho-mqtt on a kept session: it counts what it receives and publishes on request."""

from collections import Counter

from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion


class CountingDevice:
    """Counts messages and reconnects after a lost connection.

    seen: count by payload; several devices may share it, while their payloads differ.
    """

    def __init__(self, client_id: str, address: tuple[str, int], seen: Counter[bytes]) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        self._client.reconnect_delay_set(min_delay=1, max_delay=2)

        def count(_client: Client, _userdata: object, message: MQTTMessage) -> None:
            seen[message.payload] += 1

        self._client.on_message = count
        self._client.connect(*address)
        self._client.loop_start()

    def publish(self, topic: str, payload: bytes) -> MQTTMessageInfo:
        """Publishes at QoS 2."""
        return self._client.publish(topic, payload, qos=2)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
