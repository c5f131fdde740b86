"""protocol.md, section 8, the session's rules: what it accepts, what it counts, what goes back to a group."""

from typing import Any

import pytest

from state.commands import (
    AcceptConnection,
    AnnounceSubscriptions,
    DeadLetter,
    EndSubscriptions,
    OpenFastPath,
    RecordTransition,
    ReturnToGroup,
    SendPublish,
    SendReceipt,
    Transition,
)
from state.events import Unsubscribed
from state.model import Outcome, QoS, Routing, Subscription
from state.outbound.routing.marks import MAX_SOURCES
from state.records.routing import SourceKind, source_number
from tests.scenarios.scenario import CLIENT, START_MS, UPLINK, Scenario
from tests.spec.fast_path.scenes import FAST, RETRY_S, Y, at, grant

HOUR_S = 3_600
BATCHES = source_number(SourceKind.UPLINK_BATCH, 0, "uplink")
RETAINED = source_number(SourceKind.RETAINED, 0, "subscriptions")
SHARE = "$share/group/t"


def routed(**settings: Any) -> Scenario:
    """A client with a session and no subscription yet."""
    return Scenario(routing=True, **settings).connect()


def subscribed(qos: int = 2, **settings: Any) -> Scenario:
    return routed(**settings).subscribe("t", qos, version=1)


def member(**settings: Any) -> Scenario:
    return routed(**settings).subscribe(SHARE, 2, version=1)


def received(s: Scenario) -> list[str]:
    return [publish.payload.decode() for publish in s.sent(SendPublish)]


def nowhere(s: Scenario) -> list[tuple[str | None, str]]:
    rows = s.sent(RecordTransition)
    return [(row.message_id, row.detail) for row in rows if row.transition is Transition.ROUTED_NOWHERE]


def returned(s: Scenario) -> list[str]:
    return [command.message.message_id for command in s.sent(ReturnToGroup)]


def announced(s: Scenario) -> list[tuple[tuple[int, int], bool]]:
    return [((command.connection_id, command.version), command.is_online) for command in s.sent(AnnounceSubscriptions)]


def ended(s: Scenario) -> list[int]:
    return [command.connection_id for command in s.sent(EndSubscriptions)]


# --- what the session accepts -----------------------------------------------------------------------------------------------


def test_a_routed_message_is_delivered_as_any_other() -> None:
    s = subscribed().route("a", mark=1, entry=(1, 1)).puback(1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]
    assert s.ledger == ["connected", "accepted", "sent", "finished"]


def test_a_routed_message_waits_for_a_client_that_is_offline() -> None:
    s = subscribed().lose_connection().route("a", mark=1, entry=(1, 1))
    assert s.queued == ["a"]
    assert s.connect().sees() == ["CONNACK", "CONNACK present", "PUBLISH 1 a"]


def test_the_first_message_after_a_subscribe_overtakes_it() -> None:
    """The session has not read the SUBSCRIBE by which the matcher has found the client."""
    s = routed().route("a", mark=1, entry=(1, 1), qos=2, granted=1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]
    assert s.sent(SendPublish)[0].qos is QoS.AT_LEAST_ONCE


def test_the_matcher_decides_on_the_qos_when_it_knows_the_same_list() -> None:
    s = routed().subscribe("t", 2, version=1).subscribe("#", 0, version=2)
    s.route("a", mark=1, entry=(1, 2), qos=1)
    s.route("b", mark=2, entry=(1, 3), qos=2)
    assert [publish.qos for publish in s.sent(SendPublish)] == [1, 2], "own filters lower nothing"


def test_a_newer_subscription_of_the_session_lowers_the_qos() -> None:
    s = subscribed(2).subscribe("t", 1, version=2).route("a", mark=1, entry=(1, 1), qos=2).route("b", mark=2, entry=(1, 1), qos=0)
    assert [publish.qos for publish in s.sent(SendPublish)] == [1, 0]


