"""sinks.routing.subscription_table: which record of a client holds, and who matches a topic."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.matcher import MQTTMatcher

from sinks.routing.subscription_table import SubscriptionOptions, SubscriptionTable
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList

OPTIONS = SubscriptionOptions(qos=QoS.AT_LEAST_ONCE, no_local=False, retain_as_published=False, identifier=None)


def a_list(connection_id: int, version: int, *filters: str, is_online: bool = True) -> SubscriptionList:
    subscriptions = tuple(Subscription(topic_filter=topic_filter, qos=QoS.AT_LEAST_ONCE) for topic_filter in filters)
    return SubscriptionList(connection_id=connection_id, version=version, subscriptions=subscriptions, is_online=is_online)


def a_table(**filters_by_client: str | Iterable[str]) -> SubscriptionTable:
    """Returns a table with the client's filters, of connection 1."""
    table = SubscriptionTable()
    for client_id, filters in filters_by_client.items():
        assert table.replace(client_id, a_list(1, 0, *([filters] if isinstance(filters, str) else filters)))
    return table


def clients(table: SubscriptionTable, topic: str) -> list[str]:
    return [entry.client_id for entry, _ in table.match(topic).clients]


def groups(table: SubscriptionTable, topic: str) -> dict[tuple[str, str], list[str]]:
    return {
        (found.group, found.topic_filter): [entry.client_id for entry in found.members] for found in table.match(topic).groups
    }


# --- the record that holds ------------------------------------------------------------------------------------------------------


def test_a_list_replaces_the_former_one_as_a_whole() -> None:
    table = a_table(a=["x", "y/+"], b="x")
    assert table.replace("a", a_list(1, 1, "z/#", "x"))
    assert clients(table, "x") == ["a", "b"]
    assert clients(table, "y/1") == []
    assert clients(table, "z") == ["a"]
    entry = table.get("a")
    assert entry is not None
    assert (entry.connection_id, entry.version, list(entry.subscriptions)) == (1, 1, ["x", "z/#"])


@pytest.mark.promise("subscription-survives")
def test_the_highest_list_holds() -> None:
    table = SubscriptionTable()
    assert table.replace("a", a_list(5, 2, "new"))
    for connection_id, version in ((5, 1), (4, 9)):
        assert not table.replace("a", a_list(connection_id, version, "old"))
    assert not table.end("a", 4)
    assert clients(table, "old") == []
    assert clients(table, "new") == ["a"]
    assert table.replace("a", a_list(6, 0))
    assert clients(table, "new") == []


def test_a_copy_of_the_list_changes_nothing() -> None:
    table = a_table(a=["x", "$share/g/x"])
    assert table.replace("a", a_list(1, 0, "x", "$share/g/x"))
    assert clients(table, "x") == ["a"]
    assert groups(table, "x") == {("g", "x"): ["a"]}
    assert (len(table), table.subscription_count) == (1, 2)


def test_the_offline_list_of_a_version_is_the_higher_one() -> None:
    table = SubscriptionTable()
    assert table.replace("a", a_list(5, 2, "$share/g/x", is_online=False))
    assert not table.replace("a", a_list(5, 2, "$share/g/x"))
    (group,) = table.match("x").groups
    assert [member.is_online for member in group.members] == [False]
    assert table.replace("a", a_list(6, 0, "$share/g/x"))
    assert [member.is_online for member in group.members] == [True]


def test_the_options_of_the_newest_list_hold() -> None:
    table = a_table(a="x")
    subscription = Subscription(
        topic_filter="x", qos=QoS.EXACTLY_ONCE, no_local=True, retain_as_published=True, retain_handling=2, identifier=7
    )
    assert table.replace("a", SubscriptionList(connection_id=1, version=1, subscriptions=(subscription,)))
    options = SubscriptionOptions(qos=QoS.EXACTLY_ONCE, no_local=True, retain_as_published=True, identifier=7)
    assert [options for _, options in table.match("x").clients] == [(options,)]
    assert (len(table), table.subscription_count) == (1, 1)


def test_a_late_list_does_not_bring_an_ended_client_back() -> None:
    table = a_table(a=["x", "$share/g/x"], b="x")
    assert table.end("a", 1)
    assert clients(table, "x") == ["b"]
    assert groups(table, "x") == {}
    assert table.get("a") is None
    assert not table.replace("a", a_list(1, 7, "x"))
    assert not table.replace("a", a_list(0, 9, "x"))
    assert not table.end("a", 1)
    assert table.replace("a", a_list(2, 0, "x"))
    assert clients(table, "x") == ["b", "a"]
    assert table.end("a", 3), "the last connection had no list"
    assert not table.replace("a", a_list(2, 1, "x"))


