"""Two gateways, their tables, the log and a session: what CONNACK says before the session has read the CONNECT.

The log has two topics: the session reads events in micro-batches, and the table of each gateway reads marks at its own pace. A
gateway reads a CONNECT, waits until its table is as far as the marks were then (sinks/routing/session_lookups.py) or gives that
up, appends CONNECT and mark, and sends CONNACK when it has what that waits for. Appends may take long, fail, or get into the log
although they have failed. Gateways die with what they hold, and start again on a compacted log. Session and table are the real
ones.

The device gives a connection up before it begins the next one. What its gateways hold of it may still be on its way.

 * A CONNACK that precedes the session's answer says the truth, or the session refuses the connection.
 * Who is told that there is no session had none with a CONNACK before: a device drops its half of QoS 2 exchanges then
   [MQTT-3.2.2-3], and would get a message twice.
 * A refusal ends no session, and no message of one.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sinks.routing.session_table import SessionTable
from state.commands import (
    AcceptConnection,
    CloseConnection,
    Command,
    EndSessionMark,
    MarkSession,
    RecordTransition,
    SendReceipt,
    Transition,
)
from state.events import Claim, ClientConnected, ConnectionLost, DeadlineReached, Event, MessageSubmitted
from state.model import Message, Outcome
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings

pytestmark = pytest.mark.no_cover

CLIENT, KEY = "c", b"c"
SETTINGS = SessionSettings(routing=True)
KEPT_S = 3_600
SURELY_KEPT_S = 60

Mark: TypeAlias = MarkSession | EndSessionMark


@dataclass(eq=False)
class Connecting:
    """A CONNECT at a gateway.

    Attributes:
        marks_end: Where the marks ended when it was read.
        acknowledged: Connections of which the device had CONNACK then.
        claim: None until the table was asked.
        event, mark: Until Kafka has confirmed them.
        answer: Session Present of the session's answer, once it has come.
        told: What CONNACK has said to the device; None = it has none.
    """

    connection_id: int
    gateway: int
    clean: bool
    expiry_s: int
    marks_end: int
    acknowledged: frozenset[int]
    claim: Claim | None = None
    event: ClientConnected | None = None
    mark: MarkSession | None = None
    answer: bool | None = None
    told: bool | None = None
    is_abandoned: bool = False
    is_over: bool = False


@dataclass(eq=False)
class Log:
    events: deque[Event] = field(default_factory=deque)
    marks: list[Mark] = field(default_factory=list)
    late: list[ClientConnected | MarkSession] = field(default_factory=list)
    """Records that have failed for their gateway, and may still get into the log."""

    def append(self, record: ClientConnected | MarkSession) -> None:
        if isinstance(record, ClientConnected):
            self.events.append(record)
        else:
            self.marks.append(record)


class ClaimsModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.session = Session(client_id=CLIENT, settings=SETTINGS)
        self.log = Log()
        self.tables = [SessionTable(), SessionTable()]
        self.read = [0, 0]
        self.known: dict[int, Connecting] = {}
        self.output: list[Command] = []
        """Commands that the engine has decided, and nobody has read."""
        self.submitted: set[str] = set()
        self.receipts: dict[str, Outcome] = {}
        self.accepted: set[int] = set()
        """Connections of the present session."""

    # --- the device and its gateways ----------------------------------------------------------------------------------------

    @property
    def open(self) -> list[Connecting]:
        return [connecting for connecting in self.known.values() if not connecting.is_over]

    @rule(
        gateway=st.integers(0, 1),
        clean=st.sampled_from([False, False, False, True]),
        expiry_s=st.sampled_from([0, SURELY_KEPT_S - 1, KEPT_S, KEPT_S, KEPT_S]),
    )
    def the_device_connects(self, gateway: int, clean: bool, expiry_s: int) -> None:
        for connecting in self.known.values():
            connecting.is_abandoned = True
        acknowledged = frozenset(one.connection_id for one in self.known.values() if one.told is not None)
        connection_id = len(self.known) + 1
        self.known[connection_id] = Connecting(connection_id, gateway, clean, expiry_s, len(self.log.marks), acknowledged)

    @rule(gateway=st.integers(0, 1), count=st.integers(1, 5))
    def a_table_reads(self, gateway: int, count: int) -> None:
        for record in self.log.marks[self.read[gateway] : self.read[gateway] + count]:
            self.read[gateway] += 1
            self._read(gateway, record)
            newest = self.tables[gateway].get(KEY)
            if gateway == 0 and isinstance(record, EndSessionMark) and newest is not None:
                self.log.marks.append(MarkSession(connection_id=newest))  # Matcher.repeated

    def _read(self, gateway: int, record: Mark) -> None:
        table = self.tables[gateway]
        (table.end if isinstance(record, EndSessionMark) else table.mark)(KEY, record.connection_id)

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
            if one.claim is None and (gives_up or one.clean or self.read[one.gateway] >= one.marks_end):
                self._tell_connected(one, gives_up)
                return

    def _tell_connected(self, one: Connecting, gives_up: bool) -> None:
        """Does what sinks/mqtt/connection/handshake.py does."""
        has = self.tables[one.gateway].get(KEY) is not None
        one.claim = Claim.NONE
        if not one.clean and not gives_up:
            one.claim = Claim.NEW if not has else Claim.RESUMED if one.expiry_s >= SURELY_KEPT_S else Claim.NONE
        one.mark = MarkSession(connection_id=one.connection_id) if one.expiry_s else None
        one.event = ClientConnected(
            connection_id=one.connection_id,
            commands_partition=0,
            protocol_version=5,
            clean_start=one.clean,
            session_expiry_interval_s=one.expiry_s,
            claim=one.claim,
        )

    @precondition(lambda self: any(one.event or one.mark for one in self.open))
    @rule(number=st.integers(0, 5), mark_first=st.booleans())
    def kafka_has_a_record(self, number: int, mark_first: bool) -> None:
        waiting = [one for one in self.open if one.event or one.mark]
        one = waiting[number % len(waiting)]
        if one.mark is not None and (one.event is None or mark_first):
            self.log.append(one.mark)
            one.mark = None
        elif one.event is not None:
            self.log.append(one.event)
            one.event = None
        self._answer(one)

    def _answer(self, one: Connecting) -> None:
        """CONNACK, when it has what it waits for."""
        if one.is_over or one.told is not None or one.claim is None or one.event is not None or one.mark is not None:
            return
        early = one.clean or one.claim is not Claim.NONE
        if not one.is_abandoned and (early or one.answer is not None):
            one.told = one.claim is Claim.RESUMED if early else one.answer

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, 5), gets_through=st.sampled_from(["", "event", "mark", "both"]), tells=st.booleans())
    def a_gateway_lets_go(self, number: int, gets_through: str, tells: bool) -> None:
        """An append fails, the device is gone, or the gateway dies. Then the engine hears of it by the lease."""
        one = self.open[number % len(self.open)]
        one.is_over = True
        if one.event is not None and tells:  # the end is behind the CONNECT, if that gets into the log
            self.log.append(one.event)
            one.event = None
        if one.event is not None and gets_through in ("event", "both"):
            self.log.late.append(one.event)
        if one.mark is not None and gets_through in ("mark", "both"):
            self.log.late.append(one.mark)
        self.log.events.append(ConnectionLost(connection_id=one.connection_id, reason="over"))

    @precondition(lambda self: self.log.late)
    @rule(number=st.integers(0, 5))
    def a_late_record_gets_into_the_log(self, number: int) -> None:
        record = self.log.late.pop(number % len(self.log.late))
        self.log.append(record)
        if isinstance(record, ClientConnected):
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
        if not events and (deadline_ms is None or deadline_ms > self.now_ms):
            return
        before = {one.connection_id: one for one in self.known.values()}
        for event in events or [DeadlineReached()]:  # one by one, so that each refusal is seen with what it has refused
            established = self.session.established
            commands = self.session.handle(event, now_ms=self.now_ms)
            self.session = decode_session(encode_session(self.session), client_id=CLIENT, settings=SETTINGS)
            if isinstance(event, ClientConnected):
                self._check(event, commands, before[event.connection_id], established)
            self.output += commands
            for command in commands:
                if isinstance(command, SendReceipt):
                    assert command.receipt.message_id not in self.receipts
                    self.receipts[command.receipt.message_id] = command.receipt.outcome

    def _check(self, event: ClientConnected, commands: tuple[Command, ...], one: Connecting, established: bool) -> None:
        accepted = [c for c in commands if isinstance(c, AcceptConnection)]
        refused = [c for c in commands if isinstance(c, CloseConnection) and c.connection_id == event.connection_id]
        assert len(accepted) + len(refused) <= 1
        if accepted:
            assert not event.claim or accepted[0].session_present is (event.claim == Claim.RESUMED)
            self.accepted = (self.accepted if accepted[0].session_present else set()) | {event.connection_id}
        if not refused:
            return
        ended = [c for c in commands if isinstance(c, RecordTransition) and c.transition is Transition.SESSION_ENDED]
        if not ended:
            assert not [c for c in commands if isinstance(c, SendReceipt)]
            assert self.session.established is established
        if established and not ended and event.claim == Claim.NEW and not refused[0].newest_connection_id:
            assert not one.acknowledged & self.accepted, "its device has lost a state that counts"

    def _output_arrives(self) -> None:
        for command in self.output:
            match command:
                case AcceptConnection():
                    one = self.known[command.connection_id]
                    if one.told is not None and not one.is_over:
                        assert one.told is command.session_present
                    one.answer = command.session_present
                    self._answer(one)
                case CloseConnection():
                    one = self.known[command.connection_id]
                    if not one.is_over:
                        one.is_over = one.is_abandoned = True
                        self.log.events.append(ConnectionLost(connection_id=one.connection_id, reason="the session closed it"))
                case MarkSession() | EndSessionMark():
                    self.log.marks.append(command)
        self.output.clear()

    def teardown(self) -> None:
        """A good device comes again, until it has a connection. It reads the truth, and nothing is lost."""
        for one in self.open:
            one.is_over = True
            self.log.events.append(ConnectionLost(connection_id=one.connection_id, reason="over"))
        self.log.late.clear()
        self.the_engine_executes_a_micro_batch(len(self.log.events))
        for _ in range(3):
            self._output_arrives()
            while min(self.read) < len(self.log.marks):
                self.a_table_reads(self.read.index(min(self.read)), 1)
            self.the_device_connects(0, clean=False, expiry_s=KEPT_S)
            one = self.known[len(self.known)]
            self.a_gateway_asks_its_table(gives_up=False)
            while one.event or one.mark:
                self.kafka_has_a_record(0, mark_first=False)
            was_there = self.session.established
            self.the_engine_executes_a_micro_batch(len(self.log.events))
            self._output_arrives()
            if one.answer is not None:
                assert one.told is one.answer is was_there
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
def test_what_connack_says_is_true_or_the_connection_ends(seed: int) -> None:
    for number in range(HISTORIES):
        _play(random.Random(seed + number))


def _play(chance: random.Random) -> None:
    """Plays a history in which devices come often enough to meet what they have left behind."""
    model = ClaimsModel()
    for _ in range(60):
        kind, gateway, number = chance.random(), chance.randint(0, 1), chance.randint(0, 5)
        if kind < 0.12:
            model.the_device_connects(gateway, chance.random() < 0.2, chance.choice([0, SURELY_KEPT_S - 1, *[KEPT_S] * 3]))
        elif kind < 0.24:
            model.a_table_reads(gateway, number)
        elif kind < 0.25 and model.read[0] == len(model.log.marks):
            model.a_table_is_read_anew_after_compaction(gateway)
        elif kind < 0.45:
            if any(one.claim is None for one in model.open):
                model.a_gateway_asks_its_table(chance.random() < 0.2)
        elif kind < 0.70:
            if any(one.event or one.mark for one in model.open):
                model.kafka_has_a_record(number, chance.random() < 0.5)
        elif kind < 0.76:
            if model.open:
                model.a_gateway_lets_go(number, chance.choice(["", "event", "mark", "both"]), chance.random() < 0.5)
        elif kind < 0.80:
            if model.log.late:
                model.a_late_record_gets_into_the_log(number)
        elif kind < 0.84:
            model.a_backend_sends()
        elif kind < 0.87:
            model.time_passes(chance.choice([1, SURELY_KEPT_S, KEPT_S]))
        else:
            model.the_engine_executes_a_micro_batch(number)
    model.teardown()
