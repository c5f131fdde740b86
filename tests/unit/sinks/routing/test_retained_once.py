"""sinks.routing.retained_once: which times are known."""

from sinks.routing import retained_once
from sinks.routing.retained_once import RecentlyRetained, RecentSubscriptions


def behind(recent: RecentSubscriptions, client_id: str, time_ms: int) -> list[str]:
    return sorted(recent.began_behind(client_id, time_ms))


def test_subscriptions_that_began_after_a_time_are_found() -> None:
    recent = RecentSubscriptions()
    recent.began("c", ["a", "b"], 1)
    recent.began("c", ["c"], 5)
    assert [behind(recent, "c", time_ms) for time_ms in (0, 1, 4, 5)] == [["a", "b", "c"], ["c"], ["c"], []]
    assert behind(recent, "other", 0) == []


def test_the_newest_time_of_a_filter_holds() -> None:
    """It has been unsubscribed in between."""
    recent = RecentSubscriptions()
    recent.began("c", ["a", "b"], 1)
    recent.began("c", ["a"], 5)
    assert [behind(recent, "c", time_ms) for time_ms in (0, 1, 5)] == [["a", "b"], ["a"], []]


def test_clients_that_subscribed_last_are_remembered() -> None:
    recent = RecentSubscriptions(most=3)
    recent.began("a", ["x"], 1)
    recent.began("b", ["x"], 1)
    recent.began("a", ["y"], 1)
    assert [behind(recent, client, 0) for client in "ab"] == [["x", "y"], ["x"]]
    recent.began("c", ["x"], 1)
    assert [behind(recent, client, 0) for client in "abc"] == [["x", "y"], [], ["x"]]
    recent.began("c", ["x", "y"], 1)
    assert [behind(recent, client, 0) for client in "abc"] == [[], [], ["x", "y"]]


def test_a_client_with_many_filters_is_remembered_alone() -> None:
    recent = RecentSubscriptions(most=2)
    recent.began("a", ["x"], 1)
    recent.began("b", ["1", "2", "3"], 1)
    assert [behind(recent, client, 0) for client in "ab"] == [[], ["1", "2", "3"]]


def test_the_newest_subscription_says_whether_what_is_retained_matters() -> None:
    recent = RecentSubscriptions()
    recent.began("b", ["x"], 100_000)
    recent.began("a", ["x"], 50_000)
    between_ms = retained_once._MOST_BETWEEN_MS
    assert [recent.retained_matters(first_ms) for first_ms in (0, 99_999 + between_ms, 100_000 + between_ms)] == [
        True,
        True,
        False,
    ]


def test_publications_that_were_retained_last_are_remembered() -> None:
    recent = RecentlyRetained(most=2)
    for number in (1, 2, 3):
        recent.add(b"%d" % number, number * 10)
    assert [recent.time_ms(b"%d" % number) for number in (1, 2, 3)] == [None, 20, 30]
