"""sinks.mqtt.connection.subscribing"""

import pytest

from sinks.mqtt.access.grant import Grant
from sinks.mqtt.access.topic_patterns import TopicPatterns
from sinks.mqtt.codec.packets import SubAck, Subscribe, Unsubscribe
from sinks.mqtt.connection.handshake import V5, V311
from sinks.mqtt.connection.subscribing import SubscriptionJudge
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode, Subscription


def asked(topic_filter: str, qos: int = 1) -> Subscription:
    return Subscription(topic_filter=topic_filter, qos=QoS(qos))


def subscribe(*subscriptions: Subscription, judge: SubscriptionJudge | None = None) -> tuple[SubAck, tuple[Subscription, ...]]:
    return (judge or SubscriptionJudge({})).subscribe(Subscribe(packet_id=7, subscriptions=subscriptions))[:2]


def test_valid_filters_are_granted_at_the_qos_asked_for() -> None:
    """[MQTT-3.8.4-6] [MQTT-3.8.4-7]"""
    answer, granted = subscribe(asked("a", 0), asked("b/#", 1), asked("+", 2))
    assert answer == SubAck(packet_id=7, reason_codes=(0, 1, 2))
    assert granted == (asked("a", 0), asked("b/#", 1), asked("+", 2))


def test_bad_and_shared_filters_are_refused_one_by_one() -> None:
    """[MQTT-3.9.3-1]"""
    answer, granted = subscribe(asked("a#"), asked("b"), asked("$share/g/b"))
    assert answer.reason_codes == (0x8F, 1, 0x9E)
    assert granted == (asked("b"),)


def test_a_hidden_filter_is_refused_without_a_reason() -> None:
    grant = Grant(hidden=TopicPatterns(("test/nosubscribe",), {}))
    answer, granted = subscribe(asked("test/nosubscribe"), asked("test/#"), judge=SubscriptionJudge({}, grant))
    assert answer.reason_codes == (0x80, 1)
    assert granted == (asked("test/#"),)


def test_subscriptions_of_a_bridge_have_no_local_and_retain_as_published() -> None:
    judge = SubscriptionJudge({}, has_routing=True, is_bridge=True)
    _, (own, shared) = subscribe(asked("#"), asked("$share/g/a"), judge=judge)
    assert (own.no_local, own.retain_as_published) == (True, True)
    assert (shared.no_local, shared.retain_as_published) == (False, True), "No Local is an error there [MQTT-3.8.3-4]"
    assert judge.listed() == (own, shared)


def test_a_bridge_that_subscribes_again_changes_nothing() -> None:
    judge = SubscriptionJudge({}, has_routing=True, is_bridge=True)
    packet = Subscribe(packet_id=7, subscriptions=(asked("#"),))
    assert [judge.subscribe(packet).is_change for _ in range(2)] == [True, False]


def test_a_subscription_identifier_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        SubscriptionJudge({}).subscribe(Subscribe(packet_id=1, subscriptions=(asked("a"),), subscription_id=1))
    assert caught.value.reason_code is ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED


def test_a_shared_subscription_names_a_group_and_a_filter() -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]"""
    valid = ("$share/g/a", "$share/g/+/#", "$share/g//", "$share/$g/$SYS/#")
    invalid = ("$share/g", "$share/", "$share//a", "$share/g/", "$share/g+/a", "$share/#/a", "$share/g/a#", "$share/g/a/b/c/d")
    judge = SubscriptionJudge({}, max_topic_levels=3, has_routing=True)
    answer, granted = subscribe(*(asked(one) for one in (*valid, *invalid)), judge=judge)
    assert answer.reason_codes == (1,) * len(valid) + (0x8F,) * len(invalid)
    assert tuple(one.topic_filter for one in granted) == valid


def test_the_rules_hold_for_the_filter_of_a_shared_subscription() -> None:
    grant = Grant(subscribe=(TopicPatterns(("own/#", "test/#"), {}),), hidden=TopicPatterns(("test/nosubscribe",), {}))
    filters = ("$share/g/own/a", "$share/own/other", "$share/g/#", "$share/g/test/nosubscribe")
    judge = SubscriptionJudge({}, grant, has_routing=True)
    answer, _ = subscribe(*(asked(one) for one in filters), judge=judge)
    assert answer.reason_codes == (1, 0x87, 0x87, 0x80)


def test_unsubscribe_answers_filter_by_filter() -> None:
    """[MQTT-3.11.3-1] [MQTT-3.10.4-6]: as if each filter had come in a packet of its own."""
    judge = SubscriptionJudge({"of an earlier connection": None})
    subscribe(asked("a"), asked("$share/g/a"), judge=judge)
    filters = ("a", "a", "#/a", "$share/g/a", "of an earlier connection", "A")
    answer, valid, _ = judge.unsubscribe(Unsubscribe(packet_id=9, topic_filters=filters))
    assert answer.packet_id == 9
    assert answer.reason_codes == (0, 0x11, 0x8F, 0x11, 0, 0x11)
    assert valid == ("a", "a", "$share/g/a", "of an earlier connection", "A")


def test_resubscribing_does_not_count_twice_for_the_limit() -> None:
    judge = SubscriptionJudge({"kept": None}, max_subscriptions=3)
    answer, granted = subscribe(asked("a"), asked("a", 2), asked("kept", 0), asked("b"), asked("c"), asked("a", 0), judge=judge)
    assert answer.reason_codes == (1, 2, 0, 1, 0x97, 0)
    assert [one.topic_filter for one in granted] == ["a", "a", "kept", "b", "a"]
    judge.unsubscribe(Unsubscribe(packet_id=9, topic_filters=("a",)))
    assert subscribe(asked("c"), asked("a"), judge=judge)[0].reason_codes == (1, 0x97)


def test_filters_that_are_too_long_together_are_refused() -> None:
    judge = SubscriptionJudge({"ü": None}, max_subscription_bytes=10)
    assert subscribe(asked("12345678"), asked("9"), judge=judge)[0].reason_codes == (1, 0x97)
    judge.unsubscribe(Unsubscribe(packet_id=9, topic_filters=("ü",)))
    assert subscribe(asked("9"), asked("0"), asked("x"), judge=judge)[0].reason_codes == (1, 1, 0x97)


def test_a_session_that_is_over_the_limit_gets_no_filter_more() -> None:
    """A session from before the limit keeps its filters."""
    judge = SubscriptionJudge(None, max_subscription_bytes=10)
    assert subscribe(asked("a"), asked("a#"), judge=judge)[0].reason_codes == (0x97, 0x8F)


def test_a_filter_of_too_many_levels_is_refused() -> None:
    judge = SubscriptionJudge({}, max_topic_levels=3)
    assert subscribe(asked("a/b/#"), asked("a/b/c/d"), asked("///"), asked("//"), judge=judge)[0].reason_codes == (
        1,
        0x8F,
        0x8F,
        1,
    )


def test_a_refused_filter_is_0x80_in_mqtt_3_1_1() -> None:
    answer, _ = subscribe(asked("a"), asked("b"), judge=SubscriptionJudge({}, max_subscriptions=1))
    assert V311.encode(answer) == b"\x90\x04\x00\x07\x01\x80"
    assert V5.encode(answer) == b"\x90\x05\x00\x07\x00\x01\x97"


def test_unknown_filters_may_all_exist() -> None:
    judge = SubscriptionJudge(None)
    subscribe(asked("a"), judge=judge)
    answer, *_ = judge.unsubscribe(Unsubscribe(packet_id=9, topic_filters=("a", "b", "+x")))
    assert answer.reason_codes == (0, 0, 0x8F)
