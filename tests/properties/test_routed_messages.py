"""A session and a matcher that read one client's SUBSCRIBEs at any distance from each other: what must hold whatever happens.

* Each routed message has one fate, however often a matcher writes it: it was accepted, or a ledger row says that it reached
  nobody, or it waited too long for a CONNECT.
* A message is accepted if no list that was appended after the one that matched it lacks the filter.
* A message of a shared subscription that was not accepted has gone back to its group, once.
* The table ends with what the session has, or with nothing if there is no session.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.commands import (
    AcceptConnection,
    AnnounceSubscriptions,
    Command,
    EndSubscriptions,
    RecordTransition,
    ReturnToGroup,
    Transition,
)
from state.events import ClientConnected, ConnectionLost, DeadlineReached, Event, MessageSubmitted, Subscribed, Unsubscribed
from state.model import Message, Outcome, Position, QoS, Routing, Subscription
from state.records.routing import SourceKind, source_number
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings

pytestmark = pytest.mark.no_cover

SHARED: Final = "$share/group/t"
SOURCES: Final = {
    name: source_number(SourceKind.UPLINK, 0, f"uplink {name}" if name == SHARED else "uplink") for name in ("t", SHARED)
}
SETTINGS: Final = SessionSettings(routing=True, max_mqueue_len=0, max_inflight=0, deduplication_window=0)
HOUR_MS: Final = 3_600_000
CHANGES: Final = ("connect", "clean", "lose", "sub", "sub", "unsub", "sub shared", "sub shared", "unsub shared", "wait")
STEPS: Final = (*CHANGES, *("publish",) * 8, *("copy",) * 2, *("read",) * 8)


class TableEntry(NamedTuple):
    connection_id: int
    version: int
    is_offline: bool
    filters: frozenset[str]


class World:
    """A gateway that appends, a matcher that knows what was appended, and a session that reads later."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.session = Session(client_id="c", settings=SETTINGS)
        self.events: list[Event] = []
        self.messages: list[MessageSubmitted] = []
        self.read_events = self.read_messages = 0
        self.table: TableEntry | None = None
        self.ended = 0
        self.connection_id = 0
        self.is_online = False
        self.version = 0
        self.filters: set[str] = set()
        self.marks = 0
        self.lists: list[frozenset[str]] = []
        """Every list of the client, as the gateways appended them; a session that ends appends an empty one."""
        self.published: dict[str, tuple[str, int]] = {}
        """Filter and number of lists when it was published, by message id."""
        self.fates: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self.returned: Counter[str] = Counter()

    def step(self, name: str, number: int) -> None:
        match name:
            case "connect" | "clean":
                self.connect(clean_start=name == "clean")
            case "lose":
                if self.is_online:
                    self.is_online = False
                    self.events.append(ConnectionLost(connection_id=self.connection_id))
            case "publish":
                self.publish()
            case "copy":
                if self.messages:  # a matcher begins again at an earlier message, and writes all from there
                    again = self.messages[number % len(self.messages) :]
                    self.messages += again[: 1 + number % 3]
            case "wait":  # longer than a session without a connection lives; all waits of a test are shorter than an hour
                self.pass_time(self.now_ms + 70_000)
            case "read":
                self.read(number % 4, number // 4 % 4)
            case _:
                self.subscribe(SHARED if name.endswith("shared") else "t", adds=name.startswith("sub"))

    def connect(self, *, clean_start: bool) -> None:
        """A gateway waits for the session, but for a Clean Start."""
        self.is_online, self.connection_id, self.version = True, self.connection_id + 1, 0
        self.events.append(
            ClientConnected(
                connection_id=self.connection_id, commands_partition=0, clean_start=clean_start, session_expiry_interval_s=60
            )
        )
        if clean_start:
            self.filters.clear()
            self.append_list()
            return
        self.read(len(self.events), 0)
        accept = [command for command in self.last if isinstance(command, AcceptConnection)][-1]
        self.filters = set(accept.topic_filters or ())
        if (accept.list_connection_id, accept.list_version) == (self.connection_id, 0) and not accept.session_present:
            self.append_list()  # an empty one
        self.version = accept.list_version if accept.list_connection_id == self.connection_id else 0

    def subscribe(self, topic_filter: str, *, adds: bool) -> None:
        if not self.is_online or adds == (topic_filter in self.filters):
            return
        self.version += 1
        if adds:
            self.filters.add(topic_filter)
            subscription = Subscription(topic_filter=topic_filter, qos=QoS.AT_LEAST_ONCE)
            self.events.append(Subscribed(connection_id=self.connection_id, subscriptions=(subscription,), version=self.version))
        else:
            self.filters.discard(topic_filter)
            self.events.append(
                Unsubscribed(connection_id=self.connection_id, topic_filters=(topic_filter,), version=self.version)
            )
        self.append_list()

    def append_list(self) -> None:
        self.lists.append(frozenset(self.filters))
        self.enter(TableEntry(self.connection_id, self.version, False, frozenset(self.filters)))

    def enter(self, entry: TableEntry) -> None:
        if entry.connection_id > self.ended and (self.table is None or entry[:3] >= self.table[:3]):
            self.table = entry

    def publish(self) -> None:
        self.marks += 1
        for topic_filter in sorted(self.table.filters) if self.table else ():
            assert self.table is not None
            name = f"{topic_filter} {self.marks}"
            routing = Routing(
                source=SOURCES[topic_filter],
                mark=self.marks,
                connection_id=self.table.connection_id,
                version=self.table.version,
                qos=QoS.AT_LEAST_ONCE,
                share=topic_filter if topic_filter == SHARED else "",
            )
            self.published[name] = topic_filter, len(self.lists)
            self.messages.append(
                MessageSubmitted(message=Message(message_id=name, topic="t", payload=b"", routing=routing), position=None)
            )

    def read(self, events: int, messages: int) -> None:
        batch: list[Event] = list(self.events[self.read_events : self.read_events + events])
        self.read_events += len(batch)
        for offset, event in enumerate(self.messages[self.read_messages : self.read_messages + messages], self.read_messages):
            batch.append(MessageSubmitted(message=event.message, position=Position(0, offset)))
        self.read_messages += len(batch) - len([event for event in batch if not isinstance(event, MessageSubmitted)])
        self.act(batch or [DeadlineReached()])

    def act(self, batch: Sequence[Event]) -> None:
        blob = encode_session(self.session)
        again = decode_session(blob, client_id="c", settings=SETTINGS)
        self.last = self.session.handle_all(batch, now_ms=self.now_ms)
        assert again.handle_all(batch, now_ms=self.now_ms) == self.last
        assert encode_session(again) == encode_session(self.session)
        deadline_ms = self.session.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.now_ms
        if self.session.is_empty:  # the host forgets it
            self.session = Session(client_id="c", settings=SETTINGS)
        for command in self.last:
            self.apply(command)

    def apply(self, command: Command) -> None:
        match command:
            case RecordTransition(transition=Transition.ACCEPTED, message_id=str(name)):
                self.fates[name] += 1
                self.accepted.add(name)
            case RecordTransition(transition=Transition.ROUTED_NOWHERE, message_id=str(name)) if name not in self.accepted:
                self.fates[name] += 1
            case RecordTransition(transition=Transition.FINISHED, outcome=Outcome.SESSION_ENDED, message_id=str(name)):
                self.fates[name] += name not in self.accepted
            case RecordTransition(transition=Transition.SESSION_ENDED):
                self.lists.append(frozenset())
            case ReturnToGroup(message=message):
                self.returned[message.message_id] += 1
            case AnnounceSubscriptions(connection_id=connection_id, version=version):
                filters = frozenset(subscription.topic_filter for subscription in command.subscriptions)
                self.enter(TableEntry(connection_id, version, not command.is_online, filters))
            case EndSubscriptions(connection_id=connection_id):
                self.ended = max(self.ended, connection_id)
                if self.table is not None and self.table.connection_id <= connection_id:
                    self.table = None
            case _:
                pass

    def pass_time(self, until_ms: int) -> None:
        while (deadline_ms := self.session.next_deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.act([DeadlineReached()])
        self.now_ms = until_ms


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 15)), min_size=8, max_size=25))
def test_a_routed_message_has_one_fate_and_the_right_one(steps: list[tuple[str, int]]) -> None:
    world = World()
    for name, number in steps:
        world.step(name, number)
    world.read(len(world.events), len(world.messages))
    session = world.session
    table = world.table
    if session.established:
        own = {subscription.topic_filter for subscription in session.outbound.subscriptions}
        assert (set() if table is None else set(table.filters)) == own
        if table is not None and SHARED in own:
            assert table.is_offline == (session.connection is None)
    else:
        assert table is None or not table.filters
    lists = list(world.lists)
    world.pass_time(world.now_ms + 2 * HOUR_MS)
    assert world.fates == dict.fromkeys(world.published, 1)
    for name, (topic_filter, known) in world.published.items():
        if all(topic_filter in later for later in lists[known:]):
            assert name in world.accepted
        if topic_filter == SHARED and name not in world.accepted:
            assert world.returned[name] == 1
        assert world.returned[name] <= 1
