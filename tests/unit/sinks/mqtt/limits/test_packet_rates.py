import pytest

from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.limits.packet_rates import PacketRates
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack, connected
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, packet, publish, text


def read_packet(
    rates: PacketRates, packet: bytes, body_start: int = 2, *, is_v5: bool = False, is_expected: bool = False
) -> None:
    """Reads a packet as a connection does that may read it."""
    parts_bytes, _ = rates.parts.measure(packet, body_start, is_v5=is_v5)
    rates.count(packet, parts_bytes, is_expected=is_expected)


def rates(counters: GatewayCounters | None = None, **limits: int) -> PacketRates:
    return PacketRates(DeviceLimits(**limits), counters or GatewayCounters(), 0)  # type: ignore[arg-type]


def test_a_burst_may_have_the_packets_of_a_tenth_of_a_second() -> None:
    counters = GatewayCounters()
    packets = rates(counters, max_packet_rate=100)
    for _ in range(10):
        assert packets.may_read(0)
        read_packet(packets, PINGREQ, is_v5=True)
    assert not packets.may_read(0)
    assert packets.paused_until_ms is not None
    assert 10 <= packets.paused_until_ms <= 11
    assert not packets.resume(9)
    assert not packets.may_read(9)
    assert packets.resume(packets.paused_until_ms)
    assert packets.may_read(11)
    assert counters.limits_reached == {"max_packet_rate": 1}


def test_a_large_packet_delays_the_next_one() -> None:
    counters = GatewayCounters()
    packets = rates(counters, max_byte_rate=1_000)
    assert packets.may_read(0)
    read_packet(packets, bytes(5_000))
    assert not packets.may_read(0)
    assert packets.paused_until_ms is not None
    assert 4_900 <= packets.paused_until_ms <= 4_902
    assert counters.limits_reached == {"max_byte_rate": 1}


def test_0_is_no_limit() -> None:
    packets = rates(max_packet_rate=0, max_byte_rate=0)
    for _ in range(10_000):
        assert packets.may_read(0)
        read_packet(packets, PINGREQ, is_v5=True)


def test_properties_count_as_more_packets() -> None:
    packets = rates(max_packet_rate=100)
    properties = b"\x26\x00\x01k\x00\x01v" * 18
    with_properties = publish("t", bytes(1_000), v5=properties)
    for _ in range(5):
        assert packets.may_read(0)
        read_packet(packets, with_properties, body_start(with_properties), is_v5=True)
    assert not packets.may_read(0), "each counted twice"


def test_a_device_that_sends_many_at_once_is_read_in_turns() -> None:
    counters = GatewayCounters()
    packets = PacketRates(DeviceLimits(), counters, 0, AdaptiveRateLimiter(DeviceLimits()))
    now_ms, read = 0, []
    while len(read) < 200:
        if packets.may_read(now_ms):
            read_packet(packets, PINGREQ, is_v5=True)
            read.append(now_ms)
            continue
        assert packets.paused_until_ms == now_ms + 1
        now_ms += 1
        assert packets.resume(now_ms)
    assert [read.count(ms) for ms in range(now_ms + 1)] == [32, 32, 32, 32, 32, 32, 8]
    assert not counters.limits_reached, "it was no limit that it has reached"


def read_in_ten_seconds(**wanted_ms: int) -> dict[str, int]:
    """Returns how many packets are read of each device while low-rate devices wait. wanted_ms: between two packets, by device."""
    limiter = AdaptiveRateLimiter(DeviceLimits(max_delay_ms=20))
    devices = {name: PacketRates(DeviceLimits(max_packet_rate=1_000), GatewayCounters(), 0, limiter) for name in wanted_ms}
    read = dict.fromkeys(wanted_ms, 0)
    for now_ms in range(15_000):
        if now_ms % 50 == 0:
            limiter.appended(1)
            limiter.confirmed(0.0)
            limiter.observe_lag(21.0)
        for name, device in devices.items():
            device.resume(now_ms)
            if now_ms % wanted_ms[name] == 0 and device.may_read(now_ms):
                read_packet(device, PINGREQ, is_v5=True)
                read[name] += now_ms >= 5_000
    return read


def test_only_the_devices_that_send_most_are_slowed_down() -> None:
    read = read_in_ten_seconds(few=100, many=1, more=1)
    assert read["few"] == 100
    assert 2 * 156 <= read["many"] + read["more"] <= 4_000, "between a 64th and a fifth of what each may send"


