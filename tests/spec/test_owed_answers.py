"""protocol.md, section 2: what a client still owes for a message that was given up, its slot and its packet id."""

import pytest

from state.commands import WithdrawPublish
from state.events import PubAckReceived, PubCompReceived, PubRecReceived
from state.model import Outcome
from state.outbound import packet_ids
from state.settings import RetryMqtt5
from state.transitions import ABANDONED, AbandonedEvent, AbandonedPhase
from tests.scenarios.scenario import Scenario

RETRY_S = 30


def giving_up(**settings: object) -> Scenario:
    """A session that gives a message up when its first wait is over."""
    return Scenario(**{"retry_mqtt5": RetryMqtt5.TIMER, "delivery_limit": 1, **settings})


def owed_phase(s: Scenario, packet_id: int = 1) -> AbandonedPhase:
    return s.session.outbound.abandoned.phases.get(packet_id, AbandonedPhase.ABSENT)


def in_owed_phase(phase: AbandonedPhase, *, version: int = 5) -> Scenario:
    """A connected session to which this is owed for packet id 1."""
    s = giving_up(max_inflight=0, max_mqueue_len=0).connect(version=version)
    if phase is not AbandonedPhase.ABSENT:
        s.submit("a", qos=1 if phase is AbandonedPhase.AWAITING_PUBACK else 2).after(RETRY_S)
    if phase is AbandonedPhase.AWAITING_PUBCOMP:
        s.pubrec(1)
    assert owed_phase(s) is phase
    s.sees()
    return s


P, E = AbandonedPhase, AbandonedEvent
ROWS = {
    (P.ABSENT, E.GIVEN_UP_QOS_1): (P.AWAITING_PUBACK, "WITHDRAW (1,)"),
    (P.ABSENT, E.GIVEN_UP_QOS_2): (P.AWAITING_PUBREC, "WITHDRAW (1,)"),
    (P.AWAITING_PUBACK, E.PUBACK): (P.ABSENT, ""),
    (P.AWAITING_PUBACK, E.PUBACK_REFUSED): (P.ABSENT, ""),
    (P.AWAITING_PUBACK, E.PUBREC): (P.ABSENT, "CLOSE 0x82"),
    (P.AWAITING_PUBACK, E.PUBREC_REFUSED): (P.ABSENT, "CLOSE 0x82"),
    (P.AWAITING_PUBACK, E.PUBCOMP): (P.ABSENT, "CLOSE 0x82"),
    (P.AWAITING_PUBACK, E.CONNECTION_ENDED): (P.ABSENT, ""),
    (P.AWAITING_PUBREC, E.PUBREC): (P.AWAITING_PUBCOMP, "PUBREL 1"),
    (P.AWAITING_PUBREC, E.PUBREC_REFUSED): (P.ABSENT, ""),
    (P.AWAITING_PUBREC, E.PUBACK): (P.AWAITING_PUBREC, "CLOSE 0x82"),
    (P.AWAITING_PUBREC, E.PUBACK_REFUSED): (P.AWAITING_PUBREC, "CLOSE 0x82"),
    (P.AWAITING_PUBREC, E.PUBCOMP): (P.AWAITING_PUBREC, "CLOSE 0x82"),
    (P.AWAITING_PUBREC, E.CONNECTION_ENDED): (P.AWAITING_PUBREC, ""),
    (P.AWAITING_PUBREC, E.REPLAY): (P.AWAITING_PUBREC, "CONNACK present"),
    (P.AWAITING_PUBREC, E.DISPLACED): (P.ABSENT, None),
    (P.AWAITING_PUBREC, E.SESSION_ENDED): (P.ABSENT, "CLOSE 0x8E, CONNACK"),
    (P.AWAITING_PUBCOMP, E.PUBREC): (P.AWAITING_PUBCOMP, "PUBREL 1"),
    (P.AWAITING_PUBCOMP, E.PUBREC_REFUSED): (P.ABSENT, ""),
    (P.AWAITING_PUBCOMP, E.PUBCOMP): (P.ABSENT, ""),
    (P.AWAITING_PUBCOMP, E.PUBACK): (P.AWAITING_PUBCOMP, "CLOSE 0x82"),
    (P.AWAITING_PUBCOMP, E.PUBACK_REFUSED): (P.AWAITING_PUBCOMP, "CLOSE 0x82"),
    (P.AWAITING_PUBCOMP, E.CONNECTION_ENDED): (P.AWAITING_PUBCOMP, ""),
    (P.AWAITING_PUBCOMP, E.REPLAY): (P.AWAITING_PUBCOMP, "CONNACK present, PUBREL 1"),
    (P.AWAITING_PUBCOMP, E.DISPLACED): (P.ABSENT, None),
    (P.AWAITING_PUBCOMP, E.SESSION_ENDED): (P.ABSENT, "CLOSE 0x8E, CONNACK"),
}
"""The state afterwards, and what is sent (None: the row is about others). The end of a connection ends only its own exchange."""


