"""Two gateways, their tables, the log and a session: what CONNACK says before the session has read the CONNECT.

The log has two topics: the session reads events in micro-batches, and the table of each gateway reads marks at its own pace. A
gateway reads a CONNECT, waits until its table is as far as the marks were then (sinks/routing/session_lookups.py) or gives that
up, appends CONNECT and mark, and sends CONNACK when it has what that waits for. Appends may take long, fail, or get into the log
although they have failed. Gateways die with what they hold, and start again on a compacted log. Session and tables are the real
ones.

The device gives a connection up before it begins the next one. What its gateways hold of it may still be on its way. It may
connect through a bridge too, which marks nothing. The clocks of gateways are off by less than the margin of a claim, and the
engine's may be seconds behind.

 * A CONNACK that precedes the session's answer says the truth, or the session refuses the connection.
 * Who is told that there is no session had none with a CONNACK before: a device drops its half of QoS 2 exchanges then
   [MQTT-3.2.2-3], and would get a message twice.
 * A session that ends by a claim has expired: its device has left its last connection for the whole interval.
 * A refusal ends no session, and no message of one.
 * A subscription that was acknowledged is in the list that matchers use, as long as its session lives.
 * Without faults no CONNECT is refused: the device waits for CONNACK, Kafka has a record within 0.2 s, a micro-batch takes less
   than a second, and a device that leaves one gateway is not at another one before Kafka has what the first one says of its end.

`Rules` has the rules that can be taken away, and the model must find what breaks then.
"""

import random
from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sinks.routing.session_table import SessionTable
from sinks.routing.subscription_table import SubscriptionTable
from state.commands import (
    AcceptConnection,
    AnnounceSubscriptions,
    CloseConnection,
    Command,
    EndSessionMark,
    EndSubscriptions,
    MarkSession,
    RecordTransition,
    SendReceipt,
    Transition,
)
from state.events import (
    Claim,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    DeadlineReached,
    Event,
    ExpiredSession,
    MessageSubmitted,
    Subscribed,
)
from state.model import Message, Outcome, QoS, ReasonCode, Subscription
from state.records.events import completed
from state.records.session_marks import CLOCKS_MS, FOREVER_MS, SessionMark, has_expired
from state.records.subscriptions import SubscriptionList
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings

pytestmark = pytest.mark.no_cover

CLIENT, KEY = "c", b"c"
NOTHING_KEPT = -1
BRIDGE = 2
EXPIRED = "session expiry interval passed"
SETTINGS = SessionSettings(routing=True)
KEPT_S = 3_600
SURELY_KEPT_S = 60
MARGIN_MS = 750


@dataclass(frozen=True)
class Rules:
    """The rules that gateways, matchers, the host and sessions of the model obey. Each may be taken away.

    Attributes:
        mark_says_for_how_long: It decides whether the session is claimed to be there. The new CONNECT does not.
        connect_ends_claims: A CONNECT without an expiry interval writes a mark if there is one.
        disconnect_is_marked: So is a DISCONNECT with another interval.
        look_up_waits_for_end: For what the gateway itself has just written of the end of a connection.
        claims_keep_margin: A session that may expire within the next second is not claimed.
        suback_waits: For the session's answer, if CONNACK has claimed that there is no session.
        only_left_sessions_expire: A mark that was written before CONNACK says nothing of an end.
        expiry_keeps_margin: A session is not claimed to have expired before clocks agree on it.
        mark_follows_the_end: Kafka has the end of a connection before the mark that says how long its session is kept.
        lower_marks_are_overruled: A mark behind that of a later connection is followed by the later one once more.
        resumed_sessions_mark_themselves: If their gateway or bridge has claimed nothing.
        claims_have_a_time: That of their record. The engine's may be behind.
        unanswered_connections_count_for_nothing: A session expires though a connection without CONNACK has resumed it.
        later_sessions_stay: A session that has begun behind the connection that a claim names has not expired.
    """

    mark_says_for_how_long: bool = True
    connect_ends_claims: bool = True
    disconnect_is_marked: bool = True
    look_up_waits_for_end: bool = True
    claims_keep_margin: bool = True
    suback_waits: bool = True
    only_left_sessions_expire: bool = True
    expiry_keeps_margin: bool = True
    mark_follows_the_end: bool = True
    lower_marks_are_overruled: bool = True
    resumed_sessions_mark_themselves: bool = True
    claims_have_a_time: bool = True
    unanswered_connections_count_for_nothing: bool = True
    later_sessions_stay: bool = True


@dataclass(frozen=True)
class Mark:
    """A record of `inflight.subscriptions` that marks a session, or the end of one."""

    connection_id: int
    kept_until_ms: int = 0
    is_end: bool = False
    left_s: int | None = None