@pytest.mark.promise("unsuback")
def test_a_client_that_has_unsubscribed_meanwhile_gets_nothing() -> None:
    s = subscribed().unsubscribe("t", version=2).route("a", mark=1, entry=(1, 1))
    assert received(s) == []
    assert nowhere(s) == [("a", "the client has unsubscribed")]
    assert (s.outcomes, s.dead_letters) == ({}, [])


def test_another_filter_that_matches_keeps_a_message() -> None:
    s = subscribed().subscribe("+", 1, version=2).unsubscribe("t", version=3).route("a", mark=1, entry=(1, 1))
    assert received(s) == ["a"]


def test_a_message_carries_the_identifiers_of_its_subscriptions() -> None:
    """[MQTT-3.3.4-3]"""
    s = subscribed().route("a", mark=1, entry=(1, 1), ids=(7, 9)).submit("b")
    assert [publish.subscription_ids for publish in s.sent(SendPublish)] == [(7, 9), ()]
    s.lose_connection().connect()
    assert [publish.subscription_ids for publish in s.sent(SendPublish)[2:]] == [(7, 9), ()], "a replay, too"


def test_subscription_identifiers_count_to_the_size_of_a_packet() -> None:
    s = Scenario(routing=True, routed_receipts=True).connect(version=5, maximum_packet_size_bytes=20)
    s.route("a", mark=1, ids=(1,) * 4).route("b", mark=2, ids=(1,) * 9)
    assert s.outcomes == {"b": Outcome.TOO_LARGE}


def test_a_routed_message_has_a_receipt_only_if_asked_for() -> None:
    assert subscribed().route("a", mark=1, entry=(1, 1)).puback(1).sent(SendReceipt) == []
    assert subscribed(routed_receipts=True).route("a", mark=1, entry=(1, 1)).puback(1).outcomes == {"a": Outcome.DELIVERED}


def test_a_routed_message_that_dies_is_a_dead_letter_without_routing() -> None:
    s = subscribed().route("a", mark=1, entry=(1, 1)).puback(1, reason_code=0x87)
    assert s.dead_letters == [("a", Outcome.REJECTED)]
    assert [letter.message.routing for letter in s.sent(DeadLetter)] == [None]


def test_an_id_that_a_backend_chose_is_recognised_over_publications() -> None:
    s = subscribed().route("a", mark=1, entry=(1, 1), is_named=True).route("a", mark=2, entry=(1, 1), is_named=True)
    s.route("b", mark=3, entry=(1, 1)).route("b", mark=4, entry=(1, 1))
    assert received(s) == ["a", "b", "b"]
    assert s.ledger.count("finished") == 1, "the duplicate"


# --- no session -------------------------------------------------------------------------------------------------------------


def test_a_routed_message_opens_no_session() -> None:
    s = Scenario(routing=True).route("a", mark=1, entry=(0, 0))
    assert s.ledger == ["routed_nowhere"]
    assert s.session.is_empty
    assert s.session.next_deadline_ms() is None


def test_a_message_for_a_session_that_has_ended_is_counted() -> None:
    s = subscribed().connect(clean_start=True, expiry_s=0).disconnect().route("a", mark=1, entry=(1, 1))
    assert nowhere(s) == [("a", "the client has no session")]
    assert s.queued == []
    assert (s.outcomes, s.dead_letters) == ({}, [])


def test_a_message_of_the_session_before_is_counted_after_a_clean_start() -> None:
    """The client subscribes again before the message is read, and not before it was matched."""
    s = subscribed().connect(clean_start=True).subscribe("t", 2, version=1).route("a", mark=1, entry=(1, 1))
    assert (received(s), nowhere(s)) == ([], [("a", "the client had subscribed in an earlier session")])
    s.lose_connection().connect().route("b", mark=2, entry=(2, 1))
    assert received(s) == ["b"], "of an earlier connection of the same session"


def test_routed_messages_do_not_prolong_the_wait_of_others() -> None:
    s = Scenario(routing=True, session_expiry_interval_s=100).submit("direct").later(60)
    s.route("a", mark=1, entry=(0, 0)).after(40)
    assert s.outcomes == {"direct": Outcome.SESSION_ENDED}