def test_an_end_that_is_read_first_holds_too() -> None:
    table = SubscriptionTable()
    assert table.end("a", 3)
    assert table.end("a", 4)
    assert not table.end("a", 3)
    assert not table.replace("a", a_list(4, 2, "x"))
    assert table.replace("a", a_list(5, 0, "x"))


def test_the_client_that_ended_longest_ago_is_forgotten() -> None:
    table = SubscriptionTable(most_ended=2)
    for client_id in ("a", "b"):
        assert table.end(client_id, 1)
    assert table.end("a", 2)
    assert table.end("c", 1)
    assert not table.replace("a", a_list(2, 0, "x"))
    assert not table.replace("c", a_list(1, 0, "x"))
    assert table.replace("b", a_list(1, 0, "x"))


records = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 2),
        st.none()
        | st.tuples(st.integers(0, 2), st.booleans(), st.sets(st.sampled_from(["x", "+", "x/#", "$share/g/x", "$share/g/+"]))),
    ),
    max_size=12,
)
"""Client, connection id, and version, is_online and filters of a list; None = the client's session has ended."""


@given(records, st.randoms(use_true_random=False))
def test_the_order_of_the_records_makes_no_difference(history: list[Any], random: Any) -> None:
    """A connection has one list for each version."""
    history = list(
        {(client_id, number, new and new[:2]): (client_id, number, new) for client_id, number, new in history}.values()
    )
    assert contents(history) == contents(random.sample(history, len(history)))


def contents(history: list[Any]) -> Any:
    table = SubscriptionTable()
    for client_id, connection_id, new in history:
        if new is None:
            table.end(client_id, connection_id)
        else:
            version, is_online, filters = new
            table.replace(client_id, a_list(connection_id, version, *filters, is_online=is_online))
    held = {entry.client_id: (entry.connection_id, entry.version, entry.is_online, set(entry.subscriptions)) for entry in table}
    assert len(table) == len(held)
    assert table.subscription_count == sum(len(filters) for *_, filters in held.values())
    found = table.match("x")
    matches = {(entry.client_id, len(options)) for entry, options in found.clients}
    return held, matches, {(group.shared_filter, frozenset(m.client_id for m in group.members)) for group in found.groups}


# --- who matches ----------------------------------------------------------------------------------------------------------------


def test_a_client_comes_once_with_all_its_matching_subscriptions() -> None:
    table = a_table(two="a/+", three=["#", "a/+"])
    identified = tuple(
        Subscription(topic_filter=name, qos=QoS.AT_MOST_ONCE, identifier=number)
        for number, name in enumerate(["a/b", "a/+", "#", "c"], 1)
    )
    table.replace("one", SubscriptionList(connection_id=1, version=0, subscriptions=identified))
    found = {
        entry.client_id: sorted(option.identifier or 0 for option in granted) for entry, granted in table.match("a/b").clients
    }
    assert found == {"one": [1, 2, 3], "two": [0], "three": [0, 0]}
    assert sorted(clients(table, "a/b")) == ["one", "three", "two"]


def test_a_topic_that_nobody_has_gives_nothing() -> None:
    found = a_table(a=["x/+", "$share/g/y"]).match("z")
    assert (list(found.clients), found.groups) == ([], ())


def test_a_dollar_topic_needs_a_filter_that_names_it() -> None:
    table = a_table(a="#", b="+/uptime", c="$SYS/#", d="$SYS/+", e="$SYS/uptime", f="$share/g/#", h="$share/g/$SYS/#")
    assert sorted(clients(table, "$SYS/uptime")) == ["c", "d", "e"]
    assert groups(table, "$SYS/uptime") == {("g", "$SYS/#"): ["h"]}
    assert sorted(clients(table, "x/uptime")) == ["a", "b"]


def test_the_table_knows_whether_somebody_subscribes_to_the_server() -> None:
    table = SubscriptionTable()
    for client, topic_filters in ("a", ["#", "$other/x", "$SYSTEM"]), ("b", ["$SYS/#"]), ("c", ["$SYS/#", "$share/g/$SYS/x"]):
        table.replace(client, a_list(1, 0, *topic_filters))
        assert table.has_subscribers_of_the_server == (client != "a")
    for client, is_left in ("b", True), ("c", False):
        table.end(client, 1)
        assert table.has_subscribers_of_the_server == is_left


def test_empty_levels_are_levels() -> None:
    table = a_table(a="/", b="+/+", c="/+", d="+", e="/#", f="//")
    assert sorted(clients(table, "/")) == ["a", "b", "c", "e"]
    assert sorted(clients(table, "//")) == ["e", "f"]
    assert sorted(clients(table, "/x")) == ["b", "c", "e"]


def test_a_number_sign_matches_the_parent_level_too() -> None:
    table = a_table(a="x/#", b="x/y/#", c="+/#", d="#", e="x/+/#")
    assert sorted(clients(table, "x")) == ["a", "c", "d"]
    assert sorted(clients(table, "x/y")) == ["a", "b", "c", "d", "e"]