@dataclass(eq=False)
class Connecting:
    """A CONNECT at a gateway.

    Attributes:
        marks_end: Where the marks ended when it was read.
        acknowledged: Connections of which the device had CONNACK then.
        claim: None until the table was asked.
        claim_ends_ms: A session that is claimed to be there may have ended after this time.
        expired: The session that is claimed to have expired.
        is_bridged: It has come through a bridge.
        event, mark_kept_s: CONNECT, and for how long its mark says that the session lives, until Kafka has confirmed them.
        has_marked: There is or was such a mark.
        logged_ms: When Kafka got the CONNECT.
        end: The event that ends the connection, until Kafka has confirmed it.
        over_ms, kept_s: When the device was gone, and for how long its session is kept from then on.
        farewell_s: For how long the last mark says that the session is kept, until Kafka has confirmed it; 0 = the end of it,
            `NOTHING_KEPT` = it has ended with the connection, if that was accepted.
        answer: Session Present of the session's answer, once it has come.
        told: What CONNACK has said to the device; None = it has none.
        filters, version: The newest list of subscriptions that its gateway has written.
        unacknowledged: Subscriptions whose SUBACK waits for the session.
    """

    connection_id: int
    gateway: int
    clean: bool
    expiry_s: int
    marks_end: int
    acknowledged: frozenset[int]
    claim: Claim | None = None
    claim_ends_ms: int = 0
    expired: ExpiredSession | None = None
    is_bridged: bool = False
    end: Event | None = None
    over_ms: int | None = None
    kept_s: int = 0
    logged_ms: int = 0
    event: ClientConnected | None = None
    mark_kept_s: int | None = None
    has_marked: bool = False
    farewell_s: int | None = None
    answer: bool | None = None
    told: bool | None = None
    filters: tuple[Subscription, ...] = ()
    version: int = 0
    unacknowledged: set[str] = field(default_factory=set)
    is_abandoned: bool = False
    is_over: bool = False

    @property
    def is_leaving(self) -> bool:
        """Returns True if Kafka has not confirmed all that its gateway says at its end."""
        return self.end is not None or self.farewell_s is not None

    @property
    def has_records(self) -> bool:
        return self.event is not None or self.mark_kept_s is not None

    @property
    def is_served(self) -> bool:
        """Returns True if the gateway works off what the device sends."""
        return self.told is not None and not self.is_over and (self.answer is not None or self.claim is not Claim.RESUMED)


@dataclass(eq=False)
class Log:
    events: deque[Event] = field(default_factory=deque)
    marks: list[Mark] = field(default_factory=list)
    late: list[ClientConnected | Mark] = field(default_factory=list)
    """Records that have failed for their gateway, and may still get into the log."""

    def append(self, record: ClientConnected | Mark) -> None:
        if isinstance(record, ClientConnected):
            self.events.append(record)
        else:
            self.marks.append(record)


