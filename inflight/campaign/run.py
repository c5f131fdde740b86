"""Sends a campaign, batch by batch. Any number of processes may try; the newest one sends.

For each batch:
1. read the topic: another process may have paused or aborted the campaign, or sends it itself now;
2. end the campaign if its deadline has passed, or if too many receipts are failures;
3. write which clients come now, then send, then go on: the next batch, a pause or the end says that Kafka has confirmed this one.

A process that is killed leaves one batch of which nobody knows whether it was sent. The next one looks for its message ids in
`inflight.messages`, and sends only what is not there. The session drops a repeated id too.
"""

import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from inflight.campaign.outcomes import CampaignOutcomes
from inflight.campaign.plan import CampaignPlan
from inflight.campaign.records import Campaign, CampaignStatus, CampaignTable, Progress, campaign_record, progress_record
from state.errors import InflightError
from state.model import ClientId, MessageId
from streaming.config.units import parse_duration_ms

OPEN: Final = (CampaignStatus.RUNNING, CampaignStatus.PAUSED)
"""A campaign with another status has ended for good."""
_SLICE_S: Final = 1.0
"""How long at most `pause` and `abort` have no effect."""


class CampaignRefused(InflightError):
    """The campaign does not exist, exists already, has ended, or belongs to another process now."""