# --- once -------------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("routed-once")
def test_a_copy_after_a_crash_of_the_matcher_is_ignored() -> None:
    s = subscribed().route("a", mark=5, entry=(1, 1), qos=2).route("b", mark=6, entry=(1, 1), qos=2)
    s.pubrec(1).pubcomp(1)
    rows = len(s.ledger)
    s.route("a", mark=5, entry=(1, 1), qos=2).route("b", mark=6, entry=(1, 1), qos=2)
    assert (received(s), len(s.ledger)) == (["a", "b"], rows)
    assert received(s.route("c", mark=7, entry=(1, 1))) == ["a", "b", "c"]


def test_marks_of_one_source_say_nothing_about_another() -> None:
    s = subscribed().route("a", mark=5, entry=(1, 1)).route("b", mark=1, entry=(1, 1), source=UPLINK + 8)
    assert received(s) == ["a", "b"]


@pytest.mark.parametrize("source", [BATCHES, RETAINED])
def test_messages_with_one_mark_are_told_apart_by_their_ids(source: int) -> None:
    s = subscribed().route("a", "b", "a", mark=5, entry=(1, 1), source=source)
    assert received(s) == ["a", "b"]
    s.route("old", mark=4, entry=(1, 1), source=source).route("a", mark=6, entry=(1, 1), source=source)
    assert received(s) == ["a", "b", "a"]
    s.route("b", mark=6, entry=(1, 1), source=source).route("b", mark=6, entry=(1, 1), source=source)
    assert received(s) == ["a", "b", "a", "b"]


def test_of_too_many_sources_the_least_recently_used_is_dropped() -> None:
    s = subscribed(max_inflight=0)
    for number in range(MAX_SOURCES):
        s.route(f"m{number}", mark=5, entry=(1, 1), source=UPLINK + 8 * number)
    s.route("again", mark=6, entry=(1, 1)).route("new", mark=1, entry=(1, 1), source=BATCHES)
    assert len(s.session.outbound.routing.marks.newest) == MAX_SOURCES
    known = len(received(s))
    s.route("copy", mark=6, entry=(1, 1)).route("copy", mark=5, entry=(1, 1), source=UPLINK + 16)
    assert len(received(s)) == known
    s.route("copy", mark=5, entry=(1, 1), source=UPLINK + 8)
    assert received(s)[known:] == ["copy"]


def test_digests_of_a_source_that_is_dropped_are_dropped() -> None:
    s = subscribed(max_inflight=0).route("a", mark=5, entry=(1, 1), source=BATCHES)
    for number in range(MAX_SOURCES):
        s.route(f"m{number}", mark=5, entry=(1, 1), source=UPLINK + 8 * number)
    assert s.session.outbound.routing.marks.digests == {}


def test_a_copy_of_a_message_of_the_session_before_is_ignored_too() -> None:
    s = subscribed().route("a", mark=5, entry=(1, 1), qos=2).pubrec(1).pubcomp(1).connect(clean_start=True).subscribe("t", 2)
    assert received(s.route("a", mark=5, entry=(1, 1), qos=2)) == ["a"]


# --- a message that comes before the CONNECT of its connection --------------------------------------------------------------


def test_an_early_message_waits_for_its_connect() -> None:
    s = Scenario(routing=True).route("a", "b", mark=1, entry=(1, 1), source=BATCHES)
    assert s.sees() == []
    assert s.connect(clean_start=True).sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH 2 b"]


def test_an_early_message_outlives_the_clean_start_of_its_connection() -> None:
    s = subscribed().route("old", mark=1, entry=(1, 1)).route("early", mark=2, entry=(3, 1), qos=2)
    s.connect(clean_start=True)
    assert received(s) == ["old"], "it waits for connection 3"
    s.lose_connection().connect(clean_start=True).route("early", mark=2, entry=(3, 1), qos=2)
    assert received(s) == ["old", "early"]
    assert s.dead_letters == [("old", Outcome.SESSION_ENDED)]


