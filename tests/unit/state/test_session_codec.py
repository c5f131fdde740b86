"""Persisted sessions of every version stay readable. The round trip after every step is in tests/properties.

A fixture is made once and never again: `python -m tests.unit.state.test_session_codec` writes it if it is missing.
"""

from pathlib import Path

import msgspec
import pytest

from state.commands import AcceptConnection, EndSessionMark
from state.connection import PathState, SessionFastPath
from state.errors import UnreadableRecord
from state.events import Capability
from state.inbound.awaiting_rel import HandOver
from state.inbound.subscriptions import Subscriptions
from state.model import NO_PROPERTIES, Outcome, Position, PublishProperties, QoS, Subscription, Will
from state.outbound.deduplication import message_digest
from state.outbound.routing.routed import WAIT_MS
from state.outbound.send_rate import SendRate
from state.records.routing import SourceKind, source_number
from state.session import Session
from state.session_codec import UnscheduledSessionV1, connection_of, decode_session, encode_session
from state.settings import RetryMqtt5, SessionSettings
from state.transitions import AbandonedPhase, OutboundPhase
from tests.scenarios.scenario import CLIENT, START_MS, UPLINK, Scenario, message, will

BATCHES = source_number(SourceKind.UPLINK_BATCH, 0, "uplink")
FIXTURE_V1 = Path(__file__).parent / "fixtures" / "session_v1.bin"
FIXTURE_V1_REFUSALS = FIXTURE_V1.with_name("session_v1_refusals.bin")
"""Version 1 with `timeouts` of a window entry and `last_refusal` of a delivery at the end of their records."""
FIXTURE_V1_OWED = FIXTURE_V1.with_name("session_v1_owed.bin")
"""… and with `qos` of a delivery, `receive_maximum` of a connection and `owed` of a session."""

FIXTURE_V1_LEASES = FIXTURE_V1.with_name("session_v1_leases.bin")
"""Version 1 with `lease_id` of a connection and `newest_connection_id` of a session at the end of their records."""


FIXTURE_V1_REPEATED = FIXTURE_V1.with_name("session_v1_repeated.bin")
"""Version 1 with the repeated publications of a session at the end of its record."""

FIXTURE_V1_FAST_PATH = FIXTURE_V1.with_name("session_v1_fast_path.bin")
"""Version 1 with the fast path: that of a connection, the positions of a session and its messages, first_connection_id."""

FIXTURE_V1_UNHEARD = FIXTURE_V1.with_name("session_v1_unheard.bin")
"""Version 1 with `close_unconfirmed` of a session at the end of its record."""

FIXTURE_V1_CRASHES = FIXTURE_V1.with_name("session_v1_crashes.bin")
"""Version 1 with `crashes` of a delivery and `given_back_by` of a window entry at the end of their records."""


FIXTURE_V1_OVERDUE = FIXTURE_V1.with_name("session_v1_overdue.bin")
"""Version 1 with `overdue` of a window entry at the end of its record."""

FIXTURE_V1_ROUTING = FIXTURE_V1.with_name("session_v1_routing.bin")
"""Version 1 with `routing` of a session at the end of its record."""


FIXTURE_V1_SCHEDULE = FIXTURE_V1.with_name("session_v1_schedule.bin")
"""Version 1 with `schedule` of a session at the end of its record."""


def connected_session() -> Session:
    """A session with something in every field, as the scenario language tells it."""
    s = Scenario(max_inflight=3, max_awaiting_rel=0)
    s.connect(version=5, maximum_packet_size_bytes=10_000, will=will("gone", delay_s=5, retain=True, expiry_interval_s=9))
    s.subscribe("x/#", 2, no_local=True, retain_as_published=True, retain_handling=1)
    s.publish(7, "abandoned").after(300).publish(8, "not released")
    s.submit("done", explicit_id=True).puback(1)
    s.submit("half", qos=2).pubrec(2)
    s.submit("whole", qos=2, retain=True, properties=PublishProperties(content_type="c", user_properties=(("k", "v"),)))
    s.submit("refused", priority=9).puback(4, reason_code=0x97)
    s.submit("waiting", expires_at_ms=s.now_ms + 60_000, expiration_ms=60_000, headers=(("h", b"\xff"),))
    s.submit("low", priority=1)
    return s.session


