"""protocol.md, section 2: the window, Receive Maximum, Maximum Packet Size, the QoS cap, packet ids."""

import pytest

from state.commands import AcceptConnection, SendPublish
from state.inbound.subscriptions import Subscriptions, topic_matches
from state.model import Outcome, PublishProperties, QoS, Subscription
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings
from tests.scenarios.scenario import CLIENT, Scenario

# --- the window -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_inflight", "receive_maximum", "window"), [(4, 65_535, 4), (32, 3, 3), (0, 5, 5), (2, 2, 2)])
def test_the_window_is_the_smaller_of_max_inflight_and_receive_maximum(
    max_inflight: int, receive_maximum: int, window: int
) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]"""
    s = Scenario(max_inflight=max_inflight).connect(version=5, receive_maximum=receive_maximum)
    s.submit(*"abcdefghij")
    assert len(s.packet_ids) == window
    assert s.sent(AcceptConnection)[0].send_quota == window


def test_a_qos_2_exchange_holds_its_slot_until_pubcomp() -> None:
    """[MQTT-4.9.0-2] the send quota grows by PUBACK, PUBCOMP and refusing PUBREC, not by PUBREC."""
    s = Scenario(max_inflight=1).connect().submit("a", "b", qos=2)
    s.sees()
    assert s.pubrec(1).sees() == ["PUBREL 1"]
    assert s.pubcomp(1).sees() == ["PUBLISH 2 b"]


def test_a_refusing_pubrec_frees_the_slot() -> None:
    """[MQTT-4.9.0-2]"""
    s = Scenario(max_inflight=1).connect(version=5).submit("a", "b", qos=2)
    s.sees()
    assert s.pubrec(1, reason_code=0x99).sees() == ["PUBLISH 2 b"]


def test_a_smaller_receive_maximum_on_resume_lets_the_window_drain_first() -> None:
    """The send quota is never negative; nothing new until the window is below the new limit."""
    s = Scenario(max_inflight=4).connect(version=5).submit(*"abcdef").lose_connection()
    s.sees()
    s.connect(version=5, receive_maximum=2)
    assert s.sent(AcceptConnection)[-1].send_quota == 2  # the gateway meters the replay by it
    assert s.sees() == ["CONNACK present", *(f"PUBLISH {i} {name} DUP" for i, name in enumerate("abcd", start=1))]
    assert s.session.outbound.window.send_quota == 0
    assert s.puback(1, 2).sees() == []
    assert s.puback(3).sees() == ["PUBLISH 5 e"]
    assert s.puback(4).sees() == ["PUBLISH 6 f"]


def test_a_larger_receive_maximum_on_resume_opens_the_window_at_once() -> None:
    s = Scenario(max_inflight=8).connect(version=5, receive_maximum=1).submit(*"abc").lose_connection()
    s.sees()
    s.connect(version=5, receive_maximum=8)
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP", "PUBLISH 2 b", "PUBLISH 3 c"]


def test_prefetch_widens_what_the_gateway_gets_but_not_the_wire() -> None:
    s = Scenario(max_inflight=2, prefetch=3).connect().submit(*"abcdefg")
    assert len(s.packet_ids) == 5
    assert s.sent(AcceptConnection)[0].send_quota == 2


def test_the_clock_of_a_prefetched_message_starts_when_it_reaches_the_wire() -> None:
    s = Scenario(max_inflight=1, prefetch=1).connect().submit("a", "b")
    s.sees()
    s.after(20).puback(1)
    assert s.after(29.999).sees() == []
    assert s.after(0.001).sees() == ["PUBLISH 2 b DUP"]


def test_a_message_that_the_gateway_holds_back_is_not_resent() -> None:
    s = Scenario(max_inflight=1, prefetch=2).connect().submit("a", "b", "c")
    s.sees()
    assert s.after(60).sees() == ["PUBLISH 1 a DUP"] * 2


def test_an_acknowledgement_leaves_the_clocks_of_others_alone() -> None:
    s = Scenario(max_inflight=3, prefetch=1).connect().submit("a").after(10).submit("b", "c", "d")
    s.sees()
    s.after(10).puback(2)  # d reaches the wire; a and c keep their clocks
    assert s.after(10).sees() == ["PUBLISH 1 a DUP"]
    assert s.after(10).sees() == ["PUBLISH 3 c DUP"]
    assert s.after(10).sees() == ["PUBLISH 4 d DUP"]


# --- Maximum Packet Size ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_publish_larger_than_the_maximum_is_a_dead_letter(version: int, qos: int) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    s = Scenario().connect(version=version, maximum_packet_size_bytes=30)
    s.submit("large", payload=b"x" * 40, qos=qos).submit("small", qos=qos)
    assert [p.payload for p in s.sent(SendPublish)] == [b"small"]
    assert s.outcomes["large"] == Outcome.TOO_LARGE
    assert s.dead_letters == [("large", Outcome.TOO_LARGE)]
    assert s.receipt("large").detail == f"the PUBLISH takes {45 + (2 if qos else 0) + (version == 5)} bytes, " + (
        "the client's Maximum Packet Size is 30"
    )


@pytest.mark.parametrize(("version", "size"), [(4, 2 + 3 + 2 + 10), (5, 2 + 3 + 2 + 1 + 10)])
def test_a_publish_of_exactly_the_maximum_is_sent(version: int, size: int) -> None:
    s = Scenario().connect(version=version, maximum_packet_size_bytes=size).submit("a", payload=b"0123456789")
    assert s.packet_ids == [1]
    s = Scenario().connect(version=version, maximum_packet_size_bytes=size - 1).submit("a", payload=b"0123456789")
    assert s.outcomes == {"a": Outcome.TOO_LARGE}


def test_a_smaller_maximum_packet_size_on_resume_applies_to_the_replay() -> None:
    """[MQTT-3.1.2-25]"""
    s = Scenario().connect(version=5).submit("a", payload=b"x" * 40).submit("b").lose_connection()
    s.sees()
    s.connect(version=5, maximum_packet_size_bytes=30)
    assert s.sees() == ["CONNACK present", "PUBLISH 2 b DUP"]
    assert s.outcomes == {"a": Outcome.TOO_LARGE}


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_from_before_the_limit_of_records_was_lowered_ends(version: int) -> None:
    s = Scenario(max_record_bytes=200_000).connect(version=version).submit("large", payload=bytes(198_000)).submit("small")
    assert [p.payload for p in s.sent(SendPublish)] == [b"small"]
    assert s.dead_letters == [("large", Outcome.TOO_LARGE)]
    assert "200000 are allowed now (engine.max_record_bytes)" in s.receipt("large").detail
    s = Scenario(max_record_bytes=200_000).connect(version=version).submit("a", payload=bytes(197_000))
    assert s.packet_ids == [1]


def test_such_a_message_in_the_window_ends_when_it_is_sent_again() -> None:
    s = Scenario(max_record_bytes=0).connect().submit("a", payload=bytes(300_000)).submit("b").lose_connection()
    s.sees()
    s.settings = SessionSettings(max_record_bytes=200_000)
    s.session = decode_session(encode_session(s.session), client_id=CLIENT, settings=s.settings)
    s.connect()
    assert s.sees() == ["CONNACK present", "PUBLISH 2 b DUP"]
    assert s.outcomes == {"a": Outcome.TOO_LARGE}


def test_properties_count_towards_the_packet_size() -> None:
    properties = PublishProperties(
        payload_format=1,
        content_type="text/plain",
        response_topic="back",
        correlation_data=b"id",
        user_properties=(("a", "b"), ("a", "c")),
    )
    s = Scenario().connect(version=5, maximum_packet_size_bytes=40).submit("a", properties=properties)
    assert s.outcomes == {"a": Outcome.TOO_LARGE}
    s = Scenario().connect(version=4, maximum_packet_size_bytes=40).submit("a", properties=properties)
    assert s.packet_ids == [1]  # MQTT 3.1.1 does not see them


# --- the QoS cap ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message_qos", "granted", "sent"), [(2, 1, 1), (2, 0, 0), (1, 2, 1), (0, 2, 0), (1, 0, 0), (2, 2, 2)])
def test_a_matching_subscription_caps_the_qos(message_qos: int, granted: int, sent: int) -> None:
    """[MQTT-3.8.4-8]"""
    s = Scenario().connect().subscribe("t/#", granted).submit("a", qos=message_qos, topic="t/1")
    (publish,) = s.sent(SendPublish)
    assert publish.qos == sent
    assert (publish.packet_id == 0) == (sent == 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_capped_to_qos_0_needs_no_slot(qos: int) -> None:
    s = Scenario(max_inflight=1).connect().subscribe("low/#", 0).submit("a", "b")
    s.sees()
    assert s.submit("x", qos=qos, topic="low/1").sees() == ["PUBLISH qos0 x"]
    assert s.queued == ["b"]
    assert s.outcomes == {"x": Outcome.SENT}


@pytest.mark.parametrize("stored", [True, False])
def test_a_message_capped_to_qos_0_is_stored_offline_like_one(stored: bool) -> None:
    s = Scenario(mqueue_store_qos0=stored, max_inflight=1).connect().subscribe("low/#", 0).lose_connection()
    s.submit("a", "b").submit("x", topic="low/1")
    assert s.outcomes == ({} if stored else {"x": Outcome.OFFLINE})
    s.sees()
    s.connect()
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a", *(["PUBLISH qos0 x"] if stored else [])]


def test_a_message_capped_to_qos_0_ranks_as_one_in_a_full_queue() -> None:
    s = Scenario(max_mqueue_len=2).connect().subscribe("low/#", 0).lose_connection()
    s.submit("x", topic="low/1").submit("a", "b").submit("y", topic="low/1")
    assert s.queued == ["a", "b"]
    assert list(s.outcomes) == ["x", "y"]


def test_the_qos_is_decided_when_the_message_comes() -> None:
    """[MQTT-3.10.4-3] What waits keeps its QoS, so it keeps its place among those of that QoS [MQTT-4.6.0-6]."""
    s = Scenario(max_inflight=1).connect().subscribe("t", 1).submit("a", "b", qos=2).subscribe("t", 0).submit("x", qos=2)
    assert [(p.payload, p.qos) for p in s.sent(SendPublish)] == [(b"a", 1), (b"x", 0)]
    s.unsubscribe("t").puback(1)
    assert [(p.payload, p.qos) for p in s.sent(SendPublish)][2:] == [(b"b", 1)]


def test_a_topic_without_a_matching_subscription_keeps_the_messages_qos() -> None:
    s = Scenario().connect().subscribe("other", 0).submit("a", qos=2)
    assert s.sent(SendPublish)[0].qos == QoS.EXACTLY_ONCE


def test_the_best_of_several_matching_subscriptions_holds() -> None:
    """[MQTT-3.3.4-2]"""
    s = Scenario().connect().subscribe("t/#", 0).subscribe("t/+", 1).submit("a", qos=2, topic="t/1")
    assert s.sent(SendPublish)[0].qos == QoS.AT_LEAST_ONCE


def test_the_same_filter_replaces_the_older_subscription() -> None:
    """[MQTT-3.8.4-3]"""
    s = Scenario().connect().subscribe("t", 0).subscribe("t", 2).submit("a", qos=2)
    assert s.sent(SendPublish)[0].qos == QoS.EXACTLY_ONCE
    assert len(s.session.outbound.subscriptions) == 1


def test_an_unsubscribed_filter_caps_nothing() -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2]"""
    s = Scenario().connect().subscribe("t", 0).unsubscribe("t").unsubscribe("never").submit("a", qos=2)
    assert s.sent(SendPublish)[0].qos == QoS.EXACTLY_ONCE


