"""protocol.md, section 2: refusals by reason, unknown and wrong-phase acknowledgements, giving up."""

import pytest

from state.commands import CloseConnection, DeadLetter, RecordTransition, SendPublish, Transition
from state.events import PubAckReceived, PubCompReceived, PubRecReceived
from state.model import Outcome, ReasonCode
from state.settings import BackoffSettings, RetryMqtt5
from tests.scenarios.scenario import Scenario

# --- refusals ---------------------------------------------------------------------------------------------------------------


def test_a_pubrec_of_0x80_or_more_ends_the_exchange_without_pubrel() -> None:
    """[MQTT-4.4.0-2] [MQTT-4.3.3-4]; EMQX and HiveMQ CE send a PUBREL."""
    s = Scenario(delivery_limit=1).connect(version=5).submit("a", qos=2)
    s.sees()
    s.pubrec(1, reason_code=0x87)
    assert s.sees() == []
    assert s.packet_ids == []


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reason_code", [0x87, 0x90, 0x99])
def test_a_refusal_for_good_is_a_dead_letter(reason_code: int, qos: int) -> None:
    s = Scenario().connect(version=5).submit("a", qos=qos)
    if qos == 1:
        s.puback(1, reason_code=reason_code)
    else:
        s.pubrec(1, reason_code=reason_code)
    assert s.outcomes == {"a": Outcome.REJECTED}
    assert s.dead_letters == [("a", Outcome.REJECTED)]
    assert s.receipt("a").reason_code == reason_code
    assert s.session.summary().inflight == 0


def test_the_reason_string_reaches_receipt_dead_letter_and_ledger() -> None:
    s = Scenario().connect(version=5).submit("a", "b")
    s.puback(1, reason_code=0x87, reason="valve locked").puback(2, reason_code=0x80, reason="x" * 5_000)
    detail = "the client refused it with reason code 0x87: valve locked"
    assert s.receipt("a").detail == detail
    (letter,) = s.sent(DeadLetter)
    assert letter.detail == detail
    refusals = [row for row in s.sent(RecordTransition) if row.transition == "refused"]
    assert [row.detail for row in refusals] == ["valve locked", "next attempt at once: " + "x" * 200]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reason_code", [0x80, 0x83, 0x91])
def test_after_a_passing_refusal_a_new_publish_follows_at_once(reason_code: int, qos: int) -> None:
    s = Scenario().connect(version=5).submit("a", qos=qos)
    s.sees()
    if qos == 1:
        s.puback(1, reason_code=reason_code)
    else:
        s.pubrec(1, reason_code=reason_code)
    assert s.sees() == ["PUBLISH 2 a"]  # no DUP: it is a new exchange
    assert s.packet_ids == [2]


def test_refused_messages_keep_their_place_before_newer_ones() -> None:
    s = Scenario(max_inflight=3).connect(version=5).submit("a", "b", "c", "d")
    s.sees()
    with s.micro_batch():
        s.puback(2, reason_code=0x80)
        s.puback(1, reason_code=0x80)
        s.puback(3)
    assert s.sees() == ["PUBLISH 4 a", "PUBLISH 5 b", "PUBLISH 6 d"]


def test_quota_exceeded_backs_off_one_second_then_1_6_then_2_56() -> None:
    """First wait exact, the later ones ± 20 %, all counted from the start of the attempt (protocol.md, section 5)."""
    s = Scenario().connect(version=5).submit("a")
    sent_ms, waits_ms = s.now_ms, []
    for packet_id in (1, 2, 3, 4):
        s.later(0.1).puback(packet_id, reason_code=0x97)
        assert s.packet_ids == []  # not at once
        deadline_ms = s.session.next_deadline_ms()
        assert deadline_ms is not None
        waits_ms.append(deadline_ms - sent_ms)
        s.after((deadline_ms - s.now_ms) / 1_000)
        sent_ms = s.now_ms
        assert s.packet_ids == [packet_id + 1]
    assert waits_ms[0] == 1_000
    for wait_ms, nominal_ms in zip(waits_ms[1:], (1_600, 2_560, 4_096), strict=True):
        assert 0.8 * nominal_ms <= wait_ms <= 1.2 * nominal_ms
        assert wait_ms != nominal_ms  # jittered
    assert all(not publish.dup for publish in s.sent(SendPublish))


def refusals(s: Scenario) -> list[tuple[int, int, str]]:
    """(attempt, reason code, detail) of the ledger's rows about refusals."""
    rows = [row for row in s.sent(RecordTransition) if row.transition is Transition.REFUSED]
    return [(row.attempt, row.reason_code, row.detail) for row in rows]