def offline_session() -> Session:
    s = Scenario().connect(expiry_s=100, will=Will(topic="status", payload=b"gone", delay_s=50)).submit("a").lose_connection()
    return s.session


def owing_session() -> Session:
    """Answers are owed of all three kinds, and a message waits that a subscription has capped."""
    s = Scenario(retry_mqtt5=RetryMqtt5.TIMER, delivery_limit=1).connect(version=5, receive_maximum=4).subscribe("low/#", 1)
    s.submit("a").submit("b", "c", qos=2).after(30).pubrec(3).submit("d").submit("e", qos=2, topic="low/1")
    return s.session


def sessions_of_today() -> tuple[Session, ...]:
    return connected_session(), offline_session(), owing_session()


def leased_session() -> Session:
    """The connection that began the session has ended, another one is there, and an older one was refused."""
    s = Scenario().connect(connection_id=1_000, lease_id="lease-0").lose_connection()
    return s.connect(connection_id=2_000, lease_id="lease-1").connect(connection_id=7, lease_id="lease-2").session


def repeating_session() -> Session:
    """Returns a session with two publications that came with DUP=1. One of them is released."""
    return Scenario().connect().publish(5, "a", dup=True).publish(6, "b", dup=True).pubrel(5).session


def fast_session() -> Session:
    """The path closes, because the window is full; a message was adopted and not read."""
    s = Scenario(max_inflight=2).connect(capabilities=Capability.FAST_PATH)
    s.submit("a", at=Position(3, 7), explicit_id=True).fast_sent("b", 40_000, at=Position(3, 9), previous=7)
    return s.submit("c").session


def unheard_session() -> Session:
    """Returns a session that has closed its connection, while the gateway has not reported the end."""
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5, expiry_s=100).submit("a").after(30)
    return s.session


def crashed_session() -> Session:
    """Returns a session whose client has died on "a" twice; the second end is not reported yet."""
    s = Scenario().connect().submit("a", "b").lose_connection(unanswered=1)
    return s.connect().lose_connection().session


def overdue_session() -> Session:
    return Scenario().connect(version=5).submit("a").after(30).submit("b").session


def routed_session() -> Session:
    """Returns a session with marks of both kinds, a message for a connection that is not known, and a shared message."""
    s = Scenario(routing=True).connect().subscribe("t", 1, version=4)
    s.route("a", mark=5, entry=(1, 4), ids=(7,)).route("b", "c", mark=6, entry=(1, 4), source=BATCHES)
    s.route("early", mark=7, entry=(2, 1), at=Position(3, 7)).route("back", mark=8, entry=(1, 3), share="$share/g/t")
    return s.session


def scheduled_session() -> Session:
    """Returns a session with two messages that wait for their time, one that is cancelled behind a fence, and a rate."""
    s = Scenario(max_inflight=1).connect(capabilities=Capability.FAST_PATH).submit("a", at=Position(3, 7)).puback(1)
    s.submit("b", at=Position(3, 8)).submit("c", at=Position(3, 9)).cancel("c", at=Position(3, 10))
    for name, wait_ms in (("later", 2_000), ("sooner", 1_000)):
        s.submit(name, headers=(("deliver-at", b"%d" % (START_MS + wait_ms)),))
    s.session.outbound.rate = SendRate(5)
    s.session.outbound.rate.spend(START_MS)
    return s.session


