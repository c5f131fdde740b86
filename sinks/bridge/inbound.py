"""Publications of devices on their way to Kafka: records of `inflight.uplink`, as a gateway writes them."""

from collections.abc import Callable
from typing import Protocol

from sinks.bridge.broker.incoming import Incoming
from sinks.kafka.append import Headers
from state.model import ClientId, QoS
from state.records.uplink import uplink_headers


class Append(Protocol):
    """Writes a record and says once whether Kafka has it: `Bridge` counts while it waits."""

    def __call__(
        self, topic: str, key: bytes, value: bytes, headers: Headers | None, done: Callable[[Exception | None], None]
    ) -> None: ...


class Inbound:
    """run_id: of this run of the bridge; with a number behind it, it makes each `inflight-id` unique."""

    def __init__(self, uplink_topic: str, *, run_id: int, append: Append) -> None:
        self._uplink_topic = uplink_topic
        self._run_id = run_id
        self._append = append
        self._taken = 0

    def take(self, client_id: ClientId, topic: str, incoming: Incoming, done: Callable[[Exception | None], None]) -> None:
        """topic: as the device's backend knows it. done: the broker may be answered, or asked to deliver again."""
        self._taken += 1
        message = incoming.message
        headers = uplink_headers(
            client_id=client_id,
            inflight_id=f"{client_id}:{self._run_id}:{self._taken}",
            topic=topic,
            qos=QoS(message.qos),
            retain=message.retain,
            expiry_interval_s=incoming.expiry_interval_s,
            properties=incoming.properties,
        )
        self._append(self._uplink_topic, client_id.encode(), incoming.payload, headers, done)
