"""Counts what became of the messages of campaigns, from `inflight.receipts`."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from inflight.campaign.records import Campaign, message_prefix
from state.errors import UnreadableRecord
from state.model import ClientId, Outcome
from state.records.receipts import Receipt, decode_receipt
from streaming.history.sources.kafka_reader import KafkaReader, reading
from streaming.history.sources.source import SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_ARRIVED: Final = (Outcome.DELIVERED, Outcome.SENT)
_MARGIN_MS: Final = 300_000
"""The clock of this machine may differ from that of the brokers."""


class CampaignOutcomes:
    """The newest outcome of each client."""

    def __init__(self, campaign_id: str) -> None:
        self._prefix = message_prefix(campaign_id)
        self._receipts: dict[ClientId, Receipt] = {}

    def add(self, receipt: Receipt) -> None:
        """Counts a receipt of this campaign. A copy changes nothing, and a later outcome replaces an earlier one."""
        if receipt.message_id.startswith(self._prefix):
            known = self._receipts.get(receipt.client_id)
            if known is None or known.recorded_ms <= receipt.recorded_ms:
                self._receipts[receipt.client_id] = receipt

    def counts(self) -> dict[str, int]:
        """Returns the clients by outcome, the most frequent first."""
        return dict(Counter(receipt.outcome.value for receipt in self._receipts.values()).most_common())

    @property
    def known(self) -> int:
        return len(self._receipts)

    @property
    def failed(self) -> int:
        return sum(receipt.outcome not in _ARRIVED for receipt in self._receipts.values())


class ReceiptReader:
    """Reads receipts from the beginning of the oldest campaign on, in a `with`. Methods raise KafkaUnreachable."""

    def __init__(self, settings: "Settings", campaigns: Iterable[Campaign]) -> None:
        self.outcomes: dict[str, CampaignOutcomes] = {}
        self._settings = settings
        self._since_ms: int | None = None
        for campaign in campaigns:
            self.outcomes[campaign.id] = CampaignOutcomes(campaign.id)
            since_ms = max(1, campaign.created_ms - _MARGIN_MS)
            self._since_ms = since_ms if self._since_ms is None else min(self._since_ms, since_ms)
        self._stack = ExitStack()
        self._reader: KafkaReader | None = None
        self._next: dict[int, int] = {}

    def update(self) -> None:
        """Reads what is new."""
        if not self.outcomes:
            return
        reader = self._reader = self._reader or self._stack.enter_context(reading(self._settings))
        found = reader.ranges([self._settings.topics.receipts], SourceLimits(since_ms=self._since_ms, max_records=0))
        ranges = [replace(one, start=max(one.start, self._next.get(one.partition, 0))) for one in found]
        for record in reader.records(ranges, lambda done, total: None):
            self._add(record.value or b"")
        self._next = {one.partition: one.end for one in ranges}

    def _add(self, value: bytes) -> None:
        try:
            receipt = decode_receipt(value)
        except UnreadableRecord:
            return
        outcomes = self.outcomes.get(receipt.message_id.partition("/")[0])
        if outcomes is not None:
            outcomes.add(receipt)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