def test_an_early_message_of_a_connection_that_was_overtaken_is_counted() -> None:
    s = Scenario(routing=True).route("a", mark=1, entry=(5, 1)).connect(connection_id=6, clean_start=True)
    assert (received(s), nowhere(s)) == ([], [("a", "the client had subscribed in an earlier session")])


def test_an_early_message_with_a_named_id_is_remembered_when_it_is_accepted() -> None:
    s = Scenario(routing=True).route("a", mark=1, entry=(1, 1), is_named=True).connect()
    assert received(s.route("a", mark=2, entry=(1, 1), is_named=True)) == ["a"]


def test_an_early_message_whose_connect_never_comes_ends_with_an_outcome() -> None:
    s = Scenario(routing=True, routed_receipts=True).route("a", mark=1, entry=(7, 1)).later(60).route("b", mark=2, entry=(8, 1))
    s.after(HOUR_S - 61)
    assert s.outcomes == {}
    s.after(1)
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}
    s.after(60)
    assert s.dead_letters == [("a", Outcome.SESSION_ENDED), ("b", Outcome.SESSION_ENDED)]
    assert ended(s) == [7, 8], "the list that named the client is nobody's"
    assert s.session.is_empty


def test_the_list_of_a_session_stays_when_an_early_message_ends() -> None:
    s = subscribed().route("a", mark=1, entry=(7, 1)).after(HOUR_S)
    assert s.dead_letters == [("a", Outcome.SESSION_ENDED)]
    assert ended(s) == []


@pytest.mark.parametrize("limit", [{"max_mqueue_len": 2}, {"max_mqueue_bytes": 250}])
def test_the_limits_of_the_queue_hold_for_early_messages(limit: dict[str, int]) -> None:
    s = Scenario(routing=True, routed_receipts=True, **limit)
    s.route("a", "b", "c", mark=1, entry=(1, 1), source=BATCHES, payload=b"x" * 80)
    assert s.outcomes == {"a": Outcome.MAXLEN}
    assert [early.message.message_id for early in s.session.outbound.routing.early] == ["b", "c"]


def test_without_a_limit_of_the_queue_early_messages_have_none() -> None:
    s = Scenario(routing=True, max_mqueue_len=0).route("a", "b", mark=1, entry=(1, 1), source=BATCHES, payload=b"x" * 2_000_000)
    assert s.connect().sees()[0] == "CONNACK"
    assert s.sees() == []
    assert len(received(s)) == 2


# --- lists ------------------------------------------------------------------------------------------------------------------


def accepted(s: Scenario) -> AcceptConnection:
    command: AcceptConnection = s.sent(AcceptConnection)[-1]
    return command


def test_a_gateway_is_told_the_list_that_it_continues() -> None:
    s = subscribed(1)
    assert (accepted(s).list_connection_id, accepted(s).list_version, accepted(s).subscriptions) == (1, 0, ())
    s.connect()
    own = (Subscription(topic_filter="t", qos=QoS.AT_LEAST_ONCE),)
    assert (accepted(s).list_connection_id, accepted(s).list_version, accepted(s).subscriptions) == (1, 1, own)
    s.connect(clean_start=True)
    assert (accepted(s).list_connection_id, accepted(s).list_version, accepted(s).subscriptions) == (3, 0, ())


def test_without_routing_a_gateway_is_told_as_before() -> None:
    s = Scenario().connect().subscribe("t", 1, version=1).connect().disconnect().purge()
    assert (accepted(s).list_connection_id, accepted(s).list_version, accepted(s).subscriptions) == (0, 0, None)
    assert (announced(s), ended(s), s.session.is_empty) == ([], [], True)


def test_subscriptions_that_are_too_long_are_not_told() -> None:
    s = subscribed(max_subscription_bytes=1_024).subscribe("x" * 2_000, 1, version=2).connect()
    assert (accepted(s).topic_filters, accepted(s).subscriptions) == (None, None)


