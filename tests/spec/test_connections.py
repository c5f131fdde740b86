"""protocol.md, section 1: resume, clean start, session expiry, takeover, stale events. Wills are in test_wills.py."""

from typing import Any

import pytest

from state.commands import AcceptConnection, CloseConnection, SetPresence
from state.dead_letters.dead_letter import with_death
from state.dead_letters.policy import Policy
from state.events import Claim, ClientConnected, ConnectionLost, ExpiredSession, MessageReturned
from state.model import NEVER_EXPIRES_S, Outcome
from state.session import Session
from state.session_codec import encode_session
from state.settings import Overflow, RetryMqtt5, SessionSettings
from tests.scenarios.scenario import PARTITION, START_MS, Scenario, message, will


def test_one_event_is_an_activation_of_its_own() -> None:
    events = (ClientConnected(connection_id=1, commands_partition=3), ConnectionLost(connection_id=1))
    alone, together = (Session(client_id="c", settings=SessionSettings()) for _ in range(2))
    one_by_one = [command for event in events for command in alone.handle(event, now_ms=1)]
    told = [command for command in one_by_one if isinstance(command, SetPresence)]  # once in an activation, about its end
    assert tuple(command for command in one_by_one if command not in told) == together.handle_all(events, now_ms=1)
    assert encode_session(alone) == encode_session(together)


# --- session present --------------------------------------------------------------------------------------------------------


def test_a_first_connection_finds_no_session_and_the_next_one_does() -> None:
    """[MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3]"""
    s = Scenario().connect().lose_connection().connect()
    assert s.sees() == ["CONNACK", "CONNACK present"]


def test_waiting_messages_are_no_session_that_a_client_can_resume() -> None:
    """[MQTT-3.2.2-2]"""
    s = Scenario().submit("a").connect()
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]


def test_a_clean_start_ends_the_session_with_an_outcome_for_all() -> None:
    """[MQTT-3.1.2-4] [MQTT-3.2.2-2]"""
    s = Scenario(max_inflight=3).connect().subscribe("t", 0)
    s.unsubscribe("t").submit("a").submit("b", qos=2).submit("c", qos=2).submit("d", "e").pubrec(2)
    s.sees()
    s.connect(clean_start=True)
    assert s.sees() == ["CLOSE 0x8E", "CONNACK"]
    assert s.outcomes == dict.fromkeys("abcde", Outcome.SESSION_ENDED)
    assert [name for name, _ in s.dead_letters] == ["a", "c", "d", "e"]  # b was taken over by the client: nothing left
    assert "session_ended" in s.ledger
    assert s.session.summary().inflight == s.session.summary().queued == 0


def test_a_clean_start_forgets_subscriptions() -> None:
    """[MQTT-3.1.2-4]"""
    s = Scenario().connect().subscribe("t", 0).connect(clean_start=True)
    assert len(s.session.outbound.subscriptions) == 0


def test_a_kept_session_keeps_subscriptions_over_connections() -> None:
    """[MQTT-3.1.2-5] [MQTT-4.1.0-1]"""
    s = Scenario().connect().subscribe("t", 0).lose_connection().connect()
    assert [x.topic_filter for x in s.session.outbound.subscriptions] == ["t"]


def test_the_gateway_is_told_the_topic_filters_unless_too_many() -> None:
    s = Scenario(max_subscription_bytes=2_000).connect().subscribe("t/+", 0).subscribe("ü", 1).connect()
    assert [accepted.topic_filters for accepted in s.sent(AcceptConnection)] == [(), ("t/+", "ü")]
    s.subscribe("x" * 2_000, 0).connect()
    assert s.sent(AcceptConnection)[-1].topic_filters is None


def test_the_gateway_is_told_how_many_topic_filters_there_may_be() -> None:
    s = Scenario(max_subscriptions=5, max_subscription_bytes=2_000).connect()
    (accepted,) = s.sent(AcceptConnection)
    assert (accepted.max_subscriptions, accepted.max_subscription_bytes) == (5, 2_000)


# --- expiry -----------------------------------------------------------------------------------------------------------------