def test_the_ledger_says_of_each_refusal_when_the_next_attempt_is_due() -> None:
    s = Scenario(backoff=BackoffSettings(jitter=0.0)).connect(version=5).submit("a")
    s.later(0.1).puback(1, reason_code=0x97)
    s.after(0.9).later(0.2).puback(2, reason_code=0x97)
    assert refusals(s) == [
        (1, 0x97, "next attempt 1000 ms after the start of this one, in 900 ms"),
        (2, 0x97, "next attempt 1600 ms after the start of this one, in 1400 ms"),
    ]


def test_a_refusal_after_its_wait_is_followed_by_the_next_attempt() -> None:
    """The wait counts from the start of the attempt (protocol.md, section 5)."""
    s = Scenario().connect(version=5).submit("a")
    s.sees()
    assert s.later(1.5).puback(1, reason_code=0x97).sees() == ["PUBLISH 2 a"]
    assert refusals(s) == [(1, 0x97, "next attempt 1000 ms after the start of this one, in 0 ms")]
    assert s.puback(2, reason_code=0x80).sees() == ["PUBLISH 3 a"]
    assert refusals(s)[1] == (2, 0x80, "next attempt at once")


def test_a_passing_refusal_during_a_backoff_waits_with_the_others() -> None:
    s = Scenario(max_inflight=2).connect(version=5).submit("a", "b")
    s.puback(1, reason_code=0x97).later(0.4).puback(2, reason_code=0x80)
    assert refusals(s)[1] == (1, 0x80, "next attempt 1000 ms after the start of this one, in 600 ms")


def test_the_receipt_has_the_reason_code_of_the_last_refusal() -> None:
    s = Scenario(delivery_limit=3).connect(version=5).submit("a")
    s.puback(1, reason_code=0x91).puback(2, 3, reason_code=0x80)
    assert refusals(s) == [
        (1, 0x91, "next attempt at once"),
        (2, 0x80, "next attempt at once"),
        (3, 0x80, "it was the last attempt"),
    ]
    receipt = s.receipt("a")
    assert (receipt.outcome, receipt.attempts, receipt.reason_code) == (Outcome.DELIVERY_LIMIT, 3, 0x80)
    assert receipt.detail == "not acknowledged in 3 attempts; the last refusal had reason code 0x80"


def test_an_unanswered_message_is_given_up_without_a_reason_code() -> None:
    s = Scenario(delivery_limit=1).connect().submit("a").after(30)
    assert (s.receipt("a").reason_code, s.receipt("a").detail) == (0, "not acknowledged in 1 attempt")


def test_a_quota_refusal_holds_back_the_whole_queue_and_keeps_order() -> None:
    s = Scenario(max_inflight=2).connect(version=5).submit("a", "b", "c")
    s.sees()
    s.puback(1, 2, reason_code=0x97).submit("d")
    assert s.sees() == []
    assert s.after(1).sees() == ["PUBLISH 3 a", "PUBLISH 4 b"]


def test_one_round_of_quota_refusals_is_one_step_of_the_backoff() -> None:
    s = Scenario(max_inflight=3, backoff=BackoffSettings(jitter=0.0)).connect(version=5).submit("a", "b", "c")
    s.puback(1, 2, 3, reason_code=0x97)
    assert s.session.next_deadline_ms() == s.now_ms + 1_000
    s.after(1)
    s.puback(4, 5, 6, reason_code=0x97)
    assert s.session.next_deadline_ms() == s.now_ms + 1_600


def test_a_success_resets_the_backoff() -> None:
    s = Scenario(max_inflight=2).connect(version=5).submit("a", "b")
    s.puback(1, reason_code=0x97)
    s.sees()
    s.puback(2)
    assert s.sees() == ["PUBLISH 3 a"]  # the client takes messages again: no need to wait
    s.puback(3, reason_code=0x97)
    assert s.session.next_deadline_ms() == s.now_ms + 1_000


def test_the_backoff_survives_a_reconnect_and_ends_with_the_session() -> None:
    s = Scenario(backoff=BackoffSettings(initial_ms=60_000)).connect(version=5).submit("a")
    s.puback(1, reason_code=0x97).lose_connection().connect(version=5)
    assert s.queued == ["a"]
    assert s.session.next_deadline_ms() == s.now_ms + 60_000
    s.connect(version=5, clean_start=True).submit("b")
    assert s.packet_ids == [2]


# --- acknowledgements without an exchange -----------------------------------------------------------------------------------


def test_unknown_pubacks_and_pubcomps_are_counted_and_ignored() -> None:
    s = Scenario().connect().puback(7).puback(7, reason_code=0x80).pubcomp(7).pubrec(7, reason_code=0x80)
    assert s.sees() == ["CONNACK"]
    assert s.ledger.count("unknown_acknowledgement") == 4


