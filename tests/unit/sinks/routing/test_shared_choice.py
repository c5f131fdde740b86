"""sinks.routing.shared_choice: which member of a shared subscription gets a publication."""

from collections import Counter

import pytest

from sinks.routing.settings import SharedStrategy
from sinks.routing.shared_choice import choose_member
from sinks.routing.subscription_table import ClientEntry

PUBLICATIONS = range(1_300)


def member(client_id: str, *, is_online: bool) -> ClientEntry:
    return ClientEntry(client_id=client_id, connection_id=1, version=1, is_online=is_online, subscriptions={})


def chosen(members: list[ClientEntry], strategy: SharedStrategy) -> Counter[str]:
    """Returns how many of one publisher's publications each member gets."""
    return Counter(choose_member(members, strategy, stays_with=b"publisher", number=n).client_id for n in PUBLICATIONS)


@pytest.mark.parametrize("strategy", ["sticky", "round_robin"])
def test_a_group_without_an_online_member_spreads_its_publications(strategy: SharedStrategy) -> None:
    assert chosen([member("a", is_online=False), member("b", is_online=False)], strategy) == {"a": 650, "b": 650}


@pytest.mark.parametrize("strategy", ["sticky", "round_robin"])
def test_a_member_that_is_online_goes_first(strategy: SharedStrategy) -> None:
    assert chosen([member("a", is_online=False), member("b", is_online=True)], strategy) == {"b": 1_300}


def test_a_publisher_stays_with_one_online_member() -> None:
    assert len(chosen([member("a", is_online=True), member("b", is_online=True)], "sticky")) == 1