def test_a_session_ends_its_expiry_interval_after_the_disconnect() -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]"""
    s = Scenario().connect(version=5, expiry_s=60).submit("a")
    s.after(1).lose_connection()
    s.after(59.999)
    assert not s.session.is_empty
    s.after(0.001)
    assert s.session.is_empty
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}
    assert s.connect(version=5).sees()[-1] == "CONNACK"


def stalled() -> Scenario:
    """Returns a session that asked to close its connection after 30 seconds, and expires after 60."""
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5, expiry_s=60).submit("a").after(30)
    assert s.sees()[-1] == "CLOSE 0x83"
    return s


def test_expiry_counts_from_the_closing_that_the_session_asked_for() -> None:
    """[MQTT-3.1.2-23] The gateway may be slow, and the device is not away before it has closed."""
    s = stalled().after(40).lose_connection(1).after(59.999)
    assert s.session.established
    assert s.after(0.001).session.is_empty


@pytest.mark.parametrize("late_s", [1, 40])
def test_only_the_first_word_about_the_end_counts_and_none_is_waited_for(late_s: int) -> None:
    """A gateway that is gone says nothing, and another one says once more what is long over."""
    s = stalled().after(10).lose_connection(1).after(late_s).lose_connection(1).after(60 - late_s)
    assert s.session.is_empty
    assert stalled().after(60).session.is_empty


def test_the_end_of_a_connection_means_nothing_to_the_next_one() -> None:
    s = stalled().after(10).connect(version=5, expiry_s=60).after(5).lose_connection(1)
    assert s.session.summary().connected
    s.lose_connection(2).after(5).lose_connection(1).after(55)
    assert s.session.is_empty


def test_a_session_does_not_expire_while_connected() -> None:
    """[MQTT-4.1.0-1]"""
    s = Scenario().connect(version=5, expiry_s=60).after(1_000)
    assert s.lose_connection().connect(version=5).sees()[-1] == "CONNACK present"


def test_an_expiry_interval_of_0_ends_the_session_with_the_connection() -> None:
    """[MQTT-3.1.2-23]"""
    s = Scenario().connect(version=5, expiry_s=0).submit("a").disconnect()
    assert s.session.is_empty
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}
    assert s.session.next_deadline_ms() is None


def test_the_largest_interval_never_ends() -> None:
    """MQTT 5, 3.1.2.11.2"""
    s = Scenario(max_session_expiry_interval_s=NEVER_EXPIRES_S)
    s.connect(version=5, expiry_s=NEVER_EXPIRES_S).submit("a").lose_connection()
    assert s.session.next_deadline_ms() is None
    assert s.later(10**9).connect(version=5).sees()[-2:] == ["CONNACK present", "PUBLISH 1 a DUP"]


@pytest.mark.parametrize("asked_s", [101, NEVER_EXPIRES_S])
def test_a_session_lives_no_longer_than_allowed_and_the_client_is_told(asked_s: int) -> None:
    """[MQTT-3.1.2-23] of a client that asks for more, in CONNECT or in DISCONNECT."""
    s = Scenario(max_session_expiry_interval_s=100).connect(version=5, expiry_s=asked_s)
    (accepted,) = [command for command in s.last if isinstance(command, AcceptConnection)]
    assert accepted.session_expiry_interval_s == 100
    s.lose_connection()
    assert s.session.next_deadline_ms() == s.now_ms + 100_000
    s.connect(version=5, expiry_s=1).disconnect(expiry_s=asked_s)
    assert s.session.next_deadline_ms() == s.now_ms + 100_000


def test_by_default_no_session_that_a_client_asks_for_is_for_ever() -> None:
    s = Scenario().connect(version=5, expiry_s=NEVER_EXPIRES_S).lose_connection()
    assert s.session.next_deadline_ms() == s.now_ms + 30 * 24 * 3_600_000


def test_a_3_1_1_session_lives_as_long_as_configured() -> None:
    s = Scenario(session_expiry_interval_s=100).connect(expiry_s=None).lose_connection()
    assert s.session.next_deadline_ms() == s.now_ms + 100_000
    s.after(100)
    assert s.session.is_empty


def test_a_session_that_is_purged_ends_as_one_that_expires() -> None:
    s = Scenario(max_inflight=1).connect(version=5, expiry_s=NEVER_EXPIRES_S, will=will("gone", delay_s=60))
    s.submit("a", "b").lose_connection().purge()
    assert s.session.is_empty
    assert s.outcomes == {"a": Outcome.SESSION_ENDED, "b": Outcome.SESSION_ENDED}
    assert [name for name, _ in s.dead_letters] == ["a", "b"]
    assert s.uplink == ["gone"]
    assert "session_ended" in s.ledger
    assert s.connect(version=5).sees()[-1] == "CONNACK"


def test_a_client_that_is_connected_when_its_session_is_purged_keeps_it() -> None:
    s = Scenario().connect().submit("a")
    s.sees()
    s.purge()
    assert (s.sees(), s.outcomes, s.packet_ids) == ([], {}, [1])
    assert s.ledger[-1] == "refused"


def test_what_waits_for_a_client_that_never_came_is_purged_too() -> None:
    assert Scenario().submit("a").purge().outcomes == {"a": Outcome.SESSION_ENDED}
    nobody = Scenario().purge()
    assert nobody.session.is_empty
    assert nobody.ledger == []


@pytest.mark.promise("client-never-connected")
def test_messages_for_an_unknown_client_end_an_interval_after_the_last() -> None:
    s = Scenario(session_expiry_interval_s=100).submit("a").after(50).submit("b").after(99.999)
    assert s.outcomes == {}
    s.after(0.001)
    assert s.outcomes == {"a": Outcome.SESSION_ENDED, "b": Outcome.SESSION_ENDED}
    assert "session_ended" not in s.ledger  # there was no session to end
    s.submit("c")
    assert s.session.next_deadline_ms() == s.now_ms + 100_000  # counts anew


def test_messages_for_an_unknown_client_keep_their_time_to_live() -> None:
    s = Scenario(session_expiry_interval_s=100)
    s.submit("a", expires_at_ms=s.now_ms + 120_000).after(90).submit("b").after(30)
    assert s.outcomes == {"a": Outcome.EXPIRED}
    assert s.queued == ["b"]


def test_a_message_that_was_not_taken_keeps_no_queue_alive() -> None:
    s = Scenario(session_expiry_interval_s=100, max_mqueue_len=1, overflow=Overflow.REJECT).submit("a", explicit_id=True)
    s.after(60).submit("b").submit("a", explicit_id=True)
    s.handle(MessageReturned(message=message("c")))
    s.after(40)
    assert s.outcomes == {"a": Outcome.SESSION_ENDED, "b": Outcome.MAXLEN, "c": Outcome.MAXLEN}


def test_a_returned_dead_letter_keeps_the_queue_of_an_unknown_client() -> None:
    s = Scenario(session_expiry_interval_s=100).submit("a").after(60)
    s.handle(MessageReturned(message=message("b")))
    s.after(99)
    assert s.queued == ["a", "b"]


def test_messages_for_an_offline_session_do_not_lengthen_its_life() -> None:
    s = Scenario().connect(expiry_s=100).lose_connection().after(60).submit("a").after(40)
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}


def test_each_connect_says_the_expiry_interval_anew() -> None:
    s = Scenario().connect(version=5, expiry_s=10).connect(version=5, expiry_s=1_000).lose_connection().after(999)
    assert not s.session.is_empty
    assert [a.session_expiry_interval_s for a in s.sent(AcceptConnection)] == [10, 1_000]


def test_a_disconnect_may_change_the_expiry_interval() -> None:
    """MQTT 5, 3.14.2.2.2"""
    s = Scenario().connect(version=5, expiry_s=10).disconnect(expiry_s=1_000)
    assert s.session.next_deadline_ms() == s.now_ms + 1_000_000
    s.connect(version=5, expiry_s=10).disconnect(expiry_s=0)
    assert s.session.is_empty


def test_a_disconnect_cannot_raise_an_expiry_interval_of_0() -> None:
    """MQTT 5, 3.14.2.2.2; the gateway answers 0x82, and the session does not follow."""
    s = Scenario().connect(version=5, expiry_s=0).disconnect(expiry_s=1_000)
    assert s.session.is_empty


# --- takeover ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_a_second_connection_takes_the_session_over(version: int) -> None:
    """[MQTT-3.1.4-3]"""
    s = Scenario().connect(version=version).submit("a").connect(version=version)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "CLOSE 0x8E", "CONNACK present", "PUBLISH 1 a DUP"]
    (close,) = s.sent(CloseConnection)
    assert close.connection_id == 1
    assert s.attempts == {"a": 1}  # the attempt on the first connection had no time


def test_a_takeover_of_a_session_without_expiry_starts_a_new_one() -> None:
    """[MQTT-3.1.2-23]"""
    s = Scenario().connect(version=5, expiry_s=0).submit("a").connect(version=5, expiry_s=0)
    assert s.sees()[-2:] == ["CLOSE 0x8E", "CONNACK"]
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}


# --- events of connections that the session has left ------------------------------------------------------------------------


def test_the_ending_of_an_older_connection_is_ignored() -> None:
    s = Scenario().connect().submit("a").connect()
    s.sees()
    s.lose_connection(connection_id=1)
    assert s.last == ()
    assert s.packet_ids == [1]
    assert s.session.summary().connected


def test_an_acknowledgement_of_an_older_connection_counts() -> None:
    s = Scenario().connect().submit("a").connect()
    s.sees()
    s.puback(1, connection_id=1)
    assert s.sees() == ["WITHDRAW (1,)"]
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_and_its_replay_holds_no_slot_that_another_message_could_have() -> None:
    s = Scenario(max_inflight=1).connect().submit("a", "b").connect()
    assert s.sees()[-1] == "PUBLISH 1 a DUP"
    assert s.puback(1, connection_id=1).sees() == ["WITHDRAW (1,)", "PUBLISH 2 b"]
    assert s.puback(1).puback(2).outcomes == {"a": Outcome.DELIVERED, "b": Outcome.DELIVERED}


def test_but_an_mqtt_5_client_counts_the_replay_until_it_answers_it() -> None:
    s = Scenario().connect(version=5, receive_maximum=1).submit("a", "b").connect(version=5, receive_maximum=1)
    s.sees()
    assert s.puback(1, connection_id=1).sees() == ["WITHDRAW (1,)"]  # [MQTT-3.3.4-9]
    assert s.puback(1).sees() == ["PUBLISH 2 b"]


def test_and_one_that_the_gateway_still_holds_back_is_not_counted() -> None:
    s = Scenario().connect(version=5).submit("a", "b").connect(version=5, receive_maximum=1)
    s.sees()
    assert s.puback(2, connection_id=1).sees() == ["WITHDRAW (2,)"]
    assert s.puback(1).submit("c").sees() == ["PUBLISH 3 c"]


def test_a_second_disconnect_changes_nothing() -> None:
    s = Scenario().connect(version=5, expiry_s=60).lose_connection().after(30).lose_connection().disconnect(expiry_s=0)
    assert s.session.next_deadline_ms() == s.now_ms + 30_000


# --- the order of connections ------------------------------------------------------------------------------------------------


def test_an_older_connect_is_refused_and_told_the_newest() -> None:
    s = Scenario().connect(connection_id=1_000).submit("a")
    s.sees()
    s.connect(connection_id=7)
    (close,) = s.sent(CloseConnection)
    assert (close.connection_id, close.partition, close.sequence, close.newest_connection_id) == (7, PARTITION, 1, 1_000)
    assert s.sees() == ["CLOSE 0x89"]
    assert s.ledger[-1] == "connection_refused"
    assert s.session.connection is not None
    assert s.session.connection.connection_id == 1_000
    s.connect(connection_id=1_001)
    assert s.sees() == ["CLOSE 0x8E", "CONNACK present", "PUBLISH 1 a DUP"]


def test_an_older_connect_is_refused_after_the_newest_has_ended() -> None:
    s = Scenario().connect(connection_id=1_000).lose_connection()
    s.sees()
    s.connect(connection_id=999)
    assert s.sees() == ["CLOSE 0x89"]
    assert not s.session.summary().connected
    assert s.session.next_deadline_ms() == s.now_ms + 3_600_000  # it continues to expire


def test_a_late_clean_start_does_not_end_the_session_of_a_later_connect() -> None:
    """[MQTT-3.1.2-4] The CONNECT was read first (id 1), stood in a stalled gateway, and is in the log last."""
    s = Scenario().connect(connection_id=2).subscribe("t", 2).submit("a", qos=2)
    s.sees()
    s.connect(connection_id=1, clean_start=True, will=will()).lose_connection(connection_id=1)
    assert s.sees() == ["CLOSE 0x89"]
    assert (s.outcomes, s.uplink, len(s.session.outbound.subscriptions)) == ({}, [], 1)
    s.pubrec(1).pubcomp(1)
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_the_same_connect_once_more_changes_nothing() -> None:
    s = Scenario().connect().submit("a")
    s.sees()
    s.connect(connection_id=1)
    assert s.last == ()


def test_two_connections_with_one_id_are_not_both_accepted() -> None:
    s = Scenario().connect(connection_id=5)
    s.handle(ClientConnected(connection_id=5, commands_partition=PARTITION + 1))
    (close,) = s.sent(CloseConnection)
    assert (close.partition, close.newest_connection_id) == (PARTITION + 1, 5)
    assert s.session.summary().connected


@pytest.mark.parametrize(
    "ids", [(1_000, 7), (7, 1_000)], ids=["from a fast clock to a slow one", "from a slow clock to a fast one"]
)
@pytest.mark.promise("gateway-clocks")
def test_no_clock_makes_a_session_forget_what_it_knows(ids: tuple[int, int]) -> None:
    """[MQTT-4.3.3-10] The gateways of a device have different clocks; its next attempt has an id above the one told."""
    s = Scenario()
    for given in ids:
        connection_id = given
        s.connect(connection_id=connection_id)
        for close in s.sent(CloseConnection):
            if close.connection_id == connection_id:
                connection_id = close.newest_connection_id + 1
                s.connect(connection_id=connection_id)
        s.publish(3, "once", dup=given != ids[0], connection_id=connection_id)
        s.subscribe(f"t/{given}", 1, connection_id=connection_id)
        s.lose_connection(connection_id=connection_id)
    assert s.uplink == ["once"]
    assert [x.topic_filter for x in s.session.outbound.subscriptions] == [f"t/{connection_id}" for connection_id in ids]


def test_an_event_above_the_newest_connection_is_of_an_older_session() -> None:
    """A frozen gateway with a fast clock held a session that has ended and was forgotten; it wakes up in the next one."""
    s = Scenario().connect(connection_id=7).subscribe("kept", 1)
    s.publish(3, "of the old session", connection_id=1_000).subscribe("t", 2, connection_id=1_000)
    s.publish(3, "of this one")
    assert s.uplink == ["of the old session", "of this one"]
    assert [x.topic_filter for x in s.session.outbound.subscriptions] == ["kept"]


def test_a_session_that_has_ended_leaves_no_order_behind() -> None:
    """The host may have forgotten it, so it must not matter whether it has."""
    s = Scenario().connect(connection_id=1_000, expiry_s=0).lose_connection()
    assert s.session.is_empty
    s.sees()
    assert s.connect(connection_id=7).sees() == ["CONNACK"]


def test_messages_that_wait_keep_the_order() -> None:
    s = Scenario().connect(connection_id=1_000, expiry_s=0).lose_connection().submit("a")
    s.sees()
    with s.micro_batch():
        s.submit("b").connect(connection_id=1_001, expiry_s=0).lose_connection().submit("c")
    s.sees()
    assert s.connect(connection_id=7).sees() == ["CLOSE 0x89"]


# --- when the host may forget -----------------------------------------------------------------------------------------------


def test_a_session_is_empty_when_nothing_is_left_that_an_event_could_need() -> None:
    s = Scenario()
    assert s.session.is_empty
    s.submit("x", qos=0)
    assert not s.session.is_empty
    s.connect(expiry_s=0)
    assert not s.session.is_empty
    s.disconnect()
    assert s.session.is_empty


def test_the_summary_says_what_people_want_to_know() -> None:
    s = Scenario(max_inflight=1).connect().submit("a").later(5).submit("bb", "ccc")
    summary = s.session.summary()
    assert (summary.connected, summary.inflight, summary.queued, summary.queued_bytes) == (
        True,
        1,
        2,
        len("bb") + len("ccc") + 2 * len("t"),
    )
    assert summary.oldest_unacked_ms == s.now_ms - 5_000


def test_a_stalled_pubrel_closes_an_mqtt_5_connection_too() -> None:
    """[MQTT-4.4.0-1] PUBREL is not resent on a live connection either."""
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5).submit("a", qos=2).pubrec(1)
    s.sees()
    assert s.after(30).sees() == ["CLOSE 0x83"]
    assert s.connect(version=5).sees() == ["CONNACK present", "PUBREL 1"]


def test_a_queue_that_had_dead_letters_is_kept_for_an_hour() -> None:
    s = Scenario(policy=Policy(clients="*", message_ttl_ms=1_000))
    letter = returned("m", accepted_ms=s.now_ms)
    s.handle(letter)
    s.after(1)
    assert s.outcomes == {"m": Outcome.EXPIRED}
    assert s.queued == []
    assert not s.session.is_empty
    s.after(3_598)
    s.handle(letter)
    assert s.ledger.count("returned") == 1, "it is known"
    assert s.session.next_deadline_ms() == s.now_ms + 1_000, "and keeps nothing alive"
    assert s.after(1).session.is_empty


def test_a_session_knows_its_dead_letters_for_an_hour_after_its_end() -> None:
    s = Scenario().connect(expiry_s=0)
    s.handle(returned("m"))
    s.puback(1).after(7_200).disconnect()
    assert not s.session.is_empty
    s.handle(returned("m"))
    assert s.queued == []
    assert s.after(3_600).session.is_empty


def returned(name: str, **fields: Any) -> MessageReturned:
    """A dead letter of another queue."""
    letter = with_death(message(name, **fields), queue="q", reason=Outcome.REJECTED, time_ms=0, exchange="x")
    return MessageReturned(message=letter)


# --- a connection that is over before the engine reads of it -----------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_a_connection_that_is_over_already_gets_no_replay(qos: int) -> None:
    """Devices of an engine that is behind give up and connect again: the engine does nothing for those that have gone."""
    s = Scenario().connect().submit("a", qos=qos).lose_connection()
    s.sees()
    with s.micro_batch():
        s.connect().lose_connection()
    assert s.sees() == ["CONNACK present"]
    assert s.connect().sees() == ["CONNACK present", "PUBLISH 1 a DUP"]
    assert s.attempts == {"a": 1}, "on no connection before there was time to answer"


def test_a_connection_that_was_taken_over_already_gets_no_replay() -> None:
    s = Scenario().connect().submit("a").lose_connection()
    s.sees()
    with s.micro_batch():
        s.connect().connect().lose_connection(2)
    assert s.sees() == ["CONNACK present", "CLOSE 0x8E", "CONNACK present", "PUBLISH 1 a DUP"]


def test_what_the_device_received_is_released_on_the_next_connection_that_lasts() -> None:
    s = Scenario().connect().submit("a", qos=2).pubrec(1).lose_connection()
    s.sees()
    with s.micro_batch():
        s.connect().lose_connection()
    assert s.sees() == ["CONNACK present"]
    assert s.connect().sees() == ["CONNACK present", "PUBREL 1"]


def test_a_connection_that_is_over_when_it_is_read_leaves_no_given_up_message() -> None:
    s = Scenario().connect(version=5, receive_maximum=1).submit("a")
    first = s.connection_id
    with s.micro_batch():
        s.connect(version=5, receive_maximum=1)
        second = s.connection_id
        s.puback(1, connection_id=first).connect(version=5, clean_start=True).lose_connection(connection_id=second)
    assert s.outcomes["a"] is Outcome.DELIVERED
    assert not s.session.outbound.abandoned
    assert s.sees()[-1] == "CONNACK"


# --- what was sent behind a CONNECT, and is read before it ------------------------------------------------------------------


def test_a_clean_start_does_not_end_what_was_sent_behind_it() -> None:
    """The client has CONNACK and SUBACK by then. The session reads messages and events by two topics."""
    s = Scenario().submit("before", accepted_ms=START_MS - 1).submit("behind", accepted_ms=START_MS)
    s.connect(clean_start=True, logged_ms=START_MS)
    assert [line for line in s.sees() if line.startswith("PUBLISH")] == ["PUBLISH 1 behind"]
    assert s.outcomes == {"before": "session_ended"}


def test_nor_does_a_session_that_has_expired() -> None:
    s = Scenario().connect(expiry_s=60).lose_connection()
    s.submit("before", accepted_ms=START_MS - 1).submit("behind", accepted_ms=START_MS)
    expired = ExpiredSession(connection_id=1, left_ms=0, interval_s=60, claimed_ms=START_MS + 3_600_000)
    s.connect(claim=Claim.NEW, expired=expired, logged_ms=START_MS)
    assert [line for line in s.sees() if line.startswith("PUBLISH")] == ["PUBLISH 1 behind"]
    assert s.outcomes == {"before": "session_ended"}


def test_what_is_for_later_and_was_sent_behind_it_stays_too() -> None:
    later = (("deliver-at", b"%d" % (START_MS + 60_000)),)
    s = Scenario().submit("before", accepted_ms=START_MS - 1, headers=later).submit("behind", accepted_ms=START_MS, headers=later)
    s.connect(clean_start=True, logged_ms=START_MS)
    assert [message.message_id for message in s.session.outbound.scheduled] == ["behind"]


def test_what_the_earlier_session_has_sent_ends_with_it() -> None:
    s = Scenario().connect().submit("sent", accepted_ms=START_MS)
    s.connect(clean_start=True, logged_ms=START_MS)
    assert s.outcomes == {"sent": "session_ended"}


def test_a_connect_without_a_time_ends_all_that_waits() -> None:
    s = Scenario().submit("a", accepted_ms=START_MS).connect(clean_start=True)
    assert s.outcomes == {"a": "session_ended"}
