"""Notes what was subscribed, published and received, and checks what must hold between these."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from state.model import Outcome, QoS
from state.records import receipts as records
from state.session import Session
from tests.properties.routing.scenario import SHARED_FILTER, TOPICS

Members: TypeAlias = tuple[tuple[str, bool], ...]


@dataclass
class Publication:
    """appended: when it first was in a log that matchers read; 0 = not yet. matched: when a matcher last matched it.

    connection: of the device that published it, and sent: when. members: of the group at each match, by what had given the
    message back to it (b"" = nothing).
    """

    name: str
    publisher: str
    topic: str
    qos: int
    connection: object = field(repr=False)
    sent: int
    appended: int = 0
    matched: int = 0
    members: dict[bytes, set[Members]] = field(default_factory=dict, repr=False)

    @property
    def may_have_several_members(self) -> bool:
        """True if the group changed between two attempts to route the same record, or a copy of it."""
        return any(len(members) > 1 for members in self.members.values())


@dataclass
class Subscribing:
    """A subscription of a session. Times count what happens: sent, acked: of SUBSCRIBE and SUBACK; dropped: UNSUBSCRIBE was sent.
    ended: UNSUBACK was received, or the session is known to be over. 0 = did not happen.
    """

    client: str
    era: int
    topic_filter: str
    qos: int
    connection: object = field(repr=False)
    sent: int
    acked: int = 0
    dropped: int = 0
    ended: int = 0

    def matches(self, publication: Publication) -> bool:
        return publication.topic in TOPICS[self.topic_filter]


class Receipt(NamedTuple):
    """A message that a device's application got. era: the connection with which the session began."""

    client: str
    era: int
    name: str