def test_a_late_subscribe_does_not_lower_the_list() -> None:
    s = routed().connect().subscribe("t", 1, version=1).subscribe("u", 1, connection_id=1, version=9)
    assert s.session.outbound.routing.list_id == (2, 1)


def test_a_subscribe_that_a_later_list_has_overtaken_changes_nothing() -> None:
    """The later list was made without it."""
    s = subscribed().disconnect().connect(connection_id=2).subscribe("t", 1, version=1)
    s.handle(Unsubscribed(connection_id=1, topic_filters=("t",), version=9))
    s.subscribe("u", 2, connection_id=1, version=9)
    assert [(one.topic_filter, one.qos) for one in s.session.outbound.subscriptions] == [("t", QoS.AT_LEAST_ONCE)]


def test_the_end_of_a_session_ends_its_list() -> None:
    s = subscribed().connect(clean_start=True, expiry_s=0)
    assert ended(s) == [], "another one has begun"
    assert ended(s.subscribe("t", 1, version=1).disconnect()) == [2]


def test_the_end_of_a_session_that_never_subscribed_writes_nothing() -> None:
    s = routed().disconnect().purge()
    assert ended(s) == []
    assert s.session.is_empty


def test_a_session_that_has_dropped_all_filters_ends_its_list_too() -> None:
    assert ended(subscribed().unsubscribe("t", version=2).disconnect().purge()) == [1]


def test_a_list_that_outlives_its_session_is_ended_again() -> None:
    s = subscribed().disconnect().purge().route("a", mark=1, entry=(1, 2)).after(60).route("b", mark=2, entry=(1, 2))
    assert ended(s) == [1, 1, 1]


def test_a_client_is_remembered_for_an_hour_after_its_session() -> None:
    s = subscribed().route("a", mark=1, entry=(1, 1)).puback(1).disconnect().purge()
    assert s.session.next_deadline_ms() == START_MS + HOUR_S * 1_000
    s.after(HOUR_S - 1).route("b", mark=2, entry=(1, 1))
    assert nowhere(s) == [("b", "the client has no session")], "its connection is known"
    s.after(1)
    assert s.session.is_empty
    assert s.session.outbound.routing.marks.newest == {}


def test_the_marks_of_a_client_that_is_back_are_kept_for_longer() -> None:
    s = subscribed().disconnect().purge().connect().route("a", mark=1).puback(1).after(2 * HOUR_S)
    assert received(s.route("a", mark=1)) == ["a"]
    assert s.disconnect().purge().session.is_empty


def test_an_early_message_stays_when_the_client_is_forgotten() -> None:
    s = subscribed().disconnect().purge().after(HOUR_S - 10).route("a", mark=1, entry=(2, 1)).after(20)
    assert received(s.connect()) == ["a"]


# --- shared subscriptions ---------------------------------------------------------------------------------------------------


def test_a_shared_subscription_lowers_no_qos_of_direct_messages() -> None:
    s = routed().subscribe("$share/g/t", 0, version=1).subscribe("$share/g/+", 0, version=2).subscribe("$share/g/#", 0, version=3)
    s.submit("a", qos=2).submit("b", qos=2, topic="$share/g/t").unsubscribe("$share/g/+", version=4)
    assert [publish.qos for publish in s.sent(SendPublish)] == [2, 2]


def test_a_member_gets_a_message_of_its_group() -> None:
    s = member().route("a", mark=1, entry=(1, 1), share=SHARE).route("b", mark=2, entry=(1, 0), share=SHARE)
    assert received(s) == ["a", "b"]


def test_a_member_that_has_left_the_group_returns_a_message() -> None:
    s = member().subscribe("t", 2, version=2).unsubscribe(SHARE, version=3).route("a", mark=1, entry=(1, 1), share=SHARE)
    assert returned(s) == ["a"]
    assert nowhere(s) == [("a", f"returned to {SHARE}: the client has unsubscribed")]
    assert (received(s), s.outcomes) == ([], {})


