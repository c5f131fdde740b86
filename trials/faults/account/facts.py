"""Has the plain values that a run notes from outside and from the log; trials/faults/account/account.py judges them.

All times are seconds since 1970, by the clock of this machine, which is the brokers', too.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from trials.faults.plan.characters import Character
from trials.faults.plan.faults import Fault


class End(StrEnum):
    """Ways in which a connection ended, as its device saw them."""

    CUT = "the device closed its socket"
    GOODBYE = "DISCONNECT 0x00"
    WITH_WILL = "DISCONNECT 0x04"
    CLOSED = "closed by the other side"
    REFUSED = "CONNACK with an error"
    UNANSWERED = "no CONNACK"


@dataclass(kw_only=True)
class Attempt:
    """A CONNECT of a device and its result. will: its payload, which no other attempt has.

    accepted_s: CONNACK 0; None = it never came. heard_s: the last byte of the gateway that shows that there is a session, or the
    CONNECT. ended_s: None while it lasts. absent_since_s: heard_s of the accepted attempt before; None = there was none.
    """

    gateway: str
    will: bytes
    clean: bool
    began_s: float
    accepted_s: float | None = None
    session_present: bool = False
    heard_s: float = 0.0
    ended_s: float | None = None
    end: End = End.UNANSWERED
    absent_since_s: float | None = None


FROM_DEVICE = b"up/"
"""Payloads of devices' publications begin with it."""


@dataclass(kw_only=True)
class Publication:
    """A publication of a device. transmissions: one on each connection that had to send it. answered: PUBACK or PUBREC came.
    given_up: the session had ended before that.
    """

    payload: bytes
    qos: int
    sent_s: float
    topic: str = "up/faults"
    transmissions: int = 0
    answered: bool = False
    given_up: bool = False


@dataclass(kw_only=True)
class Period:
    """The time in which a session has a subscription: certainly from granted_s (SUBACK) to leaving_s (UNSUBSCRIBE), possibly from
    asked_s (SUBSCRIBE) to ended_s (UNSUBACK). epoch: of the session. None = SUBACK has not come.
    """

    topic_filter: str
    qos: int
    epoch: int
    asked_s: float
    granted_s: float | None = None
    leaving_s: float = inf
    ended_s: float = inf


@dataclass(frozen=True, kw_only=True)
class RoutedArrival:
    """A PUBLISH with a device's message. is_new: it is no repetition of one that the session knows. epoch: of the session."""

    payload: bytes
    topic: str
    qos: int
    is_new: bool
    epoch: int
    time_s: float


@dataclass(kw_only=True)
class DeviceFacts:
    """taken, handed: messages by payload, counted at PUBLISH of an unknown id and at PUBREL, the two methods of MQTT for QoS 2;
    at QoS 1 both at PUBLISH. order: payloads by QoS as they first came. first_s: when. oddities: what the standard forbids.
    is_bridged: it speaks to a broker, which deals publications to two bridges and keeps no order between them.
    periods, routed: only with routing. epoch: another number for each session that the device has begun.
    """

    character: Character
    attempts: list[Attempt] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    taken: Counter[bytes] = field(default_factory=Counter)
    handed: Counter[bytes] = field(default_factory=Counter)
    order: dict[int, list[bytes]] = field(default_factory=lambda: {1: [], 2: []})
    first_s: dict[bytes, float] = field(default_factory=dict)
    oddities: list[tuple[str, bytes]] = field(default_factory=list)
    is_bridged: bool = False
    periods: list[Period] = field(default_factory=list)
    routed: list[RoutedArrival] = field(default_factory=list)
    epoch: int = 0

    @property
    def client_id(self) -> str:
        return self.character.client_id


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A message of the backend that Kafka has confirmed, or of a campaign.

    due_s: Its `deliver-at`; None = it has none. key: its collapse key, empty = none. is_cancelled: The backend has taken it back,
    perhaps too late. campaign: its id, empty = it belongs to none; sent_s is then the campaign's beginning.
    """

    message_id: str
    client_id: str
    qos: int
    sent_s: float
    due_s: float | None = None
    key: str = ""
    is_cancelled: bool = False
    campaign: str = ""

    @property
    def payload(self) -> bytes:
        """Returns the message id, which is the payload too; all messages of a campaign have one payload, its id."""
        return (self.campaign or self.message_id).encode()

    @property
    def comes_at_once(self) -> bool:
        """Says that it is due now, and that nothing but its delivery may become of it."""
        return self.due_s is None and not (self.key or self.is_cancelled or self.campaign)


@dataclass(frozen=True, kw_only=True)
class Received:
    """A record of `inflight.uplink`. batch_s: time of the micro-batch that wrote it; None = a gateway has."""

    client_id: str
    payload: bytes
    inflight_id: str
    time_s: float
    batch_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A receipt. value: the record's bytes, equal for copies. fast_path: the message was first sent by a gateway's own word.
    detail: for people.
    """

    message_id: str
    client_id: str
    outcome: str
    final: bool
    value: bytes
    fast_path: bool = False
    detail: str = ""