class Account:
    """Its methods raise AssertionError when a promise is broken."""

    def __init__(self) -> None:
        self._time = 0
        self.publications: dict[str, Publication] = {}
        self.subscribings: list[Subscribing] = []
        self._answered: set[str] = set()
        self._got: Counter[Receipt] = Counter()
        self._got_qos: dict[Receipt, int] = {}
        self._orders: dict[tuple[Any, ...], Publication] = {}
        self._sessions_ended: dict[str, list[int]] = defaultdict(list)
        self._received: dict[Receipt, int] = {}
        self._addressed: list[Publication] = []
        self._outcomes: dict[str, Outcome] = {}

    def time(self) -> int:
        """Returns a new time."""
        self._time += 1
        return self._time

    # --- what happens ---------------------------------------------------------------------------------------------------------

    def published(self, publisher: str, topic: str, qos: int, connection: object) -> str:
        """Returns the name of a new publication, which is its payload."""
        name = f"{publisher}-{len(self.publications):03}"
        self.publications[name] = Publication(name, publisher, topic, qos, connection, self.time())
        return name

    def addressed(self, client: str, qos: int) -> str:
        """Returns the name of a message that names a client, which is its payload. It is in the log."""
        name = f"{client}-own-{len(self.publications):03}"
        publication = Publication(name, "owner", client, qos, None, self.time())
        publication.appended, publication.matched = self.time(), self.time()
        self.publications[name] = publication
        self._addressed.append(publication)
        return name

    def answered(self, name: str) -> None:
        """The device has PUBREC for a publication."""
        self._answered.add(name)

    def appended(self, name: str) -> None:
        publication = self.publications[name]
        publication.appended = publication.appended or self.time()

    def matched(self, name: str, given_back: bytes, members: Members) -> None:
        """members: of the group, with who is online, as the matcher knows them. given_back: names what wrote the record."""
        publication = self.publications[name]
        publication.matched = self.time()
        publication.members.setdefault(given_back, set()).add(members)

    def session_ended(self, client: str) -> None:
        self._sessions_ended[client].append(self.time())

    def era_began(self, client: str, era: int) -> None:
        """The device knows that its former sessions are over."""
        for each in self.subscribings:
            if each.client == client and each.era != era and not each.ended:
                each.ended = self.time()

    def received(self, client: str, era: int, name: str, qos: int, *, dup: bool) -> None:
        """The device's application gets a message, or gets it again."""
        receipt, publication = Receipt(client, era, name), self.publications[name]
        self._got[receipt] += 1
        if self._got[receipt] > 1 and not publication.may_have_several_members:
            is_repetition = dup and qos == QoS.AT_LEAST_ONCE == self._got_qos[receipt]
            assert is_repetition, f"{client} gets {name} twice at QoS {qos}"
        if self._got[receipt] > 1:
            return
        self._got_qos[receipt] = qos
        self._received[receipt] = self.time()
        if publication not in self._addressed:
            self._is_subscribed(receipt, publication)
        if publication.topic == "s":
            self._has_no_other_member(receipt)
        else:
            order = client, era, publication.publisher, publication.qos, qos
            before = self._orders.get(order)
            assert before is None or before.appended < publication.appended, f"{client} gets {name} after {before}"
            self._orders[order] = publication

    def ended(self, receipt: records.Receipt) -> None:
        """Notes a receipt of the engine, for a message that names its client."""
        name, outcome = receipt.message_id, receipt.outcome
        assert name not in self._outcomes, f"two outcomes of {name}: {self._outcomes[name]}, then {outcome}"
        if outcome is Outcome.DELIVERED:
            assert any(got.name == name for got in self._got), f"{name} is delivered, and the device never got it"
        self._outcomes[name] = outcome

    def check(self, session: Session, messages_read: object) -> None:
        """Has nothing to say about a session as such."""

    # --- what must hold -------------------------------------------------------------------------------------------------------

    def _is_subscribed(self, receipt: Receipt, publication: Publication) -> None:
        own = [each for each in self.subscribings if each.client == receipt.client and each.matches(publication)]
        allowed = [
            each
            for each in own
            if each.era == receipt.era
            and each.sent < publication.matched
            and (not each.ended or publication.appended < each.ended)
        ]
        assert allowed, f"{receipt} without a subscription: {publication}, {own}"

    def _has_no_other_member(self, receipt: Receipt) -> None:
        """Checks that the message went to one member, unless the group changed between two attempts to route it."""
        if self.publications[receipt.name].may_have_several_members:
            return
        for other in self._got_qos:
            if other.name == receipt.name and other != receipt:
                is_over = any(self._received[other] < ended for ended in self._sessions_ended[other.client])
                may_go_back = is_over and self._got_qos[other] < QoS.EXACTLY_ONCE
                assert may_go_back, f"{receipt}, and {other} had it"

    def missing(self) -> list[str]:
        """Returns what was not received, and has to be."""
        lost = [f"{name} was answered" for name in sorted(self._answered) if not self.publications[name].appended]
        return [*lost, *self._missing_of_clients(), *self._missing_of_groups(), *self._missing_addressed()]

    def _missing_of_clients(self) -> Iterator[str]:
        for each in self.subscribings:
            if each.topic_filter == SHARED_FILTER or not self._holds(each):
                continue
            for publication in self.publications.values():
                receipt = Receipt(each.client, each.era, publication.name)
                if publication.qos and self._is_due(publication, each) and not self._got[receipt]:
                    yield f"{publication} for {each}"

    def _missing_addressed(self) -> Iterator[str]:
        """Yields messages that name a client and have no outcome."""
        for publication in self._addressed:
            if publication.name not in self._outcomes:
                yield f"{publication} for {publication.topic}"

    def _missing_of_groups(self) -> Iterator[str]:
        for publication in self.publications.values():
            if publication.topic != "s" or not publication.qos or not publication.appended:
                continue
            members = [each for each in self.subscribings if each.topic_filter == SHARED_FILTER]
            if not any(self._holds(each) and self._is_due(publication, each) for each in members):
                continue
            if any(receipt.name == publication.name for receipt in self._got):
                continue
            may_be_in_flight = publication.qos == QoS.EXACTLY_ONCE and any(
                publication.appended < ended for each in self._sessions_ended.values() for ended in each
            )
            if not may_be_in_flight:
                yield f"{publication} for the group"

    @staticmethod
    def _holds(each: Subscribing) -> bool:
        return bool(each.acked) and not each.dropped and not each.ended

    @staticmethod
    def _is_due(publication: Publication, each: Subscribing) -> bool:
        if not publication.appended or not each.matches(publication):
            return False
        is_behind_subscribe = publication.connection is each.connection and each.sent < publication.sent
        return each.acked < publication.appended or is_behind_subscribe
