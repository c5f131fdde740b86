from typing import Any

import structlog
from structlog.testing import capture_logs

from sinks.log_throttle import RefusalLog
from sinks.mqtt.limits.connection_counts import ConnectionCounts, ConnectionSlot
from sinks.mqtt.limits.hosts import Hosts
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits


class Sockets:
    """Accepts sockets, and records those that are closed for another one."""

    def __init__(self, **limits: Any) -> None:
        settings = DeviceLimits(**limits)
        self.counters = GatewayCounters()
        refusals = RefusalLog(
            self.counters.limits_reached, structlog.get_logger().warning, "limit_reached", "more", label="limit"
        )
        self.counts = ConnectionCounts(settings, Hosts(settings.unlimited_addresses), refusals)
        self.closed: list[str] = []

    def accept(self, name: str, address: str = "127.0.0.1") -> ConnectionSlot | None:
        slot = self.counts.acquire(address)
        if slot is not None:
            slot.close = lambda: self.closed.append(name)
        return slot

    def accepted(self, name: str, address: str = "127.0.0.1") -> ConnectionSlot:
        slot = self.accept(name, address)
        assert slot is not None
        return slot


def test_sockets_are_limited_until_one_is_closed() -> None:
    sockets = Sockets(max_connections=2)
    first = sockets.accepted("first")
    sockets.accepted("second")
    assert sockets.accept("third") is None
    assert sockets.counters.limits_reached == {"max_connections": 1}
    sockets.counts.release(first)
    sockets.counts.release(first)
    sockets.accepted("fourth")
    assert sockets.accept("fifth") is None


def test_an_address_has_its_own_limit_and_ipv6_hosts_are_networks() -> None:
    sockets = Sockets(max_connections_per_address=1)
    first = sockets.accepted("a", "192.0.2.1")
    assert sockets.accept("b", "192.0.2.1") is None
    sockets.accepted("c", "192.0.2.2")
    sockets.accepted("d", "2001:db8::1")
    assert sockets.accept("e", "2001:db8::2") is None
    assert sockets.counters.limits_reached == {"max_connections_per_address": 2}
    sockets.counts.release(first)
    sockets.accepted("f", "192.0.2.1")


def test_the_limit_of_an_address_does_not_hold_for_loopback() -> None:
    sockets = Sockets(max_connections_per_address=1)
    for name in "abc":
        sockets.accepted(name)


def test_behind_a_proxy_the_address_is_known_later() -> None:
    sockets = Sockets(max_connections_per_address=1)
    first, second = sockets.accepted("a", ""), sockets.accepted("b", "")
    assert sockets.counts.identify(first, "192.0.2.1")
    assert not sockets.counts.identify(second, "192.0.2.1")
    sockets.counts.release(second)
    assert sockets.accept("c", "192.0.2.1") is None, "the one that was refused is not counted off"
    sockets.counts.release(first)
    sockets.accepted("d", "192.0.2.1")


def test_too_many_sockets_without_connect_close_the_oldest() -> None:
    sockets = Sockets(max_awaiting_connect=2)
    first = sockets.accepted("first")
    sockets.accepted("second")
    sockets.accepted("third")
    assert sockets.closed == ["first"]
    assert sockets.counters.limits_reached == {"max_awaiting_connect": 1}
    sockets.counts.release(first)
    sockets.accepted("fourth")
    assert sockets.closed == ["first", "second"]


def test_a_socket_that_has_sent_connect_is_not_closed() -> None:
    sockets = Sockets(max_awaiting_connect=1)
    sockets.counts.connect_read(sockets.accepted("ready"))
    sockets.accepted("second")
    sockets.accepted("third")
    assert sockets.closed == ["second"]


def test_a_refusal_is_logged_with_limit_and_address() -> None:
    sockets = Sockets(max_connections_per_address=1)
    sockets.accepted("a", "192.0.2.1")
    with capture_logs() as lines:
        sockets.accept("b", "192.0.2.1")
    assert lines == [
        {"event": "limit_reached", "log_level": "warning", "limit": "max_connections_per_address", "address": "192.0.2.1"}
    ]


def test_other_limits_hold_for_new_sockets() -> None:
    sockets = Sockets(max_connections=1, max_connections_per_address=5)
    first = sockets.accepted("first", "192.0.2.1")
    limits = DeviceLimits(max_connections=3, max_connections_per_address=1)
    sockets.counts.reconfigure(limits, Hosts(limits.unlimited_addresses))
    assert sockets.accept("second", "192.0.2.1") is None
    sockets.accepted("third", "192.0.2.3")
    sockets.counts.release(first)
    sockets.accepted("fourth", "192.0.2.1")
