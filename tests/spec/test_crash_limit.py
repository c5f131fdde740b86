"""protocol.md, section 2: a message on which the device dies each time ends some day, and nothing else does."""

import pytest

from state.commands import RecordTransition, Transition
from state.events import ClientDisconnected, PubRecReceived
from state.model import Outcome
from state.settings import RetryMqtt5
from tests.scenarios.scenario import Scenario
from tests.spec.fast_path.scenes import Y, at, opened


def dying(times: int, s: Scenario, *, unanswered: int = 1) -> Scenario:
    """The device connects, gets what is owed to it, and dies on this packet id."""
    for _ in range(times):
        s.connect().later(1).lose_connection(unanswered=unanswered)
    return s


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_kills_its_device_is_dead_lettered(qos: int) -> None:
    s = dying(20, Scenario().submit("poison", qos=qos))
    assert (s.outcomes, s.crashes) == ({}, {"poison": 20})
    s.sees()
    assert s.connect().sees() == ["CONNACK present"]
    assert s.dead_letters == [("poison", Outcome.DELIVERY_LIMIT)]
    receipt = s.receipt("poison")
    assert (receipt.outcome, receipt.attempts) == (Outcome.DELIVERY_LIMIT, 20)
    assert receipt.detail == "not acknowledged in 20 attempts; the client got it and lost 20 connections (crash_limit)"


def test_a_message_of_qos_2_keeps_its_handshake_after_a_crash() -> None:
    s = dying(1, Scenario().submit("a", qos=2)).connect()
    s.sees()
    assert s.pubrec(1).sees() == ["PUBREL 1"]


def test_what_waits_behind_it_is_delivered() -> None:
    s = dying(3, Scenario(crash_limit=3, max_inflight=1).submit("poison", "good"))
    s.sees()
    assert s.connect().sees() == ["CONNACK present", "PUBLISH 2 good"]
    s.puback(2)
    assert s.outcomes == {"poison": Outcome.DELIVERY_LIMIT, "good": Outcome.DELIVERED}


def test_only_the_oldest_unanswered_message_counts() -> None:
    s = dying(3, Scenario(crash_limit=3).submit("a", "b", "c"), unanswered=2)
    assert s.crashes == {"a": 0, "b": 3, "c": 0}
    assert s.connect().outcomes == {"b": Outcome.DELIVERY_LIMIT}


def test_the_ledger_tells_each_attempt_and_what_it_ended_with() -> None:
    s = dying(2, Scenario(crash_limit=2).submit("a")).connect()
    rows = [row for row in s.sent(RecordTransition) if row.message_id == "a"]
    assert [(row.transition, row.attempt, row.detail) for row in rows] == [
        (Transition.ACCEPTED, 0, ""),
        (Transition.QUEUED, 0, ""),
        (Transition.SENT, 1, ""),
        (Transition.REPLAYED, 2, "lost 1 connection without an answer"),
        (Transition.FINISHED, 2, s.receipt("a").detail),
        (Transition.DEAD_LETTERED, 0, "the dead-letter topic"),
    ]


def test_a_connection_that_ended_before_the_publish_does_not_count() -> None:
    s = Scenario(crash_limit=1).submit("a")
    for _ in range(5):
        s.connect().lose_connection()  # it was not on the wire, or the gateway died and cannot say
    assert (s.crashes, s.outcomes) == ({"a": 0}, {})


def test_each_connection_counts_once() -> None:
    s = dying(1, Scenario(crash_limit=3).submit("a"))
    s.lose_connection(unanswered=1).lose_connection(unanswered=1)
    assert s.crashes == {"a": 1}


def test_a_takeover_counts_when_its_gateway_reports_it() -> None:
    s = Scenario(crash_limit=2).submit("a")
    for connection_id in (1, 2):
        s.connect()
        s.connect(connection_id=s.connection_id + 10)  # the device has restarted, and its old connection does not know
        s.lose_connection(s.connection_id - 10, unanswered=1)
        assert s.crashes == {"a": connection_id}
    assert s.connect().outcomes == {"a": Outcome.DELIVERY_LIMIT}


def test_a_report_does_not_count_for_a_later_message_of_that_id() -> None:
    s = Scenario().connect().submit("a").connect(connection_id=5, clean_start=True).submit("b")
    s.lose_connection(1, unanswered=1)
    assert s.crashes == {"b": 0}


def test_an_end_that_counts_as_an_attempt_does_not_count_twice() -> None:
    s = Scenario().connect().submit("a").later(30).lose_connection(unanswered=1)
    assert (s.attempts, s.crashes) == ({"a": 1}, {"a": 0})
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5).submit("a").after(30)
    s.lose_connection(unanswered=1)
    assert (s.attempts, s.crashes) == ({"a": 1}, {"a": 0})


def test_a_disconnect_counts_like_a_lost_connection_if_it_says_so() -> None:
    s = Scenario().connect(version=5).submit("a")
    s.handle(ClientDisconnected(connection_id=1, reason_code=0x82, unanswered=1))
    assert s.crashes == {"a": 1}


def test_crash_limit_minus_1_never_gives_up() -> None:
    s = dying(50, Scenario(crash_limit=-1).submit("a"))
    assert (s.crashes, s.outcomes) == ({"a": 50}, {})


def test_a_message_of_the_fast_path_counts_under_its_packet_id() -> None:
    s = opened(crash_limit=2).fast_sent("a", Y, at=at(1), previous=0).lose_connection(unanswered=Y)
    assert s.crashes == {"a": 1}
    dying(1, s, unanswered=Y)
    assert s.connect().outcomes["a"] is Outcome.DELIVERY_LIMIT


@pytest.mark.parametrize("read_first", [False, True], ids=["adopted", "read first"])
def test_a_fast_sent_behind_the_end_of_its_connection_counts(read_first: bool) -> None:
    """The session has closed the connection, and then reads what the gateway had sent before the device died."""
    s = opened(crash_limit=2).submit("b", at=at(1)).submit("c", at=at(2))
    if not read_first:
        s.puback(3)
    s.pubcomp(2)
    assert s.sees()[-1] == "CLOSE 0x82"
    if read_first:
        s.fast_sent("c", Y, at=at(2), previous=1)
    else:
        s.fast_sent("d", Y, at=at(3), previous=2)
    s.lose_connection(unanswered=Y)
    assert list(s.crashes.values()) == [0, 1]
    assert list(s.attempts.values()) == [0, 0]


def test_a_late_acknowledgement_after_a_crash_delivers() -> None:
    s = dying(1, Scenario().submit("a")).puback(1, connection_id=1)
    assert (s.receipt("a").outcome, s.receipt("a").attempts) == (Outcome.DELIVERED, 1)


def test_a_message_awaiting_pubcomp_has_no_crash_limit() -> None:
    s = Scenario(crash_limit=1).connect().submit("a", qos=2).connect()
    s.handle(PubRecReceived(connection_id=1, packet_id=1, pubrel_sent=True))
    s.lose_connection(1, unanswered=1)
    assert s.crashes == {"a": 0}
