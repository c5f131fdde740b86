"""Connects a campaign to Kafka: its topic, the Producer, and what it has sent before."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from inflight.campaign.records import Campaign, message_prefix
from inflight.producer import Cause, InvalidMessage, Producer, ProducerSettings, SendFailed, SendResult
from inflight.readers.past_receipts import PastClient, read_past
from sinks.kafka.first_contact import first_contact
from sinks.kafka.librdkafka import KafkaFailed, headers_of
from state.errors import UnreadableRecord
from state.model import ClientId, MessageId
from state.records.messages import MESSAGE_ID
from streaming.config.errors import KafkaUnreachable
from streaming.engine.kafka_access import TopicLog
from streaming.history.operator_requests import request_row, this_user

if TYPE_CHECKING:
    from streaming.config.settings import Settings

CAMPAIGN_HEADER: Final = "campaign"
_BLOCK_MS: Final = 10_000
_DELIVERY_MS: Final = 30_000
_MARGIN_MS: Final = 300_000
"""The clock of the process that was killed may differ from that of the brokers."""
_CATCH_UP_MS: Final = 10_000
"""Wait for a client that is connected and behind. The batch waits with it, and the client is tried once more at the end."""
_T = TypeVar("_T")


class KafkaCampaigns:
    """`inflight.campaigns`, in a `with`."""

    def __init__(self, settings: "Settings") -> None:
        """Raises KafkaUnreachable if nobody listens at its addresses."""
        self._servers = settings.kafka.bootstrap_servers
        self._topic, self._ledger = settings.topics.campaigns, settings.topics.ledger
        if (why := first_contact(self._servers)) is not None:
            raise KafkaUnreachable.without_contact(self._servers, why)
        self._log = TopicLog(
            settings, self._topic, client_id="inflight-campaign", max_block_ms=_BLOCK_MS, delivery_timeout_ms=_DELIVERY_MS
        )

    def read(self) -> list[tuple[bytes, bytes | None]]:
        return self._asking(self._log.read)

    def write(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        self._asking(lambda: self._log.write(self._topic, records))

    def note(self, detail: str) -> None:
        """Writes to the ledger what an operator asks for.

        Args:
            detail: For people; the user and the machine are added.
        """
        row = request_row("", f"{detail} by {this_user()}", time.time_ns() // 1_000_000)
        self._asking(lambda: self._log.write(self._ledger, [(b"", row)]))

    def _asking(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except KafkaError as error:
            raise KafkaUnreachable.of(self._servers, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._log.close()


class ProducerSender:
    """Sends with the Producer, in a `with`."""

    def __init__(self, settings: "Settings", sending: ProducerSettings) -> None:
        self._servers = settings.kafka.bootstrap_servers
        self._options = settings.kafka.librdkafka_options()
        self._messages = settings.topics.messages
        sending = replace(sending, catch_up_timeout_ms=_CATCH_UP_MS)
        self._producer = Producer(self._servers, settings=sending, registry=CollectorRegistry())

    def send(self, campaign: Campaign, client_ids: Sequence[ClientId]) -> dict[ClientId, str]:
        unsent: dict[ClientId, str] = {}
        waiting: list[tuple[ClientId, Future[SendResult]]] = []
        for client_id in client_ids:
            try:
                waiting.append((client_id, self._begin(campaign, client_id)))
            except InvalidMessage as error:
                unsent[client_id] = str(error)
        for client_id, future in waiting:
            try:
                future.result()
            except SendFailed as error:
                if error.cause not in (Cause.THROTTLED, Cause.REJECTED):
                    raise KafkaUnreachable.of(self._servers, error) from error
                unsent[client_id] = f"{error.cause}"
        return unsent

    def already_sent(self, campaign: Campaign, client_ids: Sequence[ClientId], since_ms: int) -> set[MessageId]:
        prefix, found = message_prefix(campaign.id).encode(), set[MessageId]()

        def note(message: Any) -> None:
            try:
                value = dict(headers_of(message)).get(MESSAGE_ID)
            except UnreadableRecord:
                return
            if value is not None and value.startswith(prefix):
                found.add(value.decode(errors="replace"))

        asked = [PastClient(client_id, max(0, since_ms - _MARGIN_MS)) for client_id in client_ids]
        try:
            read_past(self._messages, self._servers, self._options, asked, handle=note, is_stopping=lambda: False)
        except KafkaFailed as error:
            raise KafkaUnreachable.of(self._servers, error) from error
        return found

    def _begin(self, campaign: Campaign, client_id: ClientId) -> "Future[SendResult]":
        return self._producer.send_async(
            client_id,
            campaign.topic,
            campaign.payload,
            qos=campaign.qos,
            retain=campaign.retain,
            expiration_ms=campaign.expiration_ms,
            message_id=campaign.message_id(client_id),
            headers=[(CAMPAIGN_HEADER, campaign.id.encode())],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._producer.close()