def test_a_session_that_is_no_member_writes_its_list_again() -> None:
    """Kafka has the list of a SUBSCRIBE, or of an earlier session, and the matcher would choose the same client for ever."""
    s = member().unsubscribe(SHARE, version=3).route("a", mark=1, entry=(1, 2), share=SHARE)
    assert announced(s) == [((1, 3), True)]
    s.connect(clean_start=True).route("b", mark=2, entry=(1, 2), share=SHARE)
    assert announced(s)[1:] == [((2, 0), True)]
    s.route("c", mark=3, entry=(1, 2)).lose_connection()
    assert len(announced(s)) == 2, "without a group it costs no more than a record for nobody"


def test_a_member_without_a_session_returns_a_message_once() -> None:
    s = member().disconnect().purge().route("a", mark=1, entry=(1, 1), share=SHARE)
    s.after(HOUR_S - 1).route("a", mark=1, entry=(1, 1), share=SHARE)
    assert returned(s) == ["a"]


def test_without_a_list_to_end_the_return_alone_is_remembered() -> None:
    s = Scenario().route("a", mark=1, entry=(0, 0), share=SHARE).after(60).route("a", mark=1, entry=(0, 0), share=SHARE)
    assert returned(s) == ["a"]
    assert s.after(HOUR_S).session.is_empty


@pytest.mark.promise("shared-subscription")
def test_what_a_member_leaves_behind_goes_back_to_its_group() -> None:
    """[MQTT-4.8.2-5]"""
    s = member(max_inflight=3, routed_receipts=True)
    s.route("one", mark=1, entry=(1, 1), share=SHARE).route("two", mark=2, entry=(1, 1), share=SHARE, qos=2)
    s.route("got", mark=3, entry=(1, 1), share=SHARE, qos=2).pubrec(3)
    s.route("queued", mark=4, entry=(1, 1), share=SHARE).route("queued-2", mark=5, entry=(1, 1), share=SHARE, qos=2)
    s.route("plain", mark=6, entry=(1, 1)).submit("direct").disconnect().purge()
    assert returned(s) == ["one", "queued", "queued-2"]
    assert nowhere(s) == [(name, f"returned to {SHARE}: the session has ended") for name in returned(s)]
    assert s.outcomes == dict.fromkeys(("two", "got", "plain", "direct"), Outcome.SESSION_ENDED)
    assert s.dead_letters == [(name, Outcome.SESSION_ENDED) for name in ("two", "plain", "direct")]


def test_a_message_that_went_back_may_come_to_the_same_client_again() -> None:
    s = member().lose_connection().route("a", mark=1, entry=(1, 1), share=SHARE, is_named=True).purge()
    assert returned(s) == ["a"]
    s.connect().subscribe(SHARE, 2, version=1)
    again = source_number(SourceKind.PUBLICATIONS_BATCH, 0, f"publications {SHARE}")
    assert received(s.route("a", mark=START_MS, entry=(2, 1), share=SHARE, source=again, is_named=True)) == ["a"]


def test_the_id_of_a_message_that_was_never_accepted_need_not_be_forgotten() -> None:
    s = member().unsubscribe(SHARE, version=2).route("a", mark=1, entry=(1, 1), share=SHARE, is_named=True)
    assert returned(s) == ["a"]


def test_an_early_message_of_a_group_goes_back_when_its_connect_never_comes() -> None:
    s = Scenario(routing=True).route("a", mark=1, entry=(7, 1), share=SHARE).after(HOUR_S)
    assert returned(s) == ["a"]
    assert s.dead_letters == []