class Step(StrEnum):
    """The rows of the ledger that are about the session itself. REFUSED: of a CONNECT, which changes no session."""

    REFUSED = "connection_refused"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    SESSION_ENDED = "session_ended"


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """time_s: of the micro-batch."""

    client_id: str
    step: Step
    time_s: float
    detail: str = ""


class Status(StrEnum):
    """The record of `inflight.presence` about a client."""

    ONLINE = "online"
    OFFLINE = "offline"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class SaidPresence:
    """A record of `inflight.presence`. time_s: when Kafka got it. since_s: the time of its micro-batch."""

    client_id: str
    status: Status
    connection_id: int
    time_s: float
    since_s: float


@dataclass(frozen=True, kw_only=True)
class CampaignFacts:
    """A campaign. client_ids: whom it addresses. kills: of its processes. The others are from the log.

    copies: of its messages in `inflight.messages`. What a killed process has sent may arrive after the next one has looked.
    status: empty = there is no record. listed: the clients in its list. sent: so many of them are behind it. unsent: those of
    them to which it could send nothing.
    """

    campaign_id: str
    client_ids: tuple[str, ...]
    kills: int
    copies: int = 0
    status: str = ""
    listed: tuple[str, ...] = ()
    sent: int = 0
    unsent: frozenset[str] = frozenset()


class LoggedEnd(StrEnum):
    """The first thing in `inflight.events` that ends a connection that the session has accepted."""

    GOODBYE = "DISCONNECT 0x00"
    OTHER = "lost, taken over, or another DISCONNECT"
    NOTHING = "nothing yet"


@dataclass(frozen=True, kw_only=True)
class LoggedConnection:
    """A ClientConnected that the session has accepted. closed: the session has closed it, so its end has no known time.

    next_s: when the client's next connection was accepted; None = there was none.
    """

    client_id: str
    will: bytes
    end: LoggedEnd
    end_s: float | None = None
    closed: bool = False
    next_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The engine did not work from began_s to ended_s."""

    began_s: float
    ended_s: float


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """An engine was killed, and nothing else was done, while another one waited.

    died_s: when. works_s: when the first micro-batch began after that. by_standby: the engine that had waited executed it.
    """

    died_s: float
    works_s: float
    by_standby: bool


@dataclass(frozen=True, kw_only=True)
class Suffered:
    """A fault that was carried out. ended_s: the process ran again, or was killed, or its connections or its disk were as before.
    alone: no other one was in its incident.
    """

    fault: Fault
    began_s: float
    ended_s: float
    alone: bool = True


@dataclass(kw_only=True)
class Facts:
    """ended_ids: message ids of the dead letters that sessions leave at their end. refused: the wills of connections that the
    session has refused, because it knew a later one or the gateway was wrong about the session; the gateway may have answered
    them before that (protocol.md, section 7, docs/decisions/0043). refusals: their rows in the ledger. outages: after faults.
    standstills: of the engine, by its reports about micro-batches, whatever the reason.
    """

    devices: list[DeviceFacts] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    uplink: list[Received] = field(default_factory=list)
    receipts: list[Outcome] = field(default_factory=list)
    sessions: list[SessionRow] = field(default_factory=list)
    connections: list[LoggedConnection] = field(default_factory=list)
    refused: frozenset[bytes] = frozenset()
    refusals: list[SessionRow] = field(default_factory=list)
    ended_ids: frozenset[str] = frozenset()
    outages: list[Outage] = field(default_factory=list)
    standstills: list[Outage] = field(default_factory=list)
    suffered: list[Suffered] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    presence: list[SaidPresence] = field(default_factory=list)
    campaigns: list[CampaignFacts] = field(default_factory=list)

    @property
    def pauses(self) -> list[Outage]:
        """Returns when the engine did nothing, which makes all that it does late."""
        return self.outages + self.standstills


@dataclass(frozen=True, kw_only=True)
class Violation:
    """of: the payload or message id that it is about, empty = the client as a whole."""

    client_id: str
    what: str
    of: bytes = b""

    def __str__(self) -> str:
        about = f" ({self.of.decode(errors='replace')})" if self.of else ""
        return f"{self.client_id}: {self.what}{about}"
