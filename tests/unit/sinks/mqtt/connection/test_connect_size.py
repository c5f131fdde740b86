"""A device that is not logged in may send one CONNECT of a bounded size."""

import pytest

from sinks.mqtt.access.grant import EVERYTHING, Grant
from sinks.mqtt.settings import DeviceLimits
from state.commands import AcceptConnection
from tests.unit.sinks.mqtt.connection.harness import Harness
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

LIMITS = DeviceLimits(max_connect_bytes=2_000)


def with_password(size: int) -> bytes:
    return connect(flags=0xC2, payload=text("c") + text("u") + text(b"p" * size))


def test_a_too_large_connect_is_refused_by_its_header() -> None:
    harness = Harness(device_limits=LIMITS)
    assert harness.send(with_password(3_000)[:10]) == b""
    assert harness.connection.is_closed
    assert harness.counters.protocol_errors == {0x95: 1}
    assert harness.events == []


def test_a_connect_of_the_maximum_size_is_accepted() -> None:
    size = 2_000 - len(with_password(500)) + 500
    assert len(with_password(size)) == 2_000
    harness = Harness(device_limits=LIMITS)
    harness.send(with_password(size))
    assert not harness.connection.is_closed
    too_large = Harness(device_limits=LIMITS)
    too_large.send(with_password(size + 1))
    assert too_large.connection.is_closed


def test_after_connect_the_maximum_packet_size_holds() -> None:
    harness = Harness(device_limits=LIMITS, max_packet_size_bytes=100_000)
    harness.send(connect(flags=0x00))
    harness.command(AcceptConnection)
    harness.send(publish("t", bytes(50_000)))
    assert [append.value for append in harness.uplink] == [bytes(50_000)]
    harness.send(packet(0x30, bytes(100_000))[:10])
    assert harness.connection.is_closed


@pytest.mark.parametrize(
    ("flags", "login"), [(0x00, EVERYTHING), (0x02, EVERYTHING), (0x02, None)], ids=["not accepted", "answered", "no login yet"]
)
def test_what_follows_a_connect_is_read_up_to_the_same_size(flags: int, login: Grant | None) -> None:
    harness = Harness(device_limits=LIMITS, login=login)
    harness.send(connect(flags=flags), bytes(1_999))
    assert harness.wants_data
    harness.send(b"0")
    assert not harness.wants_data