def test_an_unknown_pubrec_is_answered_0x92_in_mqtt_5() -> None:
    """[MQTT-4.3.3-4]; the client can let go of the id (MQTT 5, 3.6.2.1)."""
    s = Scenario().connect(version=5).pubrec(7)
    assert s.sees() == ["CONNACK", "PUBREL 7 0x92"]
    assert s.ledger.count("unknown_acknowledgement") == 1


def test_an_unknown_pubrec_is_answered_by_plain_pubrel_in_3_1_1() -> None:
    s = Scenario().connect(version=4).pubrec(7)
    assert s.sees() == ["CONNACK", "PUBREL 7"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_repeated_pubrec_after_pubrel_is_answered_by_pubrel_again(version: int) -> None:
    """[MQTT-4.3.3-4]"""
    s = Scenario().connect(version=version).submit("a", qos=2).pubrec(1)
    s.sees()
    assert s.pubrec(1).sees() == ["PUBREL 1"]
    s.pubcomp(1)
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_a_refusing_pubrec_after_pubrel_completes_the_exchange() -> None:
    s = Scenario().connect(version=5).submit("a", qos=2).pubrec(1)
    s.sees()
    assert s.pubrec(1, reason_code=0x92).sees() == []
    assert s.outcomes == {"a": Outcome.DELIVERED}
    assert s.packet_ids == []


def test_a_pubcomp_0x92_completes_the_exchange() -> None:
    s = Scenario().connect(version=5).submit("a", qos=2).pubrec(1).pubcomp(1, reason_code=0x92)
    assert s.outcomes == {"a": Outcome.DELIVERED}


# --- acknowledgements of the wrong kind -------------------------------------------------------------------------------------

WRONG = {
    "PUBREC for QoS 1": (1, False, "pubrec", 0),
    "refusing PUBREC for QoS 1": (1, False, "pubrec", 0x80),
    "PUBCOMP for QoS 1": (1, False, "pubcomp", 0),
    "PUBACK for QoS 2": (2, False, "puback", 0),
    "refusing PUBACK for QoS 2": (2, False, "puback", 0x80),
    "PUBCOMP before PUBREC": (2, False, "pubcomp", 0),
    "PUBACK for a PUBREL": (2, True, "puback", 0),
    "refusing PUBACK for a PUBREL": (2, True, "puback", 0x80),
}


@pytest.mark.parametrize(("qos", "received", "kind", "reason_code"), WRONG.values(), ids=WRONG.keys())
def test_an_acknowledgement_of_the_wrong_kind_is_a_protocol_error(qos: int, received: bool, kind: str, reason_code: int) -> None:
    """[MQTT-4.13.1-1]"""
    s = Scenario().connect(version=5).submit("a", qos=qos)
    if received:
        s.pubrec(1)
    before = s.session.outbound.window.get(1)
    assert before is not None
    phase = before.phase
    s.sees()
    getattr(s, kind)(1, reason_code=reason_code)
    assert s.sees() == ["CLOSE 0x82"]
    (close,) = s.sent(CloseConnection)
    assert close.reason_code == ReasonCode.PROTOCOL_ERROR
    assert s.outcomes == {}
    s.connect(version=5)  # the exchange is unchanged, and continues
    assert s.sees() == ["CONNACK present", "PUBREL 1" if received else "PUBLISH 1 a DUP"]
    entry = s.session.outbound.window.get(1)
    assert entry is not None
    assert entry.phase is phase


def test_what_follows_a_protocol_error_in_the_same_batch_is_still_handled() -> None:
    s = Scenario().connect().submit("a", qos=2)
    s.sees()
    with s.micro_batch():
        s.puback(1)  # wrong
        s.submit("b")
        s.pubrec(1)  # of a connection that is over
    assert s.sees() == ["CLOSE 0x82"]
    assert s.queued == ["b"]


# --- giving up --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_the_attempt_after_the_delivery_limit_is_not_made(qos: int) -> None:
    """A delivery_limit of 3 allows three transmissions, and a dead letter replaces the fourth."""
    s = Scenario(delivery_limit=3).connect().submit("a", qos=qos)
    s.after(29)
    s.after(120)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH 1 a DUP", "PUBLISH 1 a DUP", "WITHDRAW (1,)"]
    assert s.outcomes == {"a": Outcome.DELIVERY_LIMIT}
    assert s.dead_letters == [("a", Outcome.DELIVERY_LIMIT)]
    assert s.receipt("a").attempts == 3
    assert s.session.next_deadline_ms() is None


def test_the_slot_of_a_message_that_is_given_up_goes_to_the_queue() -> None:
    s = Scenario(delivery_limit=1, max_inflight=1).connect().submit("a", "b")
    s.sees()
    assert s.after(30).sees() == ["WITHDRAW (1,)", "PUBLISH 2 b"]


def test_delivery_limit_minus_1_never_gives_up() -> None:
    s = Scenario(delivery_limit=-1).connect().submit("a")
    s.after(30 * 200)
    assert len(s.sent(SendPublish)) == 201


def test_a_pubrel_has_no_delivery_limit() -> None:
    s = Scenario(delivery_limit=1).connect().submit("a", qos=2).pubrec(1)
    s.sees()
    assert s.after(90).sees() == ["PUBREL 1"] * 3


@pytest.mark.parametrize("qos", [1, 2])
def test_a_lost_connection_gives_the_attempt_back(qos: int) -> None:
    s = Scenario(delivery_limit=2).submit("a", qos=qos)
    for _ in range(10):
        s.connect()
        assert s.attempts == {"a": 1}
        s.later(1).lose_connection()
        assert s.attempts == {"a": 0}
    assert s.outcomes == {}


def test_a_lost_connection_gives_no_attempt_back_for_a_pubrel() -> None:
    s = Scenario(delivery_limit=2).connect().submit("a", qos=2).pubrec(1)
    s.lose_connection().connect().lose_connection()
    assert s.attempts == {"a": 1}


@pytest.mark.parametrize("qos", [1, 2])
def test_an_attempt_that_had_its_time_is_not_given_back(qos: int) -> None:
    s = Scenario(delivery_limit=2).connect().submit("a", qos=qos).later(30).lose_connection()
    assert s.attempts == {"a": 1}
    s.connect().later(30).lose_connection()
    s.sees()
    s.connect()
    assert s.sees() == ["CONNACK present"]
    assert s.outcomes == {"a": Outcome.DELIVERY_LIMIT}
    assert s.receipt("a").attempts == 2


def test_an_attempt_that_a_gateway_still_held_back_is_given_back() -> None:
    s = Scenario(max_inflight=1, prefetch=2).connect().submit("a", "b", "c")
    assert s.attempts == {"a": 1, "b": 1, "c": 1}
    s.later(30).lose_connection()
    assert s.attempts == {"a": 1, "b": 0, "c": 0}


@pytest.mark.parametrize(("qos", "received", "dead"), [(1, False, True), (2, False, True), (2, True, False)])
def test_the_end_of_the_session_dead_letters_what_was_not_received(qos: int, received: bool, dead: bool) -> None:
    s = Scenario().connect().submit("a", qos=qos)
    if received:
        s.pubrec(1)
    s.connect(clean_start=True)
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}
    assert s.dead_letters == ([("a", Outcome.SESSION_ENDED)] if dead else [])