def test_every_row_of_the_table_is_among_these() -> None:
    assert ROWS.keys() == ABANDONED.keys()


@pytest.mark.parametrize(("phase", "event"), ROWS, ids=lambda member: member.name)
def test_each_row_of_what_is_owed_is_what_happens(phase: AbandonedPhase, event: AbandonedEvent) -> None:
    s = in_owed_phase(phase, version=4 if event is AbandonedEvent.DISPLACED else 5)
    target, sent = ROWS[phase, event]
    match event:
        case AbandonedEvent.PUBACK | AbandonedEvent.PUBACK_REFUSED:
            s.puback(1, reason_code=0 if event is AbandonedEvent.PUBACK else 0x80)
        case AbandonedEvent.PUBREC | AbandonedEvent.PUBREC_REFUSED:
            s.pubrec(1, reason_code=0 if event is AbandonedEvent.PUBREC else 0x80)
        case AbandonedEvent.PUBCOMP:
            s.pubcomp(1)
        case AbandonedEvent.GIVEN_UP_QOS_1 | AbandonedEvent.GIVEN_UP_QOS_2:
            s.submit("a", qos=1 if event is AbandonedEvent.GIVEN_UP_QOS_1 else 2).after(RETRY_S)
        case AbandonedEvent.CONNECTION_ENDED:
            s.lose_connection()
        case AbandonedEvent.REPLAY:
            s.lose_connection().connect(version=5)
        case AbandonedEvent.DISPLACED:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(packet_ids, "MAX_ABANDONED", 8)
                with s.micro_batch():
                    s.submit(*(f"m{number}" for number in range(8)), qos=2)
                s.after(RETRY_S)
        case AbandonedEvent.SESSION_ENDED:
            s.connect(version=5, clean_start=True)
    seen = s.sees()
    assert owed_phase(s) is target
    assert sent is None or ", ".join(line for line in seen if not line.startswith("PUBLISH")) == sent
    assert s.outcomes["a"] is Outcome.DELIVERY_LIMIT, "one receipt, whatever comes later"
    is_here = s.connection_id == 1 and s.session.connection is not None
    assert (1 in s.session.outbound.abandoned.slots) == (target is not AbandonedPhase.ABSENT and is_here)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.promise("given-up-message")
def test_a_message_given_up_keeps_its_slot_until_it_is_answered(qos: int) -> None:
    """[MQTT-3.3.4-9]"""
    s = giving_up().connect(version=5, receive_maximum=1).submit("a", "b", qos=qos)
    s.sees()
    assert s.after(RETRY_S).sees() == ["WITHDRAW (1,)"]
    assert s.outcomes == {"a": Outcome.DELIVERY_LIMIT}
    assert s.after(3_000).sees() == []
    assert s.queued == ["b"]
    if qos == 1:
        assert s.puback(1).sees() == ["PUBLISH 2 b"]
    else:
        assert s.pubrec(1).sees() == ["PUBREL 1"]
        assert s.pubcomp(1).sees() == ["PUBLISH 2 b"]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_end_of_the_connection_frees_the_slot(qos: int) -> None:
    s = giving_up().connect(version=5, receive_maximum=1).submit("a", "b", qos=qos).after(RETRY_S)
    s.sees()
    assert s.lose_connection().connect(version=5, receive_maximum=1).sees() == ["CONNACK present", "PUBLISH 2 b"]


def test_only_the_receive_maximum_is_short_of_the_slot_not_max_inflight() -> None:
    s = giving_up(max_inflight=1).connect(version=5, receive_maximum=2).submit("a", "b", "c")
    s.sees()
    assert s.after(RETRY_S).sees() == ["WITHDRAW (1,)", "PUBLISH 2 b"]
    assert s.after(RETRY_S).sees() == ["WITHDRAW (2,)"]
    assert s.puback(2).sees() == ["PUBLISH 3 c"]


