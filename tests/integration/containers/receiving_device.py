"""A device at the published port of MQTT, and a Producer at the published port of Kafka, that live through all kills."""

import time
from itertools import count
from queue import Empty, Queue
from types import TracebackType
from typing import Final, Self

from inflight import Producer
from inflight.demo.paho_device import paho_client
from tests.support.containers.composition import Composition

WITHIN_S: Final = 240.0
_CONNECTED_WITHIN_S: Final = 300.0


class ReceivingDevice:
    """Connects again whenever its connection ends."""

    def __init__(self, name: str, composition: Composition, kafka: str) -> None:
        self.name = name
        self._composition = composition
        self._kafka = kafka
        self._numbers = count(1)
        self._arrived: Queue[bytes] = Queue()
        self._client = paho_client(name, mqtt5=False)
        self._client.on_message = lambda _client, _userdata, message: self._arrived.put(bytes(message.payload))

    def __enter__(self) -> Self:
        self._client.connect_async("127.0.0.1", 1883, keepalive=20)
        self._client.loop_start()
        self._composition.wait_until(self._client.is_connected, "the device is connected", within_s=_CONNECTED_WITHIN_S)
        self._producer = Producer(self._kafka)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._producer.close()
        self._client.disconnect()
        self._client.loop_stop()

    def gets_a_message(self) -> float:
        """Sends a message, and returns the seconds until it had arrived and its receipt said so. Raises AssertionError."""
        payload = f"message {next(self._numbers)}".encode()
        began_s = time.monotonic()
        delivery = self._producer.deliver(self.name, "cmd", payload, qos=1)
        try:
            outcome = delivery.result(WITHIN_S).outcome
        except Exception as error:
            raise AssertionError(f"no receipt of {payload!r}: {error!r}\n{self._composition.logs()}") from error
        assert outcome == "delivered", f"{outcome}\n{self._composition.logs()}"
        try:
            while self._arrived.get(timeout=WITHIN_S) != payload:  # at QoS 1 an earlier one may come again
                pass
        except Empty:
            raise AssertionError(f"{payload!r} has a receipt, and has not arrived\n{self._composition.logs()}") from None
        return time.monotonic() - began_s
