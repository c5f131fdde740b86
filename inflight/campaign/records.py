"""Defines the records of `inflight.campaigns`, a compacted topic, and the table that they make. Values are JSON.

| key | value |
|---|---|
| `ID` | `Campaign`: the message, the limits and the status |
| `ID/clients/N` | the N-th part of the client ids, in the order of sending |
| `ID/progress` | `Progress`: how far it has come |

The parts of the list are written before `ID`, so a campaign that is in the table has its whole list.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from state.model import ClientId, MessageId
from state.records.messages import MAX_MESSAGE_ID_BYTES

CLIENTS_IN_RECORD: Final = 1_000
_LIST: Final = "clients"
_PROGRESS: Final = "progress"


class CampaignStatus(StrEnum):
    """RUNNING: to be sent, whether or not a process does so now. PAUSED: until `resume`. The others are final."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    ABORTED = "aborted"
    EXPIRED = "expired"


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign: the message, the limits and the status. Times are milliseconds since 1970.

    Attributes:
        clients: How many there are.
        rate: Messages a second.
        deadline_ms: Nothing is sent later; None = there is no deadline.
        failed_share, abort_after: See AbortRule; None = failures do not stop it.
        reason: Why it has ended, for people.
        runner: The process that may send. Another one has to stop.
    """

    id: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    expiration_ms: int | None
    clients: int
    rate: float
    batch: int
    created_ms: int
    deadline_ms: int | None = None
    failed_share: float | None = None
    abort_after: int = 0
    status: CampaignStatus = CampaignStatus.RUNNING
    reason: str = ""
    runner: str = ""

    def message_id(self, client_id: ClientId) -> MessageId:
        """Returns the id of the client's message: the same in each run."""
        return message_id_of(self.id, client_id)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a campaign has come in its list.

    Attributes:
        sent: Kafka has confirmed the messages to so many clients.
        until: Those up to here are being sent since `at_ms`. A killed process may have sent them or not.
        unsent: Clients to which nothing could be sent, with the reason.
    """

    sent: int = 0
    until: int = 0
    at_ms: int = 0
    unsent: dict[ClientId, str] = {}


def message_prefix(campaign_id: str) -> str:
    """Returns how the message ids of a campaign begin, and those of no other one."""
    return f"{campaign_id}/"


def message_id_of(campaign_id: str, client_id: ClientId) -> MessageId:
    found = message_prefix(campaign_id) + client_id
    if len(found.encode()) <= MAX_MESSAGE_ID_BYTES:
        return found
    return message_prefix(campaign_id) + hashlib.sha256(client_id.encode()).hexdigest()


def list_records(campaign_id: str, client_ids: Sequence[ClientId]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the records with the list."""
    for number, start in enumerate(range(0, len(client_ids), CLIENTS_IN_RECORD)):
        part = client_ids[start : start + CLIENTS_IN_RECORD]
        yield f"{campaign_id}/{_LIST}/{number}".encode(), msgspec.json.encode(part)


def campaign_record(campaign: Campaign) -> tuple[bytes, bytes]:
    return campaign.id.encode(), msgspec.json.encode(campaign)


def progress_record(campaign_id: str, progress: Progress) -> tuple[bytes, bytes]:
    return f"{campaign_id}/{_PROGRESS}".encode(), msgspec.json.encode(progress)


class CampaignTable:
    """The newest records of the topic."""

    def __init__(self) -> None:
        self.campaigns: dict[str, Campaign] = {}
        self._progress: dict[str, Progress] = {}
        self._lists: dict[str, dict[int, list[ClientId]]] = {}

    def read(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Applies records in their order. Skips those that nobody can read."""
        for key, value in records:
            try:
                self._read(key.decode(), value or b"")
            except (ValueError, msgspec.DecodeError):
                continue

    def progress(self, campaign_id: str) -> Progress:
        return self._progress.get(campaign_id, Progress())

    def clients(self, campaign_id: str) -> list[ClientId]:
        """Returns the clients in the order of sending."""
        parts = self._lists.get(campaign_id, {})
        count = self.campaigns[campaign_id].clients
        return [client_id for number in sorted(parts) for client_id in parts[number]][:count]

    def _read(self, key: str, value: bytes) -> None:
        campaign_id, _, rest = key.partition("/")
        if not rest:
            self.campaigns[campaign_id] = msgspec.json.decode(value, type=Campaign)
        elif rest == _PROGRESS:
            self._progress[campaign_id] = msgspec.json.decode(value, type=Progress)
        elif rest.startswith(f"{_LIST}/"):
            number = int(rest.rpartition("/")[2])
            self._lists.setdefault(campaign_id, {})[number] = msgspec.json.decode(value, type=list[ClientId])