class ClaimsModel(RuleBasedStateMachine):
    def __init__(
        self, rules: Rules = Rules(), *, has_faults: bool = True, clocks_ms: tuple[int, int] = (0, 0), engine_behind_ms: int = 0
    ) -> None:
        """clocks_ms: by how much the clocks of the gateways are ahead."""
        super().__init__()
        self.clocks_ms = clocks_ms
        self.engine_behind_ms = engine_behind_ms
        self.claimed_expired = 0
        """How many sessions have ended by a claim."""
        self.kept_rules = rules
        self.has_faults = has_faults
        self.now_ms = 1_000
        self.session = Session(client_id=CLIENT, settings=SETTINGS)
        self.log = Log()
        self.tables = [SessionTable(), SessionTable()]
        self.read = [0, 0]
        self.ends = [0, 0]
        """By gateway: the number of marks in the log once the end of a session that it wrote was among them."""
        self.known: dict[int, Connecting] = {}
        self.late_ends: list[Event] = []
        """Ends that nobody but the lease tells."""
        self.output: list[Command] = []
        """Commands that the engine has decided, and nobody has read."""
        self.submitted: set[str] = set()
        self.receipts: dict[str, Outcome] = {}
        self.accepted: set[int] = set()
        """Connections of the present session."""
        self.given_up: set[int] = set()
        """Connections whose session the device wants no more."""
        self.lists = SubscriptionTable()
        self.promised: set[str] = set()
        """Topic filters with SUBACK, of the present session."""

    # --- the device and its gateways ----------------------------------------------------------------------------------------

    @property
    def open(self) -> list[Connecting]:
        return [connecting for connecting in self.known.values() if not connecting.is_over]

    @rule(
        gateway=st.sampled_from([0, 0, 0, 1, 1, 1, BRIDGE]),
        clean=st.sampled_from([False, False, False, True]),
        expiry_s=st.sampled_from([0, 5, 5, SURELY_KEPT_S - 1, KEPT_S, KEPT_S, KEPT_S]),
    )
    def the_device_connects(self, gateway: int, clean: bool, expiry_s: int) -> None:
        for connecting in self.known.values():
            connecting.is_abandoned = True
        acknowledged = frozenset(one.connection_id for one in self.known.values() if one.told is not None) - self.given_up
        if clean:
            self._device_forgets()
        connection_id = len(self.known) + 1
        one = Connecting(connection_id, gateway, clean, expiry_s, len(self.log.marks), acknowledged)
        self.known[connection_id] = one
        if gateway == BRIDGE:
            one.is_bridged, one.claim = True, Claim.NONE
            one.event = self._connected(one)

    @rule(gateway=st.integers(0, 1), count=st.integers(1, 5))
    def a_table_reads(self, gateway: int, count: int) -> None:
        for record in self.log.marks[self.read[gateway] : self.read[gateway] + count]:
            self.read[gateway] += 1
            self._read(gateway, record)
            newest = self.tables[gateway].get(KEY)
            if gateway == 0 and newest is not None:  # Matcher.repeated
                is_lower = self.kept_rules.lower_marks_are_overruled and record.connection_id < newest.connection_id
                if record.is_end or is_lower:
                    self.log.marks.append(Mark(newest.connection_id))

    def _read(self, gateway: int, record: Mark) -> None:
        table = self.tables[gateway]
        if record.is_end:
            table.end(KEY, record.connection_id)
        else:
            table.mark(KEY, SessionMark(record.connection_id, record.kept_until_ms, record.left_s))

    @precondition(lambda self: self.read[0] == len(self.log.marks))
    @rule(gateway=st.integers(0, 1))
    def a_table_is_read_anew_after_compaction(self, gateway: int) -> None:
        self.tables[gateway], self.read[gateway] = SessionTable(), len(self.log.marks)
        for record in self.log.marks[-1:]:
            self._read(gateway, record)

    @precondition(lambda self: any(one.claim is None for one in self.open))
    @rule(gives_up=st.sampled_from([False, False, False, True]))
    def a_gateway_asks_its_table(self, gives_up: bool) -> None:
        for one in self.open:
            if one.claim is None and self._is_ready(one, gives_up):
                self._tell_connected(one, gives_up)
                return

    def _is_ready(self, one: Connecting, gives_up: bool) -> bool:
        """A Clean Start does not wait for the table. Without faults the table has what its device was told before."""
        if gives_up or (one.clean and self.has_faults):
            return True
        if self.kept_rules.look_up_waits_for_end:
            if any(other.gateway == one.gateway and other.is_leaving for other in self.known.values()):
                return False
            one.marks_end = max(one.marks_end, self.ends[one.gateway])
        return self.read[one.gateway] >= one.marks_end

    def _tell_connected(self, one: Connecting, gives_up: bool) -> None:
        """Does what sinks/mqtt/connection/handshake.py does."""
        mark = self.tables[one.gateway].get(KEY)
        one.claim = Claim.NONE
        if not one.clean and not gives_up:
            one.claim = self._claim(one, mark)
        if one.expiry_s or (mark is not None and self.kept_rules.connect_ends_claims):
            one.mark_kept_s, one.has_marked = one.expiry_s, True
        one.event = self._connected(one)

    def _connected(self, one: Connecting) -> ClientConnected:
        assert one.claim is not None
        return ClientConnected(
            connection_id=one.connection_id,
            commands_partition=0,
            protocol_version=5,
            clean_start=one.clean,
            session_expiry_interval_s=one.expiry_s,
            claim=one.claim,
            expired=one.expired,
        )

    def _claim(self, one: Connecting, mark: SessionMark | None) -> Claim:
        """Does what `Handshake.looked_up` does."""
        if mark is None:
            return Claim.NEW
        kept_until_ms, now_ms = mark.kept_until_ms, self._time_at(one.gateway)
        if not self.kept_rules.mark_says_for_how_long:
            one.claim_ends_ms = FOREVER_MS
            return Claim.RESUMED if one.expiry_s >= SURELY_KEPT_S else Claim.NONE
        margin_ms, clocks_ms = (MARGIN_MS, CLOCKS_MS) if self.kept_rules.claims_keep_margin else (0, 0)
        one.claim_ends_ms = kept_until_ms - clocks_ms
        if kept_until_ms - now_ms >= margin_ms:
            return Claim.RESUMED
        if kept_until_ms and mark.left_s is None and not self.kept_rules.only_left_sessions_expire:
            mark = mark._replace(left_s=self.known[mark.connection_id].expiry_s)
        one.expired = mark.expired(now_ms if self.kept_rules.expiry_keeps_margin else now_ms + CLOCKS_MS)
        return Claim.NONE if one.expired is None else Claim.NEW

    def _time_at(self, gateway: int) -> int:
        return self.now_ms + self.clocks_ms[gateway]

    def _mark(self, connection_id: int, kept_s: int) -> Mark:
        """Returns the mark that precedes CONNACK, as it gets into the log now."""
        if kept_s >= SURELY_KEPT_S:
            return Mark(connection_id, FOREVER_MS)
        return Mark(connection_id, self.now_ms + 1_000 * kept_s)

    @precondition(lambda self: any(one.has_records for one in self.open))
    @rule(number=st.integers(0, 5), mark_first=st.booleans())
    def kafka_has_a_record(self, number: int, mark_first: bool) -> None:
        waiting = [one for one in self.open if one.has_records]
        one = waiting[number % len(waiting)]
        if one.mark_kept_s is not None and (one.event is None or mark_first):
            for earlier in self.known.values():  # a producer keeps the order of its records
                if earlier.gateway == one.gateway and earlier.is_leaving:
                    self._kafka_has_end_of(earlier)
            self.log.append(self._mark(one.connection_id, one.mark_kept_s))
            one.mark_kept_s = None
        elif one.event is not None:
            self._append_connect(one.event)
            one.event = None
            if one.expired is not None:  # and so have its subscriptions
                self._device_forgets()
            if (one.clean or one.expired is not None) and not one.is_bridged:
                self._write_list(one)
        self._answer(one)

    def _append_connect(self, event: ClientConnected) -> None:
        self.known[event.connection_id].logged_ms = self.now_ms
        timestamp_ms = self.now_ms if self.kept_rules.claims_have_a_time else 0
        event = completed(event, topic="e", partition=0, offset=0, accepted_ms=self.now_ms, timestamp_ms=timestamp_ms)  # type: ignore[assignment]
        self.log.append(event)

    @precondition(lambda self: any(one.is_leaving for one in self.known.values()))
    @rule(is_mark=st.booleans())
    def kafka_has_the_end_of_a_connection(self, is_mark: bool) -> None:
        self._kafka_has_end_of(next(one for one in self.known.values() if one.is_leaving), only_mark=is_mark)

    @precondition(lambda self: any(one.is_leaving for one in self.known.values()))
    @rule(has_end=st.booleans(), has_mark=st.booleans())
    def a_gateway_dies_with_the_end_of_a_connection(self, has_end: bool, has_mark: bool) -> None:
        """The engine hears of it by the lease."""
        one = next(one for one in self.known.values() if one.is_leaving)
        if has_end or (has_mark and self.kept_rules.mark_follows_the_end):
            self._kafka_has_end(one)
        if has_mark and one.farewell_s is not None:
            self._kafka_has_farewell(one)
        one.end = one.farewell_s = None
        self.late_ends.append(ConnectionLost(connection_id=one.connection_id, reason="the lease has passed"))

    @precondition(lambda self: self.late_ends)
    @rule()
    def a_lease_passes(self) -> None:
        self.log.events += self.late_ends
        self.late_ends.clear()

    def kafka_has_all_ends(self) -> None:
        for one in self.known.values():
            self._kafka_has_end_of(one)

    def _kafka_has_end_of(self, one: Connecting, *, only_mark: bool = False) -> None:
        """only_mark: and not the event, if nothing else demands it."""
        if not only_mark or self.kept_rules.mark_follows_the_end:
            self._kafka_has_end(one)
        if one.farewell_s is not None:
            self._kafka_has_farewell(one)

    def _kafka_has_end(self, one: Connecting) -> None:
        if one.end is not None:
            self.log.events.append(one.end)
            one.end = None

    def _kafka_has_farewell(self, one: Connecting) -> None:
        kept_s, one.farewell_s = one.farewell_s or 0, None
        if kept_s:
            left_s = max(0, kept_s)
            self.log.marks.append(Mark(one.connection_id, self.now_ms + 1_000 * left_s, left_s=left_s))
        else:
            self.log.marks.append(Mark(one.connection_id, is_end=True))
        self.ends[one.gateway] = len(self.log.marks)

    def _write_list(self, one: Connecting) -> None:
        self.lists.replace(
            CLIENT, SubscriptionList(connection_id=one.connection_id, version=one.version, subscriptions=one.filters)
        )

    def _answer(self, one: Connecting) -> None:
        """CONNACK, when it has what it waits for."""
        if one.is_over or one.told is not None or one.claim is None or one.has_records:
            return
        is_kept = one.claim is Claim.RESUMED and self._time_at(one.gateway) <= one.claim_ends_ms
        early = not one.is_bridged and (one.clean or one.claim is Claim.NEW or is_kept)
        if not one.is_abandoned and (early or one.answer is not None):
            one.told = one.claim is Claim.RESUMED if early else one.answer
            if not one.told:
                self._device_forgets()

    def _device_forgets(self) -> None:
        """There is no session, by what the device wants or knows."""
        self.promised.clear()

    @property
    def current(self) -> Connecting | None:
        """Returns the connection that the device has, with CONNACK."""
        one = self.known.get(len(self.known))
        return one if one is not None and one.told is not None and not one.is_over and not one.is_abandoned else None

    @precondition(lambda self: self.current is not None and self.current.is_served and not self.current.is_bridged)
    @rule()
    def the_device_subscribes(self) -> None:
        one = self.current
        assert one is not None
        one.version += 1
        subscription = Subscription(topic_filter=f"{one.connection_id}/{one.version}", qos=QoS.AT_LEAST_ONCE)
        one.filters = (*one.filters, subscription)
        self.log.events.append(Subscribed(connection_id=one.connection_id, subscriptions=(subscription,), version=one.version))
        self._write_list(one)
        if one.claim is Claim.NEW and one.answer is None and self.kept_rules.suback_waits:
            one.unacknowledged.add(subscription.topic_filter)
        else:
            self.promised.add(subscription.topic_filter)

    @precondition(lambda self: self.current is not None)
    @rule(changed_s=st.sampled_from([None, None, 0, 5, KEPT_S]))
    def the_device_disconnects(self, changed_s: int | None) -> None:
        one = self.current
        assert one is not None
        if changed_s and not one.expiry_s:
            return  # a protocol error
        one.end = ClientDisconnected(connection_id=one.connection_id, reason_code=0, session_expiry_interval_s=changed_s)
        one.is_over = one.is_abandoned = True
        one.over_ms = self.now_ms
        if one.is_bridged:
            self._kafka_has_end(one)
        elif changed_s is None or self.kept_rules.disconnect_is_marked:
            self._say_farewell(one, one.expiry_s if changed_s is None else changed_s)
        one.kept_s = one.expiry_s if changed_s is None or not one.expiry_s else changed_s
        if changed_s == 0:
            self.given_up |= self.known.keys()
            self._device_forgets()

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 5), gets_through=st.sampled_from(["", "event", "mark", "both"]), tells=st.booleans())
    def a_gateway_lets_go(self, number: int, gets_through: str, tells: bool) -> None:
        """An append fails, the device is gone, or the gateway dies. Then the engine hears of it by the lease."""
        one = self.open[number % len(self.open)]
        one.is_over = True
        one.over_ms, one.kept_s = self.now_ms, one.expiry_s
        if one.event is not None and tells:  # the end is behind the CONNECT, if that gets into the log
            self._append_connect(one.event)
            one.event = None
        if one.event is not None and gets_through in ("event", "both"):
            self.log.late.append(one.event)
        if one.mark_kept_s is not None and gets_through in ("mark", "both"):
            self.log.late.append(self._mark(one.connection_id, one.mark_kept_s))
        one.end = ConnectionLost(connection_id=one.connection_id, reason="over")
        self._tell_kept(one)
        if one.farewell_s is None:
            self._kafka_has_end(one)

    def _tell_kept(self, one: Connecting) -> None:
        """Does what `WireConnection._tell_lost` does."""
        if one.told is not None and (one.answer is not None or not one.claim) and not one.is_bridged:
            self._say_farewell(one, one.expiry_s)

    def _say_farewell(self, one: Connecting, kept_s: int) -> None:
        """Does what `Handshake.ending_mark` does."""
        if one.expiry_s:
            one.farewell_s = kept_s
        elif one.has_marked and one.answer is None:
            one.farewell_s = NOTHING_KEPT

    @precondition(lambda self: self.log.late)
    @rule(number=st.integers(0, 5))
    def a_late_record_gets_into_the_log(self, number: int) -> None:
        record = self.log.late.pop(number % len(self.log.late))
        if isinstance(record, Mark):
            self.log.append(record)
        else:
            self._append_connect(record)
            self.log.events.append(ConnectionLost(connection_id=record.connection_id, reason="nobody has it"))

    # --- the engine -----------------------------------------------------------------------------------------------------------

    @rule()
    def a_backend_sends(self) -> None:
        name = f"m{len(self.submitted)}"
        self.submitted.add(name)
        message = Message(message_id=name, topic="t", payload=b"", accepted_ms=self.now_ms)
        self.log.events.append(MessageSubmitted(message=message, explicit_id=True))

    @rule(seconds=st.sampled_from([1, SURELY_KEPT_S, KEPT_S]))
    def time_passes(self, seconds: int) -> None:
        self.now_ms += seconds * 1_000

    @rule(count=st.integers(0, 4))
    def the_engine_executes_a_micro_batch(self, count: int) -> None:
        self._output_arrives()
        events = [self.log.events.popleft() for _ in range(min(count, len(self.log.events)))]
        deadline_ms = self.session.next_deadline_ms()
        if not events and (deadline_ms is None or deadline_ms > self.engine_ms):
            return
        before = {one.connection_id: one for one in self.known.values()}
        for event in events or [DeadlineReached()]:  # one by one, so that each refusal is seen with what it has refused
            established = self.session.established
            due_ms = self.session.next_deadline_ms()
            commands = self._handle([event])
            if isinstance(event, ClientConnected):
                is_due = due_ms is not None and due_ms <= self.engine_ms
                self._check(event, commands, before[event.connection_id], established, is_due=is_due)

    def _handle(self, events: list[Event]) -> tuple[Command, ...]:
        with patch("state.session.has_expired", self._has_expired):
            commands = self.session.handle_all(events, now_ms=self.engine_ms)
        if not self.kept_rules.resumed_sessions_mark_themselves:
            resumed = {c.connection_id for c in commands if isinstance(c, AcceptConnection) and c.session_present}
            commands = tuple(c for c in commands if not (isinstance(c, MarkSession) and c.connection_id in resumed))
        self.session = decode_session(encode_session(self.session), client_id=CLIENT, settings=SETTINGS)
        self.output += commands
        for command in commands:
            if isinstance(command, SendReceipt):
                assert command.receipt.message_id not in self.receipts
                self.receipts[command.receipt.message_id] = command.receipt.outcome
            elif isinstance(command, RecordTransition) and command.transition is Transition.SESSION_ENDED:
                self._device_forgets()
        return commands

    def _has_expired(self, claimed: ExpiredSession, **session: Any) -> bool:
        if not self.kept_rules.later_sessions_stay:
            session["started_by"] = 0
        if not self.kept_rules.unanswered_connections_count_for_nothing:
            return claimed.connection_id == session["newest_connection_id"] and has_expired(claimed, **session)
        return has_expired(claimed, **session)

    @property
    def engine_ms(self) -> int:
        return self.now_ms - self.engine_behind_ms

    def the_engine_reads_everything(self) -> None:
        """A micro-batch of an engine that keeps pace."""
        self._output_arrives()
        events = list(self.log.events) or [DeadlineReached()]
        self.log.events.clear()
        for command in self._handle(events):
            refused = isinstance(command, CloseConnection) and command.reason_code == ReasonCode.SERVER_BUSY
            assert not refused, "a good device is refused"
        self._output_arrives()

    def _check(
        self, event: ClientConnected, commands: tuple[Command, ...], one: Connecting, established: bool, *, is_due: bool
    ) -> None:
        """is_due: time alone would have ended something."""
        accepted = [c for c in commands if isinstance(c, AcceptConnection)]
        refused = [c for c in commands if isinstance(c, CloseConnection) and c.connection_id == event.connection_id]
        assert len(accepted) + len(refused) <= 1
        if accepted:
            assert not event.claim or accepted[0].session_present is (event.claim == Claim.RESUMED)
            if event.expired is not None and any(isinstance(c, RecordTransition) and c.detail == EXPIRED for c in commands):
                self._check_expired(event.expired, one)
            self.accepted = (self.accepted if accepted[0].session_present else set()) | {event.connection_id}
        if not refused:
            return
        ended = [c for c in commands if isinstance(c, RecordTransition) and c.transition is Transition.SESSION_ENDED]
        if not ended:
            assert is_due or not [c for c in commands if isinstance(c, SendReceipt)]
            assert self.session.established is established
        if established and not ended and event.claim == Claim.NEW and not refused[0].newest_connection_id:
            assert not one.acknowledged & self.accepted, "its device has lost a state that counts"

    def _check_expired(self, expired: ExpiredSession, one: Connecting) -> None:
        """The session that was there has ended by a claim."""
        self.claimed_expired += 1
        last = self.known[expired.connection_id]
        assert last.over_ms is not None, "its connection is there"
        assert one.logged_ms >= last.over_ms + 1_000 * last.kept_s, "it lives"
        assert expired.connection_id >= min(self.accepted), "it has begun later"
        assert max(one.acknowledged & self.accepted, default=0) <= expired.connection_id, "its device has resumed it"

    def _output_arrives(self) -> None:
        for command in self.output:
            match command:
                case AcceptConnection():
                    one = self.known[command.connection_id]
                    if one.told is not None and not one.is_over:
                        assert one.told is command.session_present
                    if not one.is_over:
                        self._accept(one, command)
                case CloseConnection():
                    one = self.known[command.connection_id]
                    if not one.is_over:
                        one.is_over = one.is_abandoned = True
                        self.log.events.append(ConnectionLost(connection_id=one.connection_id, reason="the session closed it"))
                        if command.reason_code != ReasonCode.SESSION_TAKEN_OVER:
                            self._tell_kept(one)
                case MarkSession():
                    self.log.marks.append(Mark(command.connection_id))
                case EndSessionMark():
                    self.log.marks.append(Mark(command.connection_id, is_end=True))
                case AnnounceSubscriptions():
                    written = SubscriptionList(
                        connection_id=command.connection_id, version=command.version, subscriptions=command.subscriptions
                    )
                    self.lists.replace(CLIENT, written)
                case EndSubscriptions():
                    self.lists.end(CLIENT, command.connection_id)
        self.output.clear()

    def _accept(self, one: Connecting, command: AcceptConnection) -> None:
        one.answer = command.session_present
        self._answer(one)
        if not one.version:
            one.filters = command.subscriptions or ()
        if not one.is_abandoned:
            self.promised |= one.unacknowledged
        one.unacknowledged.clear()
        if one.has_marked and not command.session_expiry_interval_s:
            self.log.marks.append(Mark(one.connection_id, is_end=True))

    @invariant()
    def an_acknowledged_subscription_is_in_the_list(self) -> None:
        entry = self.lists.get(CLIENT)
        assert self.promised <= set(() if entry is None else entry.subscriptions)

    def teardown(self) -> None:
        """A good device comes again, until it has a connection. It reads the truth, and nothing is lost."""
        for one in self.open:
            one.is_over = True
            self.log.events.append(ConnectionLost(connection_id=one.connection_id, reason="over"))
        self.log.late.clear()
        self.kafka_has_all_ends()
        self.log.events += self.late_ends
        self.the_engine_executes_a_micro_batch(len(self.log.events))
        for _ in range(3):
            self._output_arrives()
            while min(self.read) < len(self.log.marks):
                self.a_table_reads(self.read.index(min(self.read)), 1)
            self.the_device_connects(0, clean=False, expiry_s=KEPT_S)
            one = self.known[len(self.known)]
            self.a_gateway_asks_its_table(gives_up=False)
            while one.has_records:
                self.kafka_has_a_record(0, mark_first=False)
            was_there = self.session.established
            self.the_engine_executes_a_micro_batch(len(self.log.events))
            self._output_arrives()
            if one.answer is not None:
                assert one.told is one.answer is (was_there and one.expired is None)
                break
            self.the_engine_executes_a_micro_batch(len(self.log.events))
        else:
            raise AssertionError("a good device is refused again and again")
        held = {delivery.message.message_id for delivery in self.session.outbound.queue}
        held |= {entry.delivery.message.message_id for entry in self.session.outbound.window}
        assert held | set(self.receipts) == self.submitted
        assert not held & set(self.receipts)