def test_a_3_1_1_client_has_no_receive_maximum() -> None:
    s = giving_up(max_inflight=1).connect(version=4).submit("a", "b")
    s.sees()
    assert s.after(RETRY_S).sees() == ["WITHDRAW (1,)", "PUBLISH 2 b"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.promise("given-up-message")
def test_the_id_of_a_qos_2_message_given_up_waits_for_its_handshake(version: int) -> None:
    s = giving_up().connect(version=version).submit("a", qos=2).after(RETRY_S).lose_connection().connect(version=version)
    s.session.outbound.packet_ids.last = 32_767
    s.submit("b")
    assert s.packet_ids == [2]
    s.pubrec(1).pubcomp(1)
    s.session.outbound.packet_ids.last = 32_767
    s.submit("c")
    assert s.packet_ids == [2, 1]


def test_nor_is_that_of_one_that_was_given_up_in_place_of_its_replay() -> None:
    s = giving_up().connect(version=4).submit("a", "b", qos=2).submit("c").later(RETRY_S).lose_connection().connect(version=4)
    assert s.outcomes == dict.fromkeys("abc", Outcome.DELIVERY_LIMIT)
    s.session.outbound.packet_ids.last = 32_767
    s.submit("d", "e")
    assert s.packet_ids == [3, 4]


def test_a_pubrel_for_a_message_given_up_is_not_sent_twice() -> None:
    s = giving_up().connect(version=5).submit("a", qos=2).after(RETRY_S)
    s.sees()
    assert s.pubrec(1, pubrel_sent=True).sees() == []
    assert owed_phase(s) is AbandonedPhase.AWAITING_PUBCOMP


def test_an_answer_of_an_earlier_connection_counts_if_it_is_one() -> None:
    s = in_owed_phase(AbandonedPhase.AWAITING_PUBREC).lose_connection().connect(version=5)
    s.sees()
    s.handle(PubAckReceived(connection_id=1, packet_id=1))
    s.handle(PubCompReceived(connection_id=1, packet_id=1))
    assert owed_phase(s) is AbandonedPhase.AWAITING_PUBREC
    s.handle(PubRecReceived(connection_id=1, packet_id=1))
    assert owed_phase(s) is AbandonedPhase.AWAITING_PUBCOMP
    s.handle(PubCompReceived(connection_id=1, packet_id=1))
    assert owed_phase(s) is AbandonedPhase.ABSENT
    assert s.sees() == []


def test_an_answer_frees_the_slot_and_starts_the_clock_of_the_next() -> None:
    s = giving_up(prefetch=1, delivery_limit=2).connect(version=5, receive_maximum=2)
    s.submit("a").after(10).submit("b", "c")
    s.sees()
    assert s.after(RETRY_S - 10).sees() == ["PUBLISH 1 a DUP"]
    assert s.after(10).sees() == ["PUBLISH 2 b DUP"]
    assert s.after(20).sees() == ["WITHDRAW (1,)"]
    s.after(9)
    s.puback(1)  # now c goes out
    assert s.after(1).sees() == ["WITHDRAW (2,)"]
    assert s.after(RETRY_S - 1.001).sees() == []
    assert s.after(0.001).sees() == ["PUBLISH 3 c DUP"]


def test_the_attempt_that_the_wire_had_no_slot_for_is_given_back() -> None:
    s = giving_up(prefetch=1).connect(version=5, receive_maximum=1).submit("a", "b").after(RETRY_S)
    assert s.attempts == {"b": 1}, "the gateway holds it back"
    assert s.later(100).lose_connection().attempts == {"b": 0}


@pytest.mark.no_cover
@pytest.mark.no_cover  # it takes long, and reaches no line of its own
def test_no_more_messages_are_in_flight_than_there_are_free_ids() -> None:
    s = giving_up(max_inflight=0, max_mqueue_len=0).connect(version=4).submit("a", qos=2).after(RETRY_S)
    with s.micro_batch():
        s.submit(*("m" for _ in range(32_767)), payload=b"")
    assert len(s.session.outbound.window) == 32_766
    assert len(s.session.outbound.queue) == 1


def test_a_late_pubrec_withdraws_the_replay_in_the_gateway() -> None:
    """[MQTT-4.3.3-6]"""
    s = Scenario(max_inflight=1, prefetch=1).connect().submit("a", "b", qos=2).lose_connection().connect()
    s.handle(PubRecReceived(connection_id=1, packet_id=2))
    assert [command.packet_ids for command in s.sent(WithdrawPublish)] == [(2,)]
