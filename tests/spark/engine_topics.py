"""Topics for engines that run as processes: a backend that sends, and the gateway of the clients."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaProducer

from state.commands import GatewayCommand, SendPublish
from state.events import ClientConnected, LoggedEvent, PubAckReceived
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S


class EngineTopics:
    """Topics with a prefix of their own. The client is `c` unless another one is named."""

    def __init__(self, kafka: SharedKafka, prefix: str) -> None:
        self.kafka, self.prefix = kafka.bootstrap_servers, prefix
        self.producer = KafkaProducer(bootstrap_servers=self.kafka, acks="all")

    def settings(self, directory: Path, **engine: Any) -> dict[str, Any]:
        return {
            "kafka": {"bootstrap_servers": self.kafka},
            "topics": {"prefix": self.prefix},
            "engine": {"data_dir": str(directory), "driver_memory": "512m", "master": "local[2]", **engine},
        }

    def append(self, topic: str, value: bytes, client: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        self.producer.send(f"{self.prefix}.{topic}", value, key=client, headers=list(headers)).get(DEADLINE_S)

    def send_event(self, event: LoggedEvent, client: bytes = b"c") -> None:
        self.append("events", encode_event(event), client)

    def connect(
        self, connection_id: int, client: bytes = b"c", *, protocol_version: int = 4, receive_maximum: int = 65_535
    ) -> None:
        event = ClientConnected(
            connection_id=connection_id,
            commands_partition=0,
            protocol_version=protocol_version,
            clean_start=False,
            session_expiry_interval_s=3_600,
            receive_maximum=receive_maximum,
        )
        self.send_event(event, client)

    def send(self, payload: bytes, client: bytes = b"c", *headers: tuple[str, bytes]) -> None:
        """Sends a message whose id is its payload."""
        self.append("messages", payload, client, [("mqtt-topic", b"t"), ("message-id", payload), *headers])

    def commands(self, enough: Callable[[list[GatewayCommand]], bool]) -> list[GatewayCommand]:
        """Returns all commands so far, as soon as they are `enough`."""

        def decoded(records: list[ReadRecord]) -> list[GatewayCommand]:
            return [command for record in records for command in decode_command_batch(record.value or b"").commands]

        return decoded(read_topic(self.kafka, f"{self.prefix}.commands", lambda found: enough(decoded(found))))

    def sent(self, count: int, *, connection_id: int | None = None) -> list[SendPublish]:
        """Returns all PUBLISH commands so far, or those of one connection, as soon as there are `count`."""

        def publishes(commands: list[GatewayCommand]) -> list[SendPublish]:
            found = [command for command in commands if isinstance(command, SendPublish)]
            return [command for command in found if connection_id in (None, command.connection_id)]

        return publishes(self.commands(lambda found: len(publishes(found)) >= count))

    def acknowledge(self, publish: SendPublish, client: bytes = b"c") -> None:
        self.send_event(PubAckReceived(connection_id=publish.connection_id, packet_id=publish.packet_id), client)

    def outcomes(self, count: int) -> dict[str, str]:
        """Returns outcomes by message id, as soon as there are `count` receipts. Each message has one."""
        records = read_topic(self.kafka, f"{self.prefix}.receipts", lambda found: len(found) >= count)
        receipts = [msgspec.json.decode(record.value or b"") for record in records]
        found = {receipt["message_id"]: receipt["outcome"] for receipt in receipts}
        assert len(found) == len(receipts)
        return found

    def deliver(self, payload: bytes, *, before: int) -> None:
        """Delivers a message. before: the number of earlier PUBLISH commands."""
        self.send(payload)
        (publish,) = self.sent(before + 1)[before:]
        assert publish.payload == payload
        self.acknowledge(publish)
        self.outcomes(before + 1)
