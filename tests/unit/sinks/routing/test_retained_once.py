"""sinks.routing.retained_once: which times are known."""

from sinks.routing import retained_once
from sinks.routing.retained_once import RecentlyRetained, RecentSubscriptions


def test_the_newest_time_of_a_filter_holds() -> None:
    recent = RecentSubscriptions()
    recent.began("c", ["a", "b"], 1)
    recent.began("c", ["a"], 5)
    assert recent.of("c") == {"a": 5, "b": 1}
    assert recent.of("other") is None


def test_clients_that_subscribed_last_are_remembered() -> None:
    recent = RecentSubscriptions(most_clients=2)
    for client in ("a", "b", "a", "c"):
        recent.began(client, ["x"], 1)
    assert [recent.of(client) is not None for client in "abc"] == [True, False, True]


def test_the_filters_of_a_client_that_it_subscribed_last_are_remembered() -> None:
    most = retained_once._MOST_FILTERS_OF_CLIENT
    recent = RecentSubscriptions()
    for number in range(most + 1):
        recent.began("c", [f"f/{number}"], 1)
    known = recent.of("c")
    assert known is not None
    assert (len(known), "f/0" in known, f"f/{most}" in known) == (most, False, True)


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