def test_shared_subscriptions_are_kept_by_group_and_filter() -> None:
    table = a_table(a=["$share/g/x", "$share/h/x", "x"], b=["$share/g/x", "$share/g/+"], c="$share/g/y/#")
    assert groups(table, "x") == {("g", "x"): ["a", "b"], ("h", "x"): ["a"], ("g", "+"): ["b"]}
    assert groups(table, "y") == {("g", "+"): ["b"], ("g", "y/#"): ["c"]}
    assert clients(table, "x") == ["a"]
    assert table.subscription_count == 6
    assert table.replace("a", a_list(1, 1, "$share/g/x"))
    assert groups(table, "x") == {("g", "x"): ["a", "b"], ("g", "+"): ["b"]}
    assert table.end("a", 1)
    assert table.end("b", 1)
    assert groups(table, "x") == {}
    assert groups(table, "y/z") == {("g", "y/#"): ["c"]}


def test_a_member_has_its_options_under_the_whole_filter() -> None:
    (found,) = a_table(a="$share/g/x/+").match("x/y").groups
    assert found.shared_filter == "$share/g/x/+"
    assert [member.subscriptions[found.shared_filter] for member in found.members] == [OPTIONS]


def test_a_topic_that_looks_shared_finds_no_group() -> None:
    found = a_table(a="$share/g/x").match("$share/g/x")
    assert (list(found.clients), found.groups) == ([], ())


def test_filters_that_nobody_has_any_more_cost_a_match_nothing() -> None:
    """The shapes of filters are the only trace that they could leave."""
    table = a_table(a=["x/+", "$share/g/+/y"], b=["x/+", "$share/g/+/y", "$share/h/+/y"])
    assert list(table._shapes.candidates("x/y")) == ["x/y", "x/+", "+/y"]
    assert table.end("a", 1)
    assert list(table._shapes.candidates("x/y")) == ["x/y", "x/+", "+/y"]
    assert table.replace("b", a_list(1, 1, "$share/h/+/y"))
    assert list(table._shapes.candidates("x/y")) == ["x/y", "+/y"]
    assert table.end("b", 1)
    assert list(table._shapes.candidates("x/y")) == ["x/y"]


def test_equal_filters_and_options_are_one_object() -> None:
    table = a_table(**{name: "".join(["fleet/", "+"]) for name in "abc"})
    for version in (1, 2):
        assert table.replace("c", a_list(1, version, "".join(["fleet/", "+"])))
    held = [item for entry in table for item in entry.subscriptions.items() if entry.client_id != "a"]
    assert len({id(key) for key, _ in held}) == len({id(options) for _, options in held}) == 1


# --- the same as paho's matcher -------------------------------------------------------------------------------------------------

NAMES = ("", "a", "$x")
TOPICS = ["/".join(levels) for length in (1, 2, 3) for levels in product(NAMES, repeat=length) if any(levels) or length > 1]
FILTERS = [
    "/".join(levels)
    for length in (1, 2, 3)
    for levels in product((*NAMES, "+", "#"), repeat=length)
    if "#" not in levels[:-1] and (any(levels) or length > 1)
]


def paho_matches(filters: Iterable[str], topic: str) -> list[str]:
    matcher = MQTTMatcher()
    for topic_filter in filters:
        matcher[topic_filter] = topic_filter
    return sorted(matcher.iter_match(topic))


def test_every_short_filter_matches_as_in_pahos_matcher() -> None:
    table = a_table(**{f"client of {topic_filter}": topic_filter for topic_filter in FILTERS})
    for topic in TOPICS:
        assert sorted(client.removeprefix("client of ") for client in clients(table, topic)) == paho_matches(FILTERS, topic)


def test_every_short_shared_filter_matches_as_in_pahos_matcher() -> None:
    table = a_table(a=[f"$share/g/{topic_filter}" for topic_filter in FILTERS])
    for topic in TOPICS:
        assert sorted(found.topic_filter for found in table.match(topic).groups) == paho_matches(FILTERS, topic)


lists_of_clients = st.lists(st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from(FILTERS), max_size=6)), max_size=10)


@given(lists_of_clients, st.sampled_from(TOPICS))
def test_after_any_changes_clients_match_as_in_pahos_matcher(changes: list[tuple[str, set[str]]], topic: str) -> None:
    table, held = SubscriptionTable(), {name: set[str]() for name in "abc"}
    for version, (client_id, filters) in enumerate(changes):
        table.replace(client_id, a_list(1, version, *filters))
        held[client_id] = filters
    expected = {name: len(paho_matches(filters, topic)) for name, filters in held.items()}
    assert {entry.client_id: len(options) for entry, options in table.match(topic).clients} == {
        name: count for name, count in expected.items() if count
    }
