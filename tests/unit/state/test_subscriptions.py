"""Tests state/inbound/subscriptions.py alone; tests/spec/test_limits.py has what the QoS cap means for messages."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import UnreadableRecord
from state.inbound.subscriptions import NO_SUBSCRIPTIONS, Subscriptions
from state.model import QoS, Subscription

filters = st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from([levels, [*levels, "#"]]).map("/".join)
) | st.just("#")
topics = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=5).map("/".join)
granted = st.builds(Subscription, topic_filter=filters, qos=st.sampled_from(QoS))


def many(count: int = 1_000) -> Subscriptions:
    """Returns so many subscriptions that their decoded form is cached."""
    subscriptions = Subscriptions()
    for number in range(count):
        subscriptions.add(Subscription(topic_filter=f"dev/{number}/" + ("+" if number % 2 else "state"), qos=QoS.AT_LEAST_ONCE))
    return subscriptions


def matches(topic_filter: list[str], topic: list[str]) -> bool:
    """MQTT 5, 4.7.1, level by level: how a scan of all filters would do it."""
    if not topic_filter or not topic:
        return topic_filter in ([], ["#"]) and not topic
    if topic_filter[0] == "#":
        return True
    return topic_filter[0] in ("+", topic[0]) and matches(topic_filter[1:], topic[1:])


@given(st.lists(granted, max_size=12), st.lists(filters, max_size=6), topics, st.sampled_from(QoS))
def test_the_cap_is_that_of_a_scan_of_all_filters(added: list[Subscription], discarded: list[str], topic: str, qos: QoS) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-3.3.4-2]"""
    subscriptions = Subscriptions()
    expected: dict[str, Subscription] = {}
    for subscription in added:
        subscriptions.add(subscription)
        expected[subscription.topic_filter] = subscription
    for topic_filter in discarded:
        subscriptions.discard(topic_filter)
        expected.pop(topic_filter, None)
    fits = [
        one.qos
        for one in expected.values()
        if matches(one.topic_filter.split("/"), topic.split("/"))
        and not (topic[0:1] == "$" and one.topic_filter[0:1] in "+#" and one.topic_filter)
    ]
    again = Subscriptions(subscriptions.encoded())
    for same in (subscriptions, again):
        assert list(same) == list(expected.values())
        assert same.capped_qos(topic, qos) == min([qos, max(fits, default=qos)])
    assert again.encoded() == subscriptions.encoded() == msgspec.msgpack.encode(tuple(expected.values()))


def test_what_is_not_needed_is_not_read() -> None:
    """Bytes that nobody could read pass through."""
    subscriptions = Subscriptions(b"\xc1")
    assert subscriptions.encoded() == b"\xc1"
    with pytest.raises(UnreadableRecord, match="the subscriptions of a session are damaged"):
        subscriptions.capped_qos("a", QoS.AT_LEAST_ONCE)


def test_a_change_of_one_session_changes_no_other() -> None:
    encoded = many().encoded()
    one, other = Subscriptions(encoded), Subscriptions(encoded)
    assert one.capped_qos("dev/1/x", QoS.EXACTLY_ONCE) == other.capped_qos("dev/1/x", QoS.EXACTLY_ONCE) == QoS.AT_LEAST_ONCE
    one.discard("dev/1/+")
    one.add(Subscription(topic_filter="dev/2/state", qos=QoS.AT_MOST_ONCE))
    assert (one.capped_qos("dev/1/x", QoS.EXACTLY_ONCE), one.capped_qos("dev/2/state", QoS.EXACTLY_ONCE)) == (2, 0)
    assert (other.capped_qos("dev/1/x", QoS.EXACTLY_ONCE), other.capped_qos("dev/2/state", QoS.EXACTLY_ONCE)) == (1, 1)
    assert other.encoded() == encoded != one.encoded()


def test_the_same_subscription_again_changes_nothing() -> None:
    encoded = many().encoded()
    subscriptions = Subscriptions(encoded)
    subscriptions.add(Subscription(topic_filter="dev/1/+", qos=QoS.AT_LEAST_ONCE))
    subscriptions.discard("never")
    assert subscriptions.encoded() is encoded


def test_the_last_filter_with_its_wildcards_leaves_none_behind() -> None:
    subscriptions = Subscriptions()
    for topic_filter in ("a/+", "b/+", "#"):
        subscriptions.add(Subscription(topic_filter=topic_filter, qos=QoS.AT_MOST_ONCE))
    for topic_filter in ("#", "a/+"):
        subscriptions.discard(topic_filter)
    assert (subscriptions.capped_qos("a/x", QoS.AT_LEAST_ONCE), subscriptions.capped_qos("b/x", QoS.AT_LEAST_ONCE)) == (1, 0)


def test_cleared_is_as_new() -> None:
    subscriptions = many(3)
    assert len(subscriptions) == 3
    subscriptions.clear()
    assert (len(subscriptions), subscriptions.encoded()) == (0, NO_SUBSCRIPTIONS)


def test_topic_filters_are_told_up_to_a_size_in_bytes() -> None:
    subscriptions = Subscriptions()
    for topic_filter in ("ü/#", "a"):
        subscriptions.add(Subscription(topic_filter=topic_filter, qos=QoS.AT_MOST_ONCE))
    assert subscriptions.topic_filters(5) == ("ü/#", "a")
    assert subscriptions.topic_filters(4) is None