TestClaims = ClaimsModel.TestCase

HISTORIES = 8
"""In each example: a history takes a millisecond or two, and few of them are long enough to break a rule."""


@given(seed=st.integers(0, 2**32))
@pytest.mark.promise("claims")
def test_what_connack_says_is_true_or_the_connection_ends(seed: int) -> None:
    for number in range(HISTORIES):
        _play(random.Random(seed + number))


def _play(chance: random.Random, rules: Rules = Rules()) -> None:
    """Plays a history in which devices come often enough to meet what they have left behind. Many sessions are brief."""
    model = ClaimsModel(
        rules, clocks_ms=(chance.randint(-400, 400), chance.randint(-400, 400)), engine_behind_ms=chance.choice([0, 3_000])
    )
    is_brief = chance.random() < 0.6
    intervals_s = [5, 5, 5, 5, KEPT_S] if is_brief else [0, 5, 5, SURELY_KEPT_S - 1, KEPT_S, KEPT_S]
    pauses_s = [6, 6, 6, 1] if is_brief else [1, 5, 6, SURELY_KEPT_S, KEPT_S]
    clean_starts = 0.05 if is_brief else 0.2
    for _ in range(60):
        kind, gateway, number = chance.random(), chance.randint(0, 1), chance.randint(0, 5)
        if kind < 0.12:
            gateway = BRIDGE if chance.random() < 0.05 else gateway
            model.the_device_connects(gateway, chance.random() < clean_starts, chance.choice(intervals_s))
        elif kind < 0.24:
            model.a_table_reads(gateway, number)
        elif kind < 0.25 and model.read[0] == len(model.log.marks):
            model.a_table_is_read_anew_after_compaction(gateway)
        elif kind < 0.45:
            if any(one.claim is None for one in model.open):
                model.a_gateway_asks_its_table(chance.random() < 0.2)
        elif kind < 0.70:
            if any(one.has_records for one in model.open):
                model.kafka_has_a_record(number, chance.random() < 0.5)
        elif kind < 0.76:
            if model.open:
                model.a_gateway_lets_go(number, chance.choice(["", "event", "mark", "both"]), chance.random() < 0.5)
        elif kind < 0.78:
            if model.log.late:
                model.a_late_record_gets_into_the_log(number)
        elif kind < 0.80:
            if any(one.is_leaving for one in model.known.values()):
                if chance.random() < 0.9:
                    model.kafka_has_the_end_of_a_connection(chance.random() < 0.5)
                else:
                    model.a_gateway_dies_with_the_end_of_a_connection(chance.random() < 0.5, chance.random() < 0.5)
        elif kind < 0.805:
            if model.late_ends:
                model.a_lease_passes()
        elif kind < 0.83:
            if model.current is not None:
                model.the_device_disconnects(chance.choice([None, None, 0, 5, KEPT_S]))
        elif kind < 0.845:
            if model.current is not None and model.current.is_served and not model.current.is_bridged:
                model.the_device_subscribes()
        elif kind < 0.86:
            model.a_backend_sends()
        elif kind < 0.89:
            model.time_passes(chance.choice(pauses_s))
        else:
            model.the_engine_executes_a_micro_batch(number)
        model.an_acknowledged_subscription_is_in_the_list()
    model.teardown()


