"""sinks.mqtt.system_topics"""

import pytest

from sinks.mqtt.system_topics import SystemPublication, SystemTopics, process_name
from sinks.routing.routing_tables import RoutingTables
from state.model import QoS, Subscription
from state.records.messages import EXPIRATION
from state.records.subscriptions import SubscriptionList, encode_subscriptions

ROOT = "$SYS/broker"


class Watcher:
    """A client that subscribes, and gateways that read the same tables."""

    def __init__(self, topic_filter: str = "$SYS/#") -> None:
        self.tables = RoutingTables()
        self._version = 0
        self.subscribe(topic_filter)

    def subscribe(self, *topic_filters: str) -> None:
        self._version += 1
        subscriptions = tuple(Subscription(topic_filter=each, qos=QoS.AT_LEAST_ONCE) for each in topic_filters)
        new = SubscriptionList(connection_id=1, version=self._version, subscriptions=subscriptions)
        self.tables.read_list(b"watcher", encode_subscriptions(new), [])

    def gateway(self, name: str, *, interval_ms: int = 60_000, began_s: float = 0.0) -> SystemTopics:
        return SystemTopics(self.tables, name=name, version="1.2", interval_ms=interval_ms, began_s=began_s)

    def retain(self, publications: list[SystemPublication]) -> None:
        for each in publications:
            self.tables.read_retained(each.key, each.value, each.headers, timestamp_ms=0)


def said(publications: list[SystemPublication]) -> dict[str, str]:
    return {each.key.decode().removeprefix(f"{ROOT}/"): each.value.decode() for each in publications}


def due(gateway: SystemTopics, now_s: float, *, connected: int = 0, is_first: bool = False) -> list[SystemPublication]:
    return gateway.due(now_s, int(now_s * 1_000), connected=connected, is_first=is_first)


@pytest.mark.parametrize("topic_filter", ["#", "+/broker/#", "$SYSTEM/#", "$other"])
def test_nothing_is_published_while_nobody_subscribes(topic_filter: str) -> None:
    assert due(Watcher(topic_filter).gateway("a"), 100.0, is_first=True) == []


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$SYS/broker/uptime", "$share/group/$SYS/+/version"])
def test_the_first_subscriber_need_not_wait_for_an_interval(topic_filter: str) -> None:
    gateway = Watcher(topic_filter).gateway("a", began_s=90.0)
    first = due(gateway, 100.0, connected=3, is_first=True)
    assert said(first) == {"gateways/a/clients/connected": "3", "gateways/a/uptime": "10 seconds"}
    assert due(gateway, 101.0, is_first=True) == []
    later = due(gateway, 102.0, connected=4, is_first=True)
    assert said(later) == {"version": "inflight 1.2", "uptime": "12 seconds", "clients/connected": "4"}
    assert due(gateway, 159.0, is_first=True) == []
    assert said(due(gateway, 160.0)).keys() == said(first).keys()


def test_one_gateway_adds_up_the_numbers_of_all() -> None:
    watcher = Watcher()
    first, second = watcher.gateway("a", began_s=50.0), watcher.gateway("b", began_s=20.0)
    for gateway, connected in (first, 3), (second, 7):
        watcher.retain(due(gateway, 100.0, connected=connected))
    assert said(due(first, 102.0, connected=4, is_first=True)) == {
        "version": "inflight 1.2",
        "uptime": "80 seconds",
        "clients/connected": "11",
    }
    assert due(second, 102.0, connected=7) == []


def test_a_gateway_that_is_gone_is_not_counted() -> None:
    watcher = Watcher()
    first, second = watcher.gateway("a"), watcher.gateway("b")
    watcher.retain(gone := due(second, 0.0, connected=7))
    assert {dict(each.headers)[EXPIRATION] for each in gone} == {b"180000"}
    due(first, 178.0)
    assert said(due(first, 180.0, connected=1, is_first=True))["clients/connected"] == "1"


def test_what_is_no_number_is_not_counted() -> None:
    watcher = Watcher()
    watcher.retain([SystemPublication(f"{ROOT}/gateways/x/clients/connected".encode(), b"many", [("mqtt-topic", b"t")])])
    first = watcher.gateway("a")
    due(first, 0.0)
    assert said(due(first, 2.0, connected=1, is_first=True))["clients/connected"] == "1"


def test_publishing_ends_with_the_last_subscriber_and_begins_at_once() -> None:
    watcher = Watcher()
    gateway = watcher.gateway("a")
    assert due(gateway, 0.0)
    watcher.subscribe("plant/#")
    assert due(gateway, 60.0) == []
    watcher.subscribe("plant/#", "$SYS/broker/version")
    assert due(gateway, 61.0)


def test_an_interval_of_0_turns_it_off() -> None:
    assert due(Watcher().gateway("a", interval_ms=0), 100.0, is_first=True) == []


def test_a_process_is_one_level_of_a_topic() -> None:
    assert process_name("gateway/1+2#3") == "gateway-1-2-3"
    assert "/" not in process_name(None)
    assert process_name(None) == process_name("")