def with_connections_of(session: Session, old: Session) -> Session:
    """Returns the session of an older version, which did not know the connections of its exchanges, with those of another one.

    Without the connection that first used a packet id every acknowledgement counts. Subscriptions stay encoded as they were read.
    """
    old.outbound.subscriptions = Subscriptions(msgspec.msgpack.encode(tuple(old.outbound.subscriptions)))
    for stored, entry in zip(old.outbound.window, session.outbound.window, strict=True):
        assert (stored.first_connection_id, stored.given_back_by) == (0, 0)
        stored.first_connection_id, stored.given_back_by = entry.first_connection_id, entry.given_back_by
    return old


def test_a_session_of_version_1_is_still_readable() -> None:
    settings = SessionSettings(max_inflight=3, max_awaiting_rel=0)
    first, second = FIXTURE_V1.read_bytes().split(b"\n--\n")
    session = decode_session(first, client_id=CLIENT, settings=settings)
    now_ms = START_MS + 300_000

    connection = session.connection
    assert connection is not None
    assert (connection.connection_id, connection.partition, connection.protocol_version) == (1, 3, 5)
    assert (connection.send_quota, connection.maximum_packet_size_bytes) == (3, 10_000)
    assert connection.will == will("gone", delay_s=5, retain=True, expiry_interval_s=9)
    assert connection.sequence == 7
    assert (session.established, session.started_by, session.offline_since_ms) == (True, 1, None)
    assert (session.session_expiry_interval_s, session.pending_will) == (3_600, None)

    outbound = session.outbound
    assert [(e.packet_id, e.phase, e.delivery.message.message_id, e.sent_ms) for e in outbound.window] == [
        (2, OutboundPhase.AWAITING_PUBCOMP, "half", now_ms),
        (3, OutboundPhase.AWAITING_PUBREC, "whole", now_ms),
    ]
    half, whole = outbound.window
    assert (half.timeouts, half.delivery.last_refusal) == (0, 0)  # unknown to the version that wrote the fixture
    assert half.delivery.message.payload == b""
    assert whole.delivery.message == message(
        "whole",
        qos=2,
        retain=True,
        accepted_ms=now_ms,
        properties=PublishProperties(content_type="c", user_properties=(("k", "v"),)),
    )
    assert [(d.message.message_id, d.message.priority, d.order, d.attempts, d.first_sent_ms) for d in outbound.queue] == [
        ("refused", 9, 4, 1, now_ms),
        ("low", 1, 6, 0, None),
        ("waiting", 0, 5, 0, None),
    ]
    waiting = list(outbound.queue)[-1].message
    assert (waiting.expires_at_ms, waiting.expiration_ms) == (now_ms + 60_000, 60_000)
    assert (waiting.headers, waiting.properties) == ((("h", b"\xff"),), NO_PROPERTIES)
    assert (outbound.packet_ids.last, outbound.next_order, outbound.window.limit) == (4, 6, 3)
    assert (outbound.quota_refusals, outbound.blocked_until_ms) == (1, now_ms + 1_000)
    assert list(outbound.subscriptions) == [
        Subscription(topic_filter="x/#", qos=QoS.EXACTLY_ONCE, no_local=True, retain_as_published=True, retain_handling=1)
    ]
    assert outbound.recent_ids.contains("done")
    awaiting = session.inbound.awaiting_rel
    assert {packet_id: entry.received_ms for packet_id, entry in awaiting.entries.items()} == {8: now_ms}
    assert list(awaiting.tombstones) == [7]

    offline = decode_session(second, client_id=CLIENT, settings=settings)
    assert offline.connection is None
    assert offline.offline_since_ms == START_MS
    pending = offline.pending_will
    assert pending is not None
    assert (pending.will.payload, pending.connection_id, pending.due_ms) == (b"gone", 1, START_MS + 50_000)


def test_a_session_of_version_1_goes_on() -> None:
    s = Scenario(max_inflight=3, max_awaiting_rel=0)
    s.session = decode_session(FIXTURE_V1.read_bytes().split(b"\n--\n")[0], client_id=CLIENT, settings=s.settings)
    s.connection_id, s.now_ms = 1, START_MS + 301_000
    s.publish(7, "abandoned", dup=True)
    assert s.uplink == []
    s.pubcomp(2).pubrec(3).pubcomp(3)
    assert s.outcomes == {"half": Outcome.DELIVERED, "whole": Outcome.DELIVERED}
    assert s.sees() == ["PUBLISH 5 refused", "PUBLISH 6 low", "PUBREL 3", "PUBLISH 7 waiting"]


