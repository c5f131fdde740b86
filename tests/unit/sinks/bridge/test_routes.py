import dataclasses
from typing import Any

import pytest

from sinks.bridge.broker.paho_properties import BrokerLimits
from sinks.bridge.routes import RouteKind, Routes
from sinks.bridge.settings import Acknowledgement, BridgeSettings, PresenceSource


def routes(**changes: Any) -> Routes:
    return Routes(dataclasses.replace(BridgeSettings(), **changes))


def test_only_the_subscription_to_publications_is_shared() -> None:
    assert list(routes().subscriptions(BrokerLimits())) == [
        "devices/+/ack",
        "devices/+/presence",
        "$share/inflight/devices/+/up/#",
    ]


def test_a_broker_without_shared_subscriptions_gets_ordinary_ones() -> None:
    assert "devices/+/up/#" in routes().subscriptions(BrokerLimits(shared_subscriptions=False))
    assert "devices/+/up/#" in routes(uplink_group="").subscriptions(BrokerLimits())


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("devices/d1/ack", (RouteKind.ACKNOWLEDGEMENT, "d1", "devices/d1/ack")),
        ("devices/d1/presence", (RouteKind.PRESENCE, "d1", "devices/d1/presence")),
        ("devices/d1/up/a/b", (RouteKind.UPLINK, "d1", "a/b")),
        ("devices/d1/cmd", None),
        ("devices/d1/x/ack", None),
        ("elsewhere", None),
    ],
)
def test_a_topic_says_what_the_message_is_and_whose(topic: str, expected: object) -> None:
    assert routes().route(topic) == expected


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("$SYS/brokers/+/clients/+/connected", "$SYS/brokers/n@1/clients/d1/connected", True),
        ("$SYS/brokers/+/clients/+/connected", "$SYS/brokers/n@1/clients/d1/disconnected", False),
        ("events/#", "events/a/b", True),
        ("events/#", "events", True),
        ("events/+", "events/a/b", False),
    ],
)
def test_event_topics_may_have_wildcards(topic_filter: str, topic: str, matches: bool) -> None:
    found = routes(presence=PresenceSource.EVENTS, connected_topics=(topic_filter,), disconnected_topics=()).route(topic)
    assert (found is not None and found[0] is RouteKind.CONNECTED) is matches


def test_in_mqtt_3_1_1_the_topic_must_name_the_message_to_acknowledge() -> None:
    with pytest.raises(ValueError, match="message_id"):
        routes(mqtt_version=4)
    routes(mqtt_version=4, topic_template="d/{client_id}/{message_id}/{topic}")
    routes(mqtt_version=4, acknowledgement=Acknowledgement.BROKER)
