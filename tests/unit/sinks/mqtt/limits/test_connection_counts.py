"""sinks.mqtt.limits.connection_counts"""

from typing import Any

from structlog.testing import capture_logs

from sinks.mqtt.limits.connection_counts import ConnectionCounts, Place
from sinks.mqtt.limits.hosts import Hosts
from sinks.mqtt.limits.refusals import LimitRefusals
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.metrics import GatewayCounters


class Door:
    """Who comes in, and who is turned away for another one."""

    def __init__(self, **limits: Any) -> None:
        settings = DeviceLimits(**limits)
        self.counters = GatewayCounters()
        self.counts = ConnectionCounts(settings, Hosts(settings.unlimited_addresses), LimitRefusals(self.counters, lambda: 1_000))
        self.turned_away: list[str] = []

    def enter(self, name: str, address: str = "127.0.0.1") -> Place | None:
        place = self.counts.enter(address)
        if place is not None:
            place.turn_away = lambda: self.turned_away.append(name)
        return place

    def must_enter(self, name: str, address: str = "127.0.0.1") -> Place:
        place = self.enter(name, address)
        assert place is not None
        return place


def test_no_more_sockets_than_max_connections_until_one_is_closed() -> None:
    door = Door(max_connections=2)
    first = door.must_enter("first")
    door.must_enter("second")
    assert door.enter("third") is None
    assert door.counters.limits_reached == {"max_connections": 1}
    door.counts.leave(first)
    door.counts.leave(first)
    door.must_enter("fourth")
    assert door.enter("fifth") is None


def test_an_address_has_its_own_limit_and_ipv6_hosts_are_networks() -> None:
    door = Door(max_connections_per_address=1)
    first = door.must_enter("a", "192.0.2.1")
    assert door.enter("b", "192.0.2.1") is None
    door.must_enter("c", "192.0.2.2")
    door.must_enter("d", "2001:db8::1")
    assert door.enter("e", "2001:db8::2") is None
    assert door.counters.limits_reached == {"max_connections_per_address": 2}
    door.counts.leave(first)
    door.must_enter("f", "192.0.2.1")


def test_the_limit_of_an_address_does_not_hold_for_loopback() -> None:
    door = Door(max_connections_per_address=1)
    for name in "abc":
        door.must_enter(name)


def test_behind_a_proxy_the_address_is_known_later() -> None:
    door = Door(max_connections_per_address=1)
    first, second = door.must_enter("a", ""), door.must_enter("b", "")
    assert door.counts.identify(first, "192.0.2.1")
    assert not door.counts.identify(second, "192.0.2.1")
    door.counts.leave(second)
    assert door.enter("c", "192.0.2.1") is None, "the one that was refused is not counted off"
    door.counts.leave(first)
    door.must_enter("d", "192.0.2.1")


def test_too_many_sockets_without_connect_close_the_oldest() -> None:
    door = Door(max_awaiting_connect=2)
    first = door.must_enter("first")
    door.must_enter("second")
    door.must_enter("third")
    assert door.turned_away == ["first"]
    assert door.counters.limits_reached == {"max_awaiting_connect": 1}
    door.counts.leave(first)
    door.must_enter("fourth")
    assert door.turned_away == ["first", "second"]


def test_who_has_sent_connect_is_not_turned_away() -> None:
    door = Door(max_awaiting_connect=1)
    door.counts.connect_read(door.must_enter("ready"))
    door.must_enter("second")
    door.must_enter("third")
    assert door.turned_away == ["second"]


def test_a_refusal_has_a_line_with_the_limit_and_the_address() -> None:
    door = Door(max_connections_per_address=1)
    door.must_enter("a", "192.0.2.1")
    with capture_logs() as lines:
        door.enter("b", "192.0.2.1")
    assert lines == [
        {"event": "limit_reached", "log_level": "warning", "limit": "max_connections_per_address", "address": "192.0.2.1"}
    ]


def test_other_limits_hold_for_who_comes_from_then_on() -> None:
    door = Door(max_connections=1, max_connections_per_address=5)
    first = door.must_enter("first", "192.0.2.1")
    limits = DeviceLimits(max_connections=3, max_connections_per_address=1)
    door.counts.take(limits, Hosts(limits.unlimited_addresses))
    assert door.enter("second", "192.0.2.1") is None
    door.must_enter("third", "192.0.2.3")
    door.counts.leave(first)
    door.must_enter("fourth", "192.0.2.1")