def small_member() -> Scenario:
    """Its Maximum Packet Size is 60 bytes."""
    return Scenario(routing=True).connect(version=5, maximum_packet_size_bytes=60).subscribe(SHARE, 2, version=1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_is_too_large_for_a_member_goes_to_another(qos: int) -> None:
    """[MQTT-3.1.2-25]"""
    s = small_member().route("a", mark=1, entry=(1, 1), share=SHARE, payload=bytes(100), qos=qos, is_named=True)
    [command] = s.sent(ReturnToGroup)
    assert command.message.routing is not None
    assert command.message.routing.tried == (CLIENT,)
    [(_, detail)] = nowhere(s)
    assert detail.startswith(f"returned to {SHARE}: the PUBLISH takes ")
    assert (received(s), s.outcomes, s.dead_letters) == ([], {}, [])


def test_a_message_that_is_too_large_for_all_members_is_a_dead_letter() -> None:
    s = small_member()
    s.route("a", mark=1, entry=(1, 1), share=SHARE, payload=bytes(100), tried=(CLIENT, "other"))
    s.route("b", mark=2, entry=(1, 1), share=SHARE, payload=bytes(100), tried=tuple("abcdefghijklmnop"))
    assert returned(s) == []
    assert s.dead_letters == [("a", Outcome.TOO_LARGE), ("b", Outcome.TOO_LARGE)]


def test_a_message_that_a_member_may_have_goes_to_no_other() -> None:
    s = member().route("a", mark=1, entry=(1, 1), share=SHARE, payload=bytes(100)).lose_connection()
    s.connect(version=5, maximum_packet_size_bytes=60)
    assert (returned(s), s.dead_letters) == ([], [("a", Outcome.TOO_LARGE)])


def test_a_message_for_a_client_alone_is_too_large_for_all() -> None:
    s = small_member().route("a", mark=1, entry=(1, 1), payload=bytes(100))
    assert (returned(s), s.dead_letters) == ([], [("a", Outcome.TOO_LARGE)])


@pytest.mark.parametrize("reason_code", [0x80, 0x87, 0x97], ids=hex)
def test_a_message_that_a_member_refuses_goes_to_nobody(reason_code: int) -> None:
    """[MQTT-4.8.2-6]"""
    s = member().route("a", mark=1, entry=(1, 1), share=SHARE).puback(1, reason_code=reason_code).disconnect().purge()
    assert (returned(s), s.dead_letters) == ([], [("a", Outcome.REJECTED)])


@pytest.mark.parametrize("reason_code", [0x80, 0x97], ids=hex)
def test_a_routed_message_that_is_refused_is_not_sent_again(reason_code: int) -> None:
    """[MQTT-4.4.0-2] A message that a backend has addressed to the client is (protocol.md, section 2)."""
    s = subscribed().route("a", mark=1, entry=(1, 1)).route("b", mark=2, entry=(1, 1), qos=2)
    s.puback(1, reason_code=reason_code).pubrec(2, reason_code=reason_code).after(RETRY_S)
    assert received(s) == ["a", "b"]
    assert s.dead_letters == [("a", Outcome.REJECTED), ("b", Outcome.REJECTED)]


def test_a_member_announces_that_it_is_offline_and_back() -> None:
    s = member()
    assert announced(s) == [], "its gateway has written the list"
    assert announced(s.lose_connection()) == [((1, 1), False)]
    s.connect()
    assert announced(s)[1:] == [((2, 0), True)]
    assert (accepted(s).list_connection_id, accepted(s).list_version) == (2, 0)
    assert announced(s.subscribe("u", 1, version=1).lose_connection())[2:] == [((2, 1), False)]
    assert [subscription.topic_filter for subscription in s.sent(AnnounceSubscriptions)[-1].subscriptions] == [SHARE, "u"]


def test_a_takeover_announces_the_new_connection_only() -> None:
    assert announced(member().connect()) == [((2, 0), True)]


def test_a_subscribe_that_is_read_late_announces_again_who_is_offline() -> None:
    s = member().lose_connection().subscribe("u", 1, version=2)
    assert announced(s) == [((1, 1), False), ((1, 2), False)]


def test_a_client_without_shared_subscriptions_announces_nothing() -> None:
    s = subscribed().subscribe("x/$share/y", 1, version=2).lose_connection().connect()
    assert announced(s) == []


# --- lists of a connection that is refused ----------------------------------------------------------------------------------


def test_a_session_overrules_the_lists_of_a_connection_that_it_refuses() -> None:
    """The gateway of the late CONNECT may have written an empty list, and one with a subscription."""
    s = subscribed().connect(connection_id=9).connect(connection_id=5, clean_start=True)
    assert announced(s) == [((9, 0), True)]
    assert [subscription.topic_filter for subscription in s.sent(AnnounceSubscriptions)[-1].subscriptions] == ["t"]
    s.route("a", mark=1, entry=(5, 1), topic="late").route("b", mark=2, entry=(9, 0))
    assert (received(s), [name for name, _ in nowhere(s)]) == (["b"], ["a"])
    assert announced(s.connect(connection_id=6, clean_start=True))[1:] == [], "it stands above that already"


def test_a_newer_list_needs_no_repetition_at_a_refusal() -> None:
    s = subscribed().connect(connection_id=9).subscribe("u", 1, version=1).connect(connection_id=5, clean_start=True)
    assert announced(s) == []


def test_a_refusal_after_the_end_of_the_session_ends_the_lists_again() -> None:
    s = subscribed().connect(connection_id=9).disconnect().purge()
    assert ended(s) == [9]
    assert ended(s.connect(connection_id=5, clean_start=True)) == [9, 9]


def test_without_routing_a_refusal_writes_no_list() -> None:
    s = Scenario().connect(connection_id=9).connect(connection_id=5)
    assert announced(s) == []


# --- the fast path ----------------------------------------------------------------------------------------------------------


def opened(**settings: Any) -> Scenario:
    """A client with a subscription, whose path is open after offset 0."""
    s = Scenario(routing=True, **settings).connect(capabilities=FAST).subscribe("t", 2, version=1)
    s.route("first", mark=3, entry=(1, 1), at=at(0)).puback(1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 first", "OPEN 0"]
    return s


def test_a_grant_has_the_marks_that_the_session_has_read() -> None:
    s = opened()
    assert grant(s).marks == ((UPLINK, 3),)
    s.submit("direct", at=at(1)).puback(2)
    assert grant(s).marks is None, "unchanged"
    s.route("b", mark=7, entry=(1, 1), at=at(2)).puback(3)
    assert grant(s).marks == ((UPLINK, 7),)
    s.route("c", mark=1, entry=(1, 1), at=at(3), source=BATCHES).puback(4)
    assert grant(s).marks == ((UPLINK, 7), (BATCHES, 1))
    s.route("c", mark=1, entry=(1, 1), at=at(4), source=BATCHES)
    assert (grant(s).after, grant(s).marks) == (at(4), None), "a copy is handled, and changes no mark"


def test_without_routed_messages_a_grant_has_no_marks() -> None:
    s = Scenario(routing=True).connect(capabilities=FAST).submit("a", at=at(0))
    assert [command.marks for command in s.sent(OpenFastPath)] == [None]


def test_a_routed_message_that_was_sent_fast_sets_the_mark() -> None:
    s = opened()
    s.fast_sent("b", Y, at=at(1), previous=0, routing=routing_of(mark=9)).puback(Y)
    s.fast_sent("c", Y + 1, at=at(2), previous=1, routing=routing_of(mark=8)).puback(Y + 1)
    assert s.sees() == []
    s.route("copy of b", mark=9, entry=(1, 1), at=at(3))
    assert s.sees() == ["OPEN 3"]
    s.lose_connection().connect(capabilities=FAST)
    assert grant(s).marks == ((UPLINK, 9),)


def routing_of(*, mark: int) -> Routing:
    return Routing(source=UPLINK, mark=mark, connection_id=1, version=1, qos=QoS.AT_LEAST_ONCE)


def test_timers_of_a_routed_message_are_those_of_any() -> None:
    s = subscribed().route("a", mark=1, entry=(1, 1)).after(RETRY_S)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH 1 a DUP"]
