"""Defines the settings of record writers: names of topics and limits of sizes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of the Kafka topics. `messages` and `events` are the engine's input, the others its output."""

    messages: str = "inflight.messages"
    events: str = "inflight.events"
    commands: str = "inflight.commands"
    uplink: str = "inflight.uplink"
    receipts: str = "inflight.receipts"
    dead_letters: str = "inflight.dead-letters"
    ledger: str = "inflight.ledger"
    throttle: str = "inflight.throttle"
    routes: str = "inflight.routes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """Limits of sizes.

    Attributes:
        max_payload_bytes: A larger message is a dead letter with reason `invalid`.
        max_headers_bytes: Names and values of all headers of one message together. A larger message is `invalid` too.
        max_record_bytes: Approximate limit of every record written, so that no broker refuses one and stops the query. Larger
            batches of commands and ledger rows are split. Payloads of dead letters that were never acceptable are cut.
        max_client_id_bytes: A record with a longer key addresses no client; gateways refuse such clients.
    """

    max_payload_bytes: int = 262_144
    max_headers_bytes: int = 65_536
    max_record_bytes: int = 900_000
    max_client_id_bytes: int = 1_024

    def __post_init__(self) -> None:
        needed = self.max_payload_bytes + 2 * self.max_headers_bytes
        if needed > self.max_record_bytes:
            raise ValueError(
                f"max_record_bytes is {self.max_record_bytes}, but a message of the largest size needs {needed}: "
                "raise max_record_bytes (and max.message.bytes of the topics) or lower max_payload_bytes"
            )