@given(seed=st.integers(0, 2**32))
def test_a_session_that_ends_by_a_claim_has_expired(seed: int) -> None:
    for number in range(HISTORIES):
        _play_returns(random.Random(seed + number))


def _play_returns(chance: random.Random, rules: Rules = Rules()) -> None:
    """A device leaves a session, and comes back when it may have expired. What it has left behind gets into the log in any order,
    or never."""
    model = ClaimsModel(
        rules, clocks_ms=(chance.randint(-400, 400), chance.randint(-400, 400)), engine_behind_ms=chance.choice([0, 3_000])
    )
    for _ in range(6):
        gateway = BRIDGE if chance.random() < 0.1 else chance.randint(0, 1)
        model.the_device_connects(gateway, clean=chance.random() < 0.1, expiry_s=chance.choice([5, 5, KEPT_S]))
        one = model.known[len(model.known)]
        for _ in range(chance.randint(3, 12)):
            _take_a_step(model, one, chance)
        if model.current is not None and chance.random() < 0.7:
            model.the_device_disconnects(chance.choice([None, None, 5]))
        elif not one.is_over and chance.random() < 0.7:
            number = model.open.index(one)
            model.a_gateway_lets_go(number, chance.choice(["", "event", "mark"]), chance.random() < 0.5)
        if any(other.is_leaving for other in model.known.values()) and chance.random() < 0.7:
            if chance.random() < 0.5:
                model.kafka_has_the_end_of_a_connection(chance.random() < 0.5)
            else:
                model.a_gateway_dies_with_the_end_of_a_connection(chance.random() < 0.5, chance.random() < 0.8)
        model.now_ms += chance.choice([0, 0, 4_000, 6_000])
    model.teardown()