class CampaignTopic(Protocol):
    """`inflight.campaigns`. Methods raise KafkaUnreachable."""

    def read(self) -> list[tuple[bytes, bytes | None]]:
        """Returns what is new."""

    def write(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Returns when Kafka has confirmed all."""


class CampaignSender(Protocol):
    """Sends messages, and knows what was sent before. Methods raise KafkaUnreachable."""

    def send(self, campaign: Campaign, client_ids: Sequence[ClientId]) -> dict[ClientId, str]:
        """Returns when Kafka has confirmed all messages but those that it returns, with the reasons."""

    def already_sent(self, campaign: Campaign, client_ids: Sequence[ClientId], since_ms: int) -> set[MessageId]:
        """Returns the message ids that are in `inflight.messages`."""


class CampaignRun:
    """Runs one campaign in this process.

    Args:
        receipts: Returns the outcomes that are known now.
        on_progress: Called with the campaign and how far it is.
        now_ms: Returns the time in ms since 1970.
        sleep: Waits for a time in seconds.
    """

    def __init__(
        self,
        campaign_id: str,
        topic: CampaignTopic,
        sender: CampaignSender,
        receipts: Callable[[Campaign], CampaignOutcomes],
        *,
        on_progress: Callable[[Campaign, Progress], None] = lambda campaign, progress: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._id = campaign_id
        self._topic = topic
        self._sender = sender
        self._receipts = receipts
        self._on_progress = on_progress
        self._now_ms = now_ms
        self._sleep = sleep
        self._runner = uuid.uuid4().hex
        self._table = CampaignTable()

    def run(self) -> Campaign:
        """Sends until the campaign has ended, or somebody pauses it. Returns it as it is then.

        Raises:
            CampaignRefused: There is nothing to send, or another process sends it now.
        """
        campaign = self._begin()
        clients = self._table.clients(self._id)
        progress = self._table.progress(self._id)
        if progress.until > progress.sent:
            progress = self._send_doubtful(campaign, clients, progress)
        due_ms = float(self._now_ms())
        while progress.sent < len(clients):
            campaign = self._wait(campaign, due_ms)
            if campaign.status is not CampaignStatus.RUNNING:
                self._write(progress)  # so that nothing is in doubt, and `status` counts the last batch
                return campaign
            until = min(len(clients), progress.sent + campaign.batch)
            began_ms = self._now_ms()
            due_ms = max(due_ms, began_ms - 1_000) + (until - progress.sent) * 1_000 / campaign.rate
            self._write(msgspec.structs.replace(progress, until=until, at_ms=began_ms))
            progress = self._sent(campaign, clients[progress.sent : until], progress, until)
        if progress.unsent:
            progress = self._sent(campaign, list(progress.unsent), msgspec.structs.replace(progress, unsent={}), progress.sent)
        self._write(progress)
        return self._end(CampaignStatus.COMPLETE, "")

    def _begin(self) -> Campaign:
        """Takes the campaign over, so that another process stops."""
        campaign = self._read()
        if campaign is None:
            raise CampaignRefused(f"there is no campaign {self._id}: `inflight campaign status` lists them")
        if campaign.status not in OPEN:
            raise CampaignRefused(f"campaign {self._id} is {campaign.status}: start another one, with another id")
        campaign = msgspec.structs.replace(campaign, status=CampaignStatus.RUNNING, reason="", runner=self._runner)
        self._topic.write([campaign_record(campaign)])
        return campaign

    def _wait(self, campaign: Campaign, due_ms: float) -> Campaign:
        """Returns the campaign when its next batch is due, or when it is not to be sent any more."""
        while True:
            found = self._read()
            assert found is not None
            if found.runner != self._runner:
                raise CampaignRefused(f"another process sends campaign {self._id} now")
            if found.status is not CampaignStatus.RUNNING:
                return found
            now_ms = self._now_ms()
            if found.deadline_ms is not None and now_ms >= found.deadline_ms:
                return self._end(CampaignStatus.EXPIRED, "the deadline has passed")
            if reason := too_many_failures(found, self._receipts(found)):
                return self._end(CampaignStatus.ABORTED, reason)
            if now_ms >= due_ms:
                return found
            self._sleep(min(_SLICE_S, math.ceil(due_ms - now_ms) / 1_000))

    def _send_doubtful(self, campaign: Campaign, clients: Sequence[ClientId], progress: Progress) -> Progress:
        doubtful = clients[progress.sent : progress.until]
        sent = self._sender.already_sent(campaign, doubtful, progress.at_ms)
        missing = [client_id for client_id in doubtful if campaign.message_id(client_id) not in sent]
        return self._sent(campaign, missing, progress, progress.until)

    def _sent(self, campaign: Campaign, clients: Sequence[ClientId], progress: Progress, until: int) -> Progress:
        unsent = progress.unsent | self._sender.send(campaign, clients)
        progress = msgspec.structs.replace(progress, sent=until, until=until, unsent=unsent)
        self._on_progress(campaign, progress)
        return progress

    def _end(self, status: CampaignStatus, reason: str) -> Campaign:
        campaign = msgspec.structs.replace(self._table.campaigns[self._id], status=status, reason=reason, runner=self._runner)
        self._topic.write([campaign_record(campaign)])
        return campaign

    def _write(self, progress: Progress) -> None:
        self._topic.write([progress_record(self._id, progress)])

    def _read(self) -> Campaign | None:
        self._table.read(self._topic.read())
        return self._table.campaigns.get(self._id)


def too_many_failures(campaign: Campaign, outcomes: CampaignOutcomes) -> str:
    """Returns why the campaign has to be aborted; empty if it has not."""
    if campaign.failed_share is None or outcomes.known < campaign.abort_after:
        return ""
    if outcomes.failed <= campaign.failed_share * outcomes.known:
        return ""
    return f"{outcomes.failed} of {outcomes.known} receipts are failures, more than {campaign.failed_share:.0%}"


def new_campaign(plan: CampaignPlan, clients: int, *, now_ms: int) -> Campaign:
    """Returns the record of a campaign that begins now.

    Args:
        clients: How many clients it addresses.
    """
    message, rule = plan.message, plan.abort
    return Campaign(
        id=plan.id,
        topic=message.topic,
        payload=message.payload.encode(),
        qos=message.qos,
        retain=message.retain,
        expiration_ms=parse_duration_ms(message.expiration) if message.expiration else None,
        clients=clients,
        rate=plan.rate,
        batch=plan.batch,
        created_ms=now_ms,
        deadline_ms=now_ms + parse_duration_ms(plan.deadline) if plan.deadline else None,
        failed_share=None if rule is None else rule.failed_share,
        abort_after=0 if rule is None else rule.after,
    )


def with_status(campaign: Campaign, status: CampaignStatus, reason: str) -> Campaign:
    """Returns the campaign as an operator wants it. Raises CampaignRefused if it has ended."""
    if campaign.status not in OPEN:
        raise CampaignRefused(f"campaign {campaign.id} is {campaign.status} already")
    return msgspec.structs.replace(campaign, status=status, reason=reason)