def test_nobody_is_slowed_down_who_is_not_the_cause() -> None:
    assert read_in_ten_seconds(few=100, steady=9)["steady"] == 1_111


def test_a_device_below_the_reduced_rates_has_a_low_rate() -> None:
    device = rates(max_packet_rate=6_400, max_byte_rate=640_000)

    def uses(packets: int, packet: bytes, now_ms: int, *, is_expected: bool = False) -> None:
        for _ in range(packets):
            assert device.may_read(now_ms)
            read_packet(device, packet, is_expected=is_expected)

    for second in range(60):
        uses(99, PINGREQ, 1_000 * second)
        assert device.is_low_rate(1_000 * second)
    uses(150, PINGREQ, 60_000)
    assert not device.is_low_rate(60_000)
    assert not device.is_low_rate(60_499)
    assert device.is_low_rate(60_501)
    uses(1_000, PINGREQ, 70_000, is_expected=True)
    assert not device.is_low_rate(70_000), "a device that is sent so much waits for its own records"
    uses(1, publish("t", bytes(12_000)), 80_000)
    assert not device.is_low_rate(80_000), "bytes count, too"
    assert device.is_low_rate(90_000)
    for _ in range(5_000):
        read_packet(device, PINGREQ)
    assert not device.is_low_rate(90_999)
    assert device.is_low_rate(91_001), "a second after it has stopped"


def test_a_device_without_a_limit_has_a_low_rate() -> None:
    device = rates(max_packet_rate=0, max_byte_rate=0)
    for _ in range(10_000):
        read_packet(device, PINGREQ)
    assert device.is_low_rate(0), "it cannot be slowed down"


def limited(level: int = 4, **limits: int) -> Harness:
    return connected(level, device_limits=DeviceLimits(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "sent", "answer"),
    [
        (4, PINGREQ, PINGRESP),
        (4, packet(0x82, b"\x00\x07", text("a/#/b"), b"\x00"), bytes.fromhex("9003000780")),
        (4, publish("t"), b""),
        (4, publish("t", first_byte=0x32, packet_id=1), ack(0x40, 1)),
        (5, PINGREQ, PINGRESP),
        (5, publish("t", v5=b""), b""),
    ],
)
@pytest.mark.promise("device-rate")
def test_packets_of_every_type_are_read_no_faster_and_none_is_lost(level: int, sent: bytes, answer: bytes) -> None:
    harness = limited(level, max_packet_rate=50)
    assert harness.send(sent * 20) == answer * 5
    assert not harness.wants_data
    answers = answer * 5
    for _ in range(15):
        deadline_ms = harness.effects.deadline_ms
        assert deadline_ms is not None
        assert deadline_ms - harness.now_ms <= 21
        answers += harness.pass_ms(deadline_ms - harness.now_ms)
    assert answers == answer * 20
    assert len(harness.uplink) == 20 * (sent[0] & 0xF0 == 0x30)
    assert harness.now_ms >= 1_000 + 300


def test_a_device_that_is_not_read_from_is_not_silent() -> None:
    harness = limited(max_byte_rate=100)
    harness.send(publish("t", bytes(5_000)), PINGREQ)
    harness.pass_ms(16_000)
    assert not harness.connection.is_closed, "its keep alive is ten seconds"
    assert harness.pass_ms(34_000) == PINGRESP


def test_bytes_sent_before_a_close_count_at_the_devices_rate() -> None:
    harness = limited(max_packet_rate=50)
    harness.send(publish("t") * 10)
    harness.feed("peer_closed")
    harness.settle()
    assert len(harness.uplink) == 5
    assert not harness.connection.is_closed
    harness.pass_ms(200)
    assert len(harness.uplink) == 10
    assert harness.connection.is_closed


def test_a_pause_that_ends_while_kafka_does_not_confirm_is_over() -> None:
    harness = connected(4, max_unconfirmed_appends=1, device_limits=DeviceLimits(max_packet_rate=1))
    harness.confirming = False
    harness.send(publish("t") + PINGREQ)
    harness.pass_ms(1_001)
    assert harness.effects.deadline_ms != harness.now_ms, "a timer that is due again and again"
    harness.confirming = True
    harness.confirm(harness.waiting[0])
    assert harness.settle() == PINGRESP