def _take_a_step(model: ClaimsModel, one: Connecting, chance: random.Random) -> None:
    kind = chance.random()
    if kind < 0.25:
        model.a_table_reads(chance.randint(0, 1), 5)
    elif kind < 0.5:
        if one.claim is None:
            model.a_table_reads(one.gateway, 5)
            model.a_gateway_asks_its_table(gives_up=False)
    elif kind < 0.8:
        if one.has_records and not one.is_over:
            model.kafka_has_a_record(len([each for each in model.open if each.has_records]) - 1, chance.random() < 0.5)
    elif kind < 0.85:
        while model.read[0] < len(model.log.marks):
            model.a_table_reads(0, 1)
        model.a_table_is_read_anew_after_compaction(one.gateway % BRIDGE)
    elif kind < 0.88:
        model.a_backend_sends()
    elif kind < 0.93:
        model.the_engine_executes_a_micro_batch(chance.randint(1, 4))
    model.an_acknowledged_subscription_is_in_the_list()


@given(seed=st.integers(0, 2**32))
@pytest.mark.promise("claims")
def test_without_faults_no_connect_is_refused(seed: int) -> None:
    for number in range(HISTORIES):
        _play_without_faults(random.Random(seed + number), Rules())


def _play_without_faults(chance: random.Random, rules: Rules) -> None:
    """The device waits for each CONNACK, and comes back at once, later, or when its session may be about to end."""
    model = ClaimsModel(
        rules,
        has_faults=False,
        clocks_ms=(chance.randint(-200, 200), chance.randint(-200, 200)),
        engine_behind_ms=chance.choice([0, 3_000]),
    )
    for _ in range(8):
        expiry_s = chance.choice([0, 0, 5, SURELY_KEPT_S, KEPT_S])
        gateway = int(chance.random() < 0.2)
        if model.known and model.known[len(model.known)].gateway != gateway:
            model.kafka_has_all_ends()
        model.the_device_connects(gateway, chance.random() < 0.2, expiry_s)
        one = model.known[len(model.known)]
        since_batch_ms = waits_ms = 0
        while one.told is None or chance.random() < 0.5:
            model.now_ms += 20
            since_batch_ms += 20
            waits_ms += 20 * (one.claim is not None)
            kind = chance.random()
            if waits_ms > 160 and one.has_records:
                model.kafka_has_a_record(0, chance.random() < 0.5)
            elif kind < 0.1 or since_batch_ms > 600:
                model.the_engine_reads_everything()
                since_batch_ms = 0
            elif kind < 0.4:
                model.a_table_reads(chance.randint(0, 1), chance.randint(1, 5))
            elif kind < 0.6 and one.claim is None:
                model.a_gateway_asks_its_table(gives_up=False)
            elif kind < 0.9 and one.has_records:
                model.kafka_has_a_record(0, chance.random() < 0.5)
            elif kind < 0.95 and model.current is not None and one.is_served:
                model.the_device_subscribes()
            elif any(other.is_leaving for other in model.known.values()):
                model.kafka_has_the_end_of_a_connection(chance.random() < 0.5)
            model.an_acknowledged_subscription_is_in_the_list()
        if chance.random() < 0.8:
            model.the_device_disconnects(chance.choice([None, None, 0, 5]))
        if chance.random() < 0.5:
            model.the_engine_reads_everything()
            wait_ms = chance.choice([1_000, 3_000, 4_500, 5_000, 5_800, 60_000, 1_000 * KEPT_S])
            _let_time_pass(model, wait_ms, has_engine=chance.random() < 0.5)


def _let_time_pass(model: ClaimsModel, ms: int, *, has_engine: bool) -> None:
    """has_engine: it executes a micro-batch shortly before the end."""
    model.kafka_has_all_ends()
    end_ms = model.now_ms + ms
    if has_engine:
        model.now_ms = end_ms - 500
        model.the_engine_reads_everything()
    model.now_ms = end_ms


@pytest.mark.parametrize("name", [each.name for each in fields(Rules)])
def test_each_rule_of_the_gateways_is_needed(name: str) -> None:
    rules = replace(Rules(), **{name: False})
    with pytest.raises(AssertionError):  # noqa: PT012 - some history fails
        for seed in range(3_000):
            _play_without_faults(random.Random(seed), rules)
            _play(random.Random(seed), rules)
            _play_returns(random.Random(seed), rules)
