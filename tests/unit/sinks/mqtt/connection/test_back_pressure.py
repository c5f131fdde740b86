"""A device that says more than Kafka confirms: it is not read from, and nothing of it is lost."""

from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from state.model import ReasonCode
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack, connected
from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish, text

REFUSED_SUBSCRIBE = packet(0x82, b"\x00\x07", text("a/#/b"), b"\x00")
SUBACK = bytes.fromhex("9003000780")


def published(packet_id: int, properties: bytes = b"") -> bytes:
    return publish("t", first_byte=0x32, packet_id=packet_id, v5=properties)


def test_refused_subscribes_behind_an_unconfirmed_record_stop_reading() -> None:
    harness = connected(4, max_unconfirmed_appends=8)
    harness.confirming = False
    harness.send(publish("t", first_byte=0x32, packet_id=1))
    assert harness.send(REFUSED_SUBSCRIBE * 20) == b""
    assert not harness.wants_data
    harness.confirming = True
    harness.confirm(harness.waiting[0])
    assert harness.settle() == ack(0x40, 1) + SUBACK * 20
    assert harness.wants_data


def test_a_connection_stopped_because_of_others_resumes_with_its_buffer() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_appends=4))
    harness = connected(4, keep_alive_s=10, total=total)
    for _ in range(4):
        total.add(1)
    assert harness.send(PINGREQ) == b""
    assert not harness.wants_data
    harness.now_ms += 14_000
    for _ in range(2):
        total.settle(1)
    harness.feed("resume")
    assert harness.settle() == PINGRESP
    assert harness.wants_data
    assert harness.pass_ms(14_000) == b""
    assert not harness.connection.is_closed, "it was not listened to, so it was not silent"
    harness.pass_ms(1_000)
    assert harness.connection.is_closed


def test_the_limit_of_all_connections_holds_before_connect() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_appends=1))
    harness = Harness(total=total)
    total.add(1)
    assert not harness.wants_data
    total.settle(1)
    assert harness.wants_data


def test_unwritten_answers_of_a_closed_connection_do_not_count() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_bytes=10_000))
    harness = connected(4, total=total)
    harness.confirming = False
    harness.send(publish("t", first_byte=0x32, packet_id=1))
    harness.send(REFUSED_SUBSCRIBE * 40)
    assert total.is_full
    harness.close("the gateway is stopping", ReasonCode.SERVER_SHUTTING_DOWN)
    assert not total.is_full
    harness.confirming = True
    harness.confirm(harness.waiting[0])
    harness.settle()
    assert (total.records, total.size_bytes) == (0, 0)
