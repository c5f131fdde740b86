"""Defines the settings of record writers: names of topics and limits of sizes."""

from dataclasses import dataclass
from typing import Final

from state.setting import KIB, MIB, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of the Kafka topics. `messages` and `events` are the engine's input, the others its output or other processes'."""

    messages: str = "inflight.messages"
    events: str = "inflight.events"
    commands: str = "inflight.commands"
    uplink: str = "inflight.uplink"
    receipts: str = "inflight.receipts"
    dead_letters: str = "inflight.dead-letters"
    ledger: str = "inflight.ledger"
    throttle: str = "inflight.throttle"
    routes: str = "inflight.routes"
    subscriptions: str = "inflight.subscriptions"
    publications: str = "inflight.publications"
    retained: str = "inflight.retained"
    presence: str = "inflight.presence"


_EVENTS_BEFORE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """Limits of one message and of one record."""

    max_payload_bytes: int = Setting("a larger message is dead-lettered as `invalid`", (1, 64 * MIB)).default(262_144)
    max_headers_bytes: int = 65_536
    """All headers of a message, each with its name, its value and `HEADER_BYTES`; one with more is dead-lettered as `invalid`."""
    max_routing_keys: int = Setting(
        "keys in CC and BCC of a message together; one with more is dead-lettered as `invalid`", (0, 10_000)
    ).default(64)
    max_record_bytes: int = Setting(
        "largest record that Inflight writes to Kafka; the topics must allow it (max.message.bytes)", (64 * KIB, 96 * MIB)
    ).default(900_000)
    """No record that we write is larger than about this, so that no broker refuses one and stops the query: batches of commands
    and of ledger rows are divided, payloads of dead letters that were never acceptable are cut."""
    max_client_id_bytes: int = 1_024
    """A longer key of a record addresses nobody; gateways refuse such clients."""

    dead_letter_topic_bytes: int = 0x7FFF_FFFF
    """The least `max.message.bytes` of the topics that get dead letters, as it is when the engine starts. It may be below
    `max_record_bytes`: then dead letters are cut to it."""

    @property
    def max_message_record_bytes(self) -> int:
        """Returns the size of the largest record of `messages` that is taken in. No valid message is larger."""
        return self.max_record_bytes

    @property
    def max_event_record_bytes(self) -> int:
        """Returns the size of the largest record of `events` that is taken in.

        Gateways have acknowledged what is in it, perhaps before `max_record_bytes` was lowered, so it is several times as much.
        """
        return _EVENTS_BEFORE * self.max_record_bytes

    @property
    def max_dead_letter_bytes(self) -> int:
        """The largest record that all topics of dead letters take."""
        return min(self.max_record_bytes, self.dead_letter_topic_bytes)

    def __post_init__(self) -> None:
        needed = self.max_payload_bytes + 2 * self.max_headers_bytes
        if needed > self.max_record_bytes:
            raise ValueError(
                f"max_record_bytes is {self.max_record_bytes}, but a message of the largest size needs {needed}: "
                "raise max_record_bytes (and max.message.bytes of the topics) or lower max_payload_bytes"
            )