def test_subscription_options_do_not_apply_to_addressed_messages() -> None:
    s = Scenario().connect(version=5).subscribe("t", 1, no_local=True, retain_handling=2).submit("a", retain=True)
    (publish,) = s.sent(SendPublish)
    assert publish.retain


def test_a_resend_keeps_the_qos_of_the_first_transmission() -> None:
    s = Scenario().connect().submit("a", qos=2).subscribe("t", 0)
    s.lose_connection().connect()
    assert [p.qos for p in s.sent(SendPublish)] == [2, 2]


def test_a_logged_subscription_of_an_older_connection_counts() -> None:
    """The gateway has answered SUBACK already; the next connection of the session relies on it. [MQTT-3.1.2-5]"""
    s = Scenario().connect().connect()
    s.subscribe("t", 0, connection_id=1).submit("a", qos=2)
    assert s.sent(SendPublish)[0].qos == QoS.AT_MOST_ONCE


def test_a_subscription_of_a_session_that_has_ended_does_not_count() -> None:
    """[MQTT-3.1.2-4]"""
    s = Scenario().connect().connect(clean_start=True)
    s.subscribe("t", 0, connection_id=1).submit("a", qos=2)
    assert s.sent(SendPublish)[0].qos == QoS.EXACTLY_ONCE


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/b", "a", False),
        ("a", "a/b", False),
        ("#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("+", "a", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("a/+/c", "a//c", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("A", "a", False),
    ],
)
def test_topic_filters_match_as_the_standard_says(topic_filter: str, topic: str, matches: bool) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-4.7.3-4]"""
    assert topic_matches(topic_filter, topic) is matches
    subscription = Subscription(topic_filter=topic_filter, qos=QoS.AT_MOST_ONCE)
    subscriptions = Subscriptions()
    subscriptions.add(subscription)
    assert (subscriptions.capped_qos(topic, QoS.EXACTLY_ONCE) == 0) is matches


# --- packet ids -------------------------------------------------------------------------------------------------------------


def test_packet_ids_go_round_and_skip_those_in_use() -> None:
    """[MQTT-2.2.1-3] [MQTT-2.2.1-4]"""
    s = Scenario(max_inflight=3).connect().submit("stuck")
    s.session.outbound.packet_ids.last = 32_766
    s.submit("a", "b")
    assert s.packet_ids == [1, 32_767, 2]


def test_a_freed_id_is_not_used_again_at_once() -> None:
    s = Scenario().connect().submit("a").puback(1).submit("b")
    assert s.packet_ids == [2]


def test_packet_ids_go_on_over_connections_and_sessions() -> None:
    s = Scenario().connect().submit("a").connect(clean_start=True).submit("b")
    assert s.packet_ids == [2]


def test_an_id_is_in_use_until_pubcomp() -> None:
    s = Scenario(max_inflight=3).connect().submit("a", qos=2).pubrec(1)
    s.session.outbound.packet_ids.last = 32_767
    s.submit("b")
    assert s.packet_ids == [1, 2]


@pytest.mark.no_cover  # it takes long, and reaches no line of its own
def test_no_more_messages_are_in_flight_than_there_are_packet_ids() -> None:
    """max_inflight = 0 with a prefetch must not ask for a 32,768th id."""
    s = Scenario(max_inflight=0, prefetch=10, max_mqueue_len=0, max_mqueue_bytes=0).connect()
    with s.micro_batch():
        for _ in range(32_769):
            s.submit("m", payload=b"")
    assert len(s.session.outbound.window) == 32_767
    assert len(s.session.outbound.queue) == 2
