"""A device that publishes too fast."""

from sinks.mqtt.settings import DeviceLimits
from state.events import PubAckReceived, PubCompReceived, PublishReceived
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected, send_publish
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

MANY = {"max_awaiting_rel": 100}


def sent(harness: Harness, packet_id: int, *, qos: int, level: int = 5, dup: bool = False) -> bytes:
    first_byte = 0x30 | qos << 1 | dup << 3
    packet_id_or_none = packet_id if qos else None
    return harness.send(publish("a", b"x", first_byte=first_byte, packet_id=packet_id_or_none, v5=b"" if level == 5 else None))


def refused(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 3)) + packet_id.to_bytes(2, "big") + b"\x97"


def test_qos_1_and_2_over_the_rate_are_answered_0x97_and_dropped() -> None:
    harness = connected(5, accept=MANY, max_publish_rate=2)
    assert sent(harness, 1, qos=1) == ack(0x40, 1)
    assert sent(harness, 2, qos=2) == ack(0x50, 2)
    assert sent(harness, 3, qos=1) == refused(0x40, 3)
    assert sent(harness, 4, qos=2) == refused(0x50, 4)
    assert len(harness.uplink) == 1
    assert [event.packet_id for event in harness.events if isinstance(event, PublishReceived)] == [2]
    assert harness.counters.publishes_refused == 2


def test_the_rate_recovers_with_time() -> None:
    harness = connected(5, accept=MANY, max_publish_rate=2)
    for packet_id in (1, 2, 3):
        sent(harness, packet_id, qos=1)
    harness.now_ms += 500
    assert sent(harness, 3, qos=1) == ack(0x40, 3)
    assert sent(harness, 4, qos=1) == refused(0x40, 4)


def test_expected_acknowledgements_do_not_count_for_the_packet_rate() -> None:
    harness = connected(5, accept={"send_quota": 100}, device_limits=DeviceLimits(max_packet_rate=2))
    harness.pass_ms(1_000)
    for packet_id in range(1, 21):
        send_publish(harness, packet_id)
        harness.send(ack(0x40, packet_id))
    for packet_id in range(21, 41):
        send_publish(harness, packet_id, qos=2)
        harness.send(ack(0x50, packet_id), ack(0x70, packet_id))
    told = [event.packet_id for event in harness.events if isinstance(event, PubAckReceived | PubCompReceived)]
    assert told == list(range(1, 41))
    assert not harness.counters.limits_reached
    for packet_id in range(1, 5):
        harness.send(ack(0x40, packet_id))
    assert harness.counters.limits_reached == {"max_packet_rate": 1}, "nobody waits for these"


def test_only_connected_devices_below_the_rate_are_of_low_rate() -> None:
    """The rule is in sinks.mqtt.limits.adaptive_rate."""
    harness = Harness(device_limits=DeviceLimits(max_packet_rate=640))
    harness.send(connect())
    assert not harness.connection.is_low_rate(harness.now_ms), "its CONNECT waits"
    harness = connected(device_limits=DeviceLimits(max_packet_rate=640))
    assert harness.connection.is_low_rate(harness.now_ms)
    for _ in range(11):
        sent(harness, 1, qos=0, level=4)
    assert not harness.connection.is_low_rate(harness.now_ms)
    harness.now_ms += 1_000
    assert harness.connection.is_low_rate(harness.now_ms)
    harness.send(b"\xe0\x00")
    assert not harness.connection.is_low_rate(harness.now_ms), "it has gone"