def test_what_is_written_today_is_what_the_fixture_holds_or_more() -> None:
    """Fails when the persisted form changes: then follow the rules at the top of state/session_codec.py, and add a fixture."""
    settings = SessionSettings(max_inflight=3, max_awaiting_rel=0)
    for blob, session in zip(FIXTURE_V1_OWED.read_bytes().split(b"\n--\n"), sessions_of_today(), strict=True):
        old = decode_session(blob, client_id=CLIENT, settings=settings)
        assert encode_session(with_connections_of(session, old)) == encode_session(session)
    older = decode_session(FIXTURE_V1_FAST_PATH.read_bytes(), client_id=CLIENT, settings=SessionSettings(max_inflight=2))
    assert encode_session(older) == encode_session(fast_session())
    overdue = decode_session(FIXTURE_V1_OVERDUE.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert encode_session(overdue) == encode_session(overdue_session())
    routed = decode_session(FIXTURE_V1_ROUTING.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert encode_session(routed) == encode_session(routed_session())


def test_what_gateways_were_to_hand_on_is_kept() -> None:
    s = Scenario(routing=True).connect().accept(5, "a", since_ms=START_MS).after(300).accept(6, "b")
    blob = encode_session(s.session)
    session = decode_session(blob, client_id=CLIENT, settings=s.settings)
    assert session.inbound.awaiting_rel.hand_overs == {
        5: HandOver(connection_id=1, publication_id="d:1:1", since_ms=START_MS),
        6: HandOver(connection_id=1, publication_id="d:1:2", since_ms=s.now_ms),
    }
    assert encode_session(session) == blob
    scheduled = scheduled_session()
    scheduled.inbound = session.inbound
    again = decode_session(encode_session(scheduled), client_id=CLIENT, settings=s.settings)
    assert (len(again.inbound.awaiting_rel.hand_overs), len(again.outbound.scheduled.waiting)) == (2, 2)


def test_crashes_are_kept_and_a_session_from_before_has_none() -> None:
    session = decode_session(FIXTURE_V1_CRASHES.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert encode_session(session) == encode_session(crashed_session())
    assert [(entry.delivery.crashes, entry.given_back_by) for entry in session.outbound.window] == [(1, 2), (0, 2)]
    older = decode_session(FIXTURE_V1_FAST_PATH.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert [(entry.delivery.crashes, entry.given_back_by) for entry in older.outbound.window] == [(0, 0), (0, 0)]


def test_a_session_from_before_answers_were_owed_is_read_as_what_it_was() -> None:
    settings = SessionSettings(max_inflight=3, max_awaiting_rel=0)
    for blob, session in zip(
        FIXTURE_V1_REFUSALS.read_bytes().split(b"\n--\n"), (connected_session(), offline_session()), strict=True
    ):
        old = decode_session(blob, client_id=CLIENT, settings=settings)
        assert len(old.outbound.abandoned) == 0
        if old.connection is not None and session.connection is not None:
            assert old.connection.receive_maximum == old.connection.send_quota == 3, "it was not known: the least that it can be"
            old.connection.receive_maximum = session.connection.receive_maximum
        assert encode_session(with_connections_of(session, old)) == encode_session(session)


def test_what_is_owed_is_kept() -> None:
    session = decode_session(
        FIXTURE_V1_OWED.read_bytes().split(b"\n--\n")[2], client_id=CLIENT, settings=SessionSettings(delivery_limit=1)
    )
    abandoned = session.outbound.abandoned
    assert abandoned.phases == {
        1: AbandonedPhase.AWAITING_PUBACK,
        2: AbandonedPhase.AWAITING_PUBREC,
        3: AbandonedPhase.AWAITING_PUBCOMP,
    }
    assert abandoned.slots == {1, 2, 3}
    assert session.connection is not None
    assert (session.connection.receive_maximum, session.outbound.wire_quota(session.connection)) == (4, 1)
    (waiting,) = session.outbound.queue
    assert (waiting.message.message_id, waiting.message.qos, waiting.qos) == ("e", 2, 1)


def test_the_qos_of_an_older_stored_message_is_decided_when_read() -> None:
    record = msgspec.msgpack.decode(encode_session(owing_session())[1:])
    del record[12][0][6:]  # of the delivery in the queue: `qos`
    session = decode_session(b"\x01" + msgspec.msgpack.encode(record), client_id=CLIENT, settings=SessionSettings())
    assert [waiting.qos for waiting in session.outbound.queue] == [QoS.AT_LEAST_ONCE]


def test_place_in_the_schedule_and_refusals_of_a_message_are_kept() -> None:
    s = Scenario(retry_mqtt5=RetryMqtt5.TIMER).connect(version=5).submit("a").after(60).puback(1, reason_code=0x80)
    s.after(90)
    session = decode_session(encode_session(s.session), client_id=CLIENT, settings=s.settings)
    (entry,) = session.outbound.window
    assert (entry.timeouts, entry.delivery.last_refusal) == (3, 0x80)


def test_a_session_of_version_1_with_a_lease_is_still_readable() -> None:
    blob = FIXTURE_V1_LEASES.read_bytes()
    session = decode_session(blob, client_id=CLIENT, settings=SessionSettings())
    assert session.connection is not None
    assert (session.connection.connection_id, session.connection.lease_id) == (2_000, "lease-1")
    assert (session.started_by, session.newest_connection_id) == (1_000, 2_000)
    assert connection_of(blob) == (2_000, "lease-1")
    assert encode_session(session) == encode_session(leased_session())


def test_a_session_of_version_1_with_repetitions_is_readable() -> None:
    session = decode_session(FIXTURE_V1_REPEATED.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    awaiting = session.inbound.awaiting_rel
    assert ([packet_id for packet_id, _ in awaiting.repeated], list(awaiting.entries)) == ([5, 6], [6])
    assert set(awaiting.repeated.values()) == {START_MS}
    assert encode_session(session) == encode_session(repeating_session())
    older = decode_session(FIXTURE_V1_LEASES.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert older.inbound.awaiting_rel.repeated == {}


def test_the_fast_path_is_kept_and_a_session_from_before_has_none() -> None:
    session = decode_session(FIXTURE_V1_FAST_PATH.read_bytes(), client_id=CLIENT, settings=SessionSettings(max_inflight=2))
    assert session.connection is not None
    assert session.connection.fast_path == SessionFastPath(
        state=PathState.CLOSING, opened_after=Position(3, 7), adopted=9, since_grant=1, has_route=True
    )
    assert session.outbound.positions.handled == {3: 9}
    assert list(session.outbound.positions.unread) == [Position(3, 9)]
    assert session.outbound.packet_ids.last_fast == 40_000
    a, b = session.outbound.window
    assert (a.first_connection_id, a.delivery.position, a.delivery.fast_path) == (1, Position(3, 7), False)
    assert (b.first_connection_id, b.delivery.position, b.delivery.fast_path) == (1, None, True)
    older = decode_session(FIXTURE_V1_LEASES.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert older.connection is not None
    assert older.connection.fast_path is None
    assert (older.outbound.positions.latest, older.outbound.positions.unread) == (None, {})


def test_an_unheard_end_of_a_connection_is_kept() -> None:
    session = decode_session(FIXTURE_V1_UNHEARD.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert session.connection is None
    assert session.close_unconfirmed
    older = decode_session(FIXTURE_V1.read_bytes().split(b"\n--\n")[1], client_id=CLIENT, settings=SessionSettings())
    assert older.connection is None
    assert not older.close_unconfirmed


def test_an_overdue_acknowledgement_is_kept() -> None:
    session = decode_session(FIXTURE_V1_OVERDUE.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    assert [entry.overdue for entry in session.outbound.window] == [True, False]


def test_what_routing_needs_is_kept_and_a_session_from_before_has_none() -> None:
    session = decode_session(FIXTURE_V1_ROUTING.read_bytes(), client_id=CLIENT, settings=SessionSettings())
    routing = session.outbound.routing
    assert routing.list_id == (1, 4)
    assert list(routing.marks.newest.items()) == [(BATCHES, 6), (UPLINK, 8)], "the least recently used one is first"
    assert {source: list(digests) for source, digests in routing.marks.digests.items()} == {
        BATCHES: [message_digest("b"), message_digest("c")]
    }
    assert [(early.message.message_id, early.position, early.since_ms) for early in routing.early] == [
        ("early", Position(3, 7), START_MS)
    ]
    assert routing.kept_until_ms == START_MS + WAIT_MS

    before = decode_session(FIXTURE_V1_OVERDUE.read_bytes(), client_id=CLIENT, settings=SessionSettings()).outbound.routing
    assert (before.list_id, before.marks.newest, before.early, before.kept_until_ms) == ((1, 0), {}, [], None)


def test_a_session_without_routing_stores_nothing_for_it() -> None:
    s = Scenario().connect().subscribe("t", 1)
    assert msgspec.msgpack.decode(encode_session(s.session)[1:])[-1] is None


def test_what_scheduling_needs_is_kept() -> None:
    settings = SessionSettings(max_inflight=1, max_send_rate=5)
    session = decode_session(FIXTURE_V1_SCHEDULE.read_bytes(), client_id=CLIENT, settings=settings)
    outbound = session.outbound
    assert [waiting.message_id for waiting in outbound.scheduled] == ["sooner", "later"]
    assert list(outbound.cancels) == ["c"]
    assert outbound.rate is not None
    assert (outbound.rate.level, outbound.rate.at_ms) == (4_000, START_MS)
    assert encode_session(session) == FIXTURE_V1_SCHEDULE.read_bytes() == encode_session(scheduled_session())

    without = decode_session(FIXTURE_V1_SCHEDULE.read_bytes(), client_id=CLIENT, settings=SessionSettings()).outbound
    assert without.rate is None


def test_a_session_without_scheduling_has_the_bytes_of_one_before_it() -> None:
    s = Scenario(max_send_rate=5).connect().subscribe("t", 1)
    assert len(msgspec.msgpack.decode(encode_session(s.session)[1:])) == len(UnscheduledSessionV1.__struct_fields__)
    s.submit("a")
    assert msgspec.msgpack.decode(encode_session(s.session)[1:])[-1] == [[], [], [4_000, START_MS], None, [], 0]
    s = Scenario().submit("a", headers=(("deliver-at", b"%d" % (START_MS + 1)),)).later(1).submit("b")
    assert len(msgspec.msgpack.decode(encode_session(s.session)[1:])) == len(UnscheduledSessionV1.__struct_fields__)


def test_what_waits_for_a_will_to_be_in_the_log_is_kept() -> None:
    session = Scenario(routing=True).connect(will=will()).connect(clean_start=True, expiry_s=0).session
    again = decode_session(encode_session(session), client_id=CLIENT, settings=session.settings)
    assert [type(command) for command in again.held] == [AcceptConnection, EndSessionMark]
    assert (again.held, again.held_since_ms) == (session.held, START_MS)


@pytest.mark.parametrize("state", [-1, 3])
def test_a_state_of_the_path_that_does_not_exist_is_damage(state: int) -> None:
    record = msgspec.msgpack.decode(FIXTURE_V1_FAST_PATH.read_bytes()[1:])
    record[0][9][0] = state
    with pytest.raises(UnreadableRecord, match="is damaged"):
        decode_session(b"\x01" + msgspec.msgpack.encode(record), client_id=CLIENT, settings=SessionSettings())


def test_a_connection_stored_without_leases_has_none_and_is_newest() -> None:
    settings = SessionSettings(max_inflight=3, max_awaiting_rel=0)
    connected, offline = FIXTURE_V1.read_bytes().split(b"\n--\n")
    session = decode_session(connected, client_id=CLIENT, settings=settings)
    assert session.connection is not None
    assert (session.connection.lease_id, session.newest_connection_id) == ("", 1)
    assert connection_of(connected) == (1, "")
    assert decode_session(offline, client_id=CLIENT, settings=settings).newest_connection_id == 1
    assert connection_of(offline) is None


def test_connection_and_lease_can_be_read_without_the_rest() -> None:
    s = Scenario().connect(connection_id=77, lease_id="lease-1").submit("a")
    blob = encode_session(s.session)
    assert connection_of(blob) == (77, "lease-1")
    for damaged in (b"", b"\x02" + blob[1:], blob[:5], b"\x01garbage"):
        assert connection_of(damaged) is None


@pytest.mark.parametrize("timeouts", [-1, None, 1.5])
def test_a_number_of_waits_that_cannot_be_is_damage(timeouts: object) -> None:
    record = msgspec.msgpack.decode(encode_session(connected_session())[1:])
    record[11][0][4] = timeouts
    with pytest.raises(UnreadableRecord, match="is damaged"):
        decode_session(b"\x01" + msgspec.msgpack.encode(record), client_id=CLIENT, settings=SessionSettings())


@pytest.mark.parametrize("phase", [0, 4, -1])
def test_a_phase_that_does_not_exist_is_damage(phase: int) -> None:
    blob = FIXTURE_V1.read_bytes().split(b"\n--\n")[0]
    record = msgspec.msgpack.decode(blob[1:])
    record[11][0][1] = phase
    with pytest.raises(UnreadableRecord, match="is damaged"):
        decode_session(blob[:1] + msgspec.msgpack.encode(record), client_id=CLIENT, settings=SessionSettings())


def test_settings_are_not_persisted_but_those_of_today() -> None:
    s = Scenario(deduplication_window=5, max_mqueue_len=10).submit("a", "b", "c", explicit_id=True)
    session = decode_session(
        encode_session(s.session),
        client_id=CLIENT,
        settings=SessionSettings(deduplication_window=1, max_mqueue_len=1, retry_interval_ms=1),
    )
    assert len(session.outbound.recent_ids.digests) == 1
    assert session.outbound.recent_ids.contains("c")
    assert session.outbound.queue.max_len == 1
    assert len(session.outbound.queue) == 3  # nothing is dropped before something new arrives


if __name__ == "__main__":
    MADE = {
        FIXTURE_V1_REFUSALS: lambda: b"\n--\n".join(encode_session(made) for made in (connected_session(), offline_session())),
        FIXTURE_V1_LEASES: lambda: encode_session(leased_session()),
        FIXTURE_V1_FAST_PATH: lambda: encode_session(fast_session()),
        FIXTURE_V1_UNHEARD: lambda: encode_session(unheard_session()),
        FIXTURE_V1_CRASHES: lambda: encode_session(crashed_session()),
        FIXTURE_V1_OVERDUE: lambda: encode_session(overdue_session()),
        FIXTURE_V1_ROUTING: lambda: encode_session(routed_session()),
        FIXTURE_V1_SCHEDULE: lambda: encode_session(scheduled_session()),
    }
    for path, make in MADE.items():
        if not path.exists():
            path.write_bytes(make())


def test_a_queue_from_which_nothing_has_left_is_kept_as_such() -> None:
    """No grant may begin at the newest message of such a queue, nor at none."""
    s = Scenario().connect(expiry_s=100).lose_connection().submit("a", at=Position(0, 0)).submit("b", at=Position(0, 1))
    again = decode_session(encode_session(s.session), client_id=CLIENT, settings=s.session.settings)
    assert s.session.outbound.positions.settled is None
    assert again.outbound.positions.settled is None
    assert encode_session(again) == encode_session(s.session)