def test_after_giving_up_a_late_acknowledgement_is_nobodys() -> None:
    s = Scenario(delivery_limit=1).connect(version=4).submit("a", qos=2).after(30)
    s.sees()
    assert s.pubrec(1).sees() == ["PUBREL 1"]
    s.pubcomp(1)
    assert s.outcomes == {"a": Outcome.DELIVERY_LIMIT}


def test_a_pubrec_counts_after_the_engine_closed_its_connection() -> None:
    """[MQTT-4.3.3-6] the gateway has answered it with PUBREL, and the device may have handed the message on."""
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5).submit("a", qos=2)
    s.sees()
    assert s.after(30).sees() == ["CLOSE 0x83"]
    s.handle(PubRecReceived(connection_id=1, packet_id=1, pubrel_sent=True))
    assert s.connect(version=5).sees() == ["CONNACK present", "PUBREL 1"]
    s.handle(PubCompReceived(connection_id=2, packet_id=1))
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_a_late_acknowledgement_counts_while_the_device_is_away() -> None:
    s = Scenario().connect().submit("a").lose_connection()
    s.handle(PubAckReceived(connection_id=1, packet_id=1))
    assert s.outcomes == {"a": Outcome.DELIVERED}
    assert s.connect().sees()[-1] == "CONNACK present"


def test_a_late_acknowledgement_that_nobody_waits_for_changes_nothing() -> None:
    s = Scenario().connect().submit("a").puback(1).lose_connection()
    s.sees()
    for event in (PubAckReceived, PubRecReceived, PubCompReceived):
        s.handle(event(connection_id=1, packet_id=1))
    assert s.sees() == []
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_a_late_acknowledgement_of_the_session_before_changes_nothing() -> None:
    s = Scenario().connect().submit("a").connect(clean_start=True).submit("b")
    (packet_id,) = s.packet_ids
    s.handle(PubAckReceived(connection_id=1, packet_id=packet_id))
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}
    assert s.packet_ids == [packet_id]


def test_a_late_refusal_changes_nothing() -> None:
    s = Scenario().connect().submit("a", qos=2).lose_connection()
    s.handle(PubRecReceived(connection_id=1, packet_id=1, reason_code=0x80))
    s.sees()
    assert s.connect().sees() == ["CONNACK present", "PUBLISH 1 a DUP"]
