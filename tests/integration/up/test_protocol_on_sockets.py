"""docs/protocol.md, sections 1 to 4, on the sockets of devices: gateway, Kafka and the engine on Spark, in both versions.

One `inflight up` serves all tests; each has client ids of its own. That something is not sent is shown by what comes
next: a QoS 0 message passes a full window, and a later message comes behind an earlier one.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import paho.mqtt.client as paho
import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_device import PahoDevice
from tests.integration.up.topics_of_up import await_gone
from tests.integration.up.wire_device import (
    MAXIMUM_PACKET_SIZE,
    PATIENCE_S,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    Backend,
    Received,
    WireDevice,
    acknowledgement,
)
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import text

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

both_versions = pytest.mark.parametrize("level", [4, 5], ids=["3.1.1", "5"])


def receive_maximum(number: int) -> bytes:
    return bytes((RECEIVE_MAXIMUM,)) + number.to_bytes(2, "big")


@pytest.fixture(scope="module")
def backend(up: SharedUp) -> Iterator[Backend]:
    with Backend(up.kafka) as backend:
        yield backend


# --- §1: sending to a device ----------------------------------------------------------------------------------------------------


@both_versions
def test_a_reconnect_is_answered_with_everything_unfinished_in_order_with_dup_and_the_same_ids(
    up: SharedUp, backend: Backend, level: int
) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1] [MQTT-4.3.3-6]"""
    name = f"replay-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        assert not device.session_present
        for number, qos in enumerate((1, 2, 1, 2), start=1):
            backend.send(name, b"%d" % number, qos=qos)
        first = [device.receive() for _ in range(4)]
        assert [(message.payload, message.qos, message.dup) for message in first] == [
            (b"1", 1, False),
            (b"2", 2, False),
            (b"3", 1, False),
            (b"4", 2, False),
        ]
        assert len({message.packet_id for message in first}) == 4
        device.answer(PUBREC, first[1])
        device.expect(acknowledgement(PUBREL, first[1].packet_id))
    with WireDevice(up.mqtt, name, level) as device:
        assert device.session_present
        assert device.receive() == replace(first[0], dup=True)
        device.expect(acknowledgement(PUBREL, first[1].packet_id))
        assert device.receive() == replace(first[2], dup=True)
        assert device.receive() == replace(first[3], dup=True)
        device.answer(PUBACK, first[0])
        device.answer(PUBCOMP, first[1])
        device.answer(PUBACK, first[2])
        device.finish(first[3])
        assert backend.outcomes([f"{name}/{number}" for number in range(1, 5)]) == ["delivered"] * 4
        backend.send(name, b"5")
        last = device.receive()
        assert (last.payload, last.dup) == (b"5", False)
        device.finish(last)


def test_a_window_of_two_through_lost_acknowledgements(up: SharedUp, backend: Backend) -> None:
    """docs/protocol.md, section 2: the resends after the retry interval come before what is new."""
    with WireDevice(up.mqtt, "window-2", 4) as device:
        backend.send("window-2", b"1", b"2", b"3", b"4")
        received = [device.receive(), device.receive()]
        device.answer(PUBACK, received[0])  # then the line goes bad: what follows is received, its acknowledgements are lost
        received += [device.receive(), device.receive(), device.receive()]
        for message in received[3:]:
            device.answer(PUBACK, message)
        received.append(device.receive())
        device.answer(PUBACK, received[5])
        assert [(message.payload, message.dup) for message in received] == [
            (b"1", False),
            (b"2", False),
            (b"3", False),
            (b"2", True),
            (b"3", True),
            (b"4", False),
        ]


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5"])
def test_paho_that_loses_its_socket_gets_what_it_had_not_acknowledged_and_each_qos_2_message_once(
    up: SharedUp, backend: Backend, version: int
) -> None:
    name = f"paho-{version}"
    with PahoDevice(up, name, version) as device:
        backend.send(name, b"a", b"b", b"c")
        wait_until(lambda: len(device.messages) == 3, "three messages")
        device.cut()
        wait_until(lambda: len(device.messages) == 6, "the replay")
        assert [(message.payload, message.dup) for message in device.messages] == [
            *((payload, False) for payload in (b"a", b"b", b"c")),
            *((payload, True) for payload in (b"a", b"b", b"c")),
        ]
        assert [message.mid for message in device.messages[:3]] == [message.mid for message in device.messages[3:]]
        for message in device.messages[3:]:
            device.client.ack(message.mid, message.qos)
        assert backend.outcomes([f"{name}/{letter}" for letter in "abc"]) == ["delivered"] * 3
        # QoS 2 in both directions at once, and the line goes bad again.
        device.client.manual_ack_set(False)
        device.messages.clear()
        sent = backend.send(name, *(b"d%d" % number for number in range(20)), qos=2)
        published = [device.client.publish("up/t", b"u%d" % number, qos=2) for number in range(20)]
        wait_until(lambda: device.messages, "a message")
        device.cut()
        assert backend.outcomes(sent) == ["delivered"] * 20
        for info in published:
            info.wait_for_publish(PATIENCE_S)
        assert [message.payload for message in device.messages] == [b"d%d" % number for number in range(20)]
        assert backend.uplink(name, last=b"u19") == [b"u%d" % number for number in range(20)]


def test_a_refusing_pubrec_gets_no_pubrel_and_frees_slot_and_id(up: SharedUp, backend: Backend) -> None:
    """[MQTT-4.4.0-2] [MQTT-4.3.3-4]; MQTT 3.1.1 has no reason codes."""
    with WireDevice(up.mqtt, "refusing", 5, properties=receive_maximum(1)) as device:
        unwanted, passing, next_one = backend.send("refusing", b"unwanted", b"passing", b"next", qos=2)
        first = device.receive()
        assert first.payload == b"unwanted"
        device.answer(PUBREC, first, 0x87)
        second = device.receive()  # nothing came in between, and the only slot is free
        assert second.payload == b"passing"
        assert backend.outcome(unwanted) == "rejected"
        device.answer(PUBREC, second, 0x80)
        again = device.receive()
        assert (again.payload, again.dup) == (b"passing", False)
        assert again.packet_id != second.packet_id
        device.answer(PUBREC, again, 0x97)  # comes again after the backoff, before what is behind it
        later = device.receive()
        assert (later.payload, later.dup) == (b"passing", False)
        device.finish(later)
        assert device.receive().payload == b"next"
        assert backend.outcome(passing) == "delivered"
    assert next_one


@both_versions
def test_acknowledgements_that_nobody_waits_for_are_answered_as_the_standard_says(
    up: SharedUp, backend: Backend, level: int
) -> None:
    name = f"unknown-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        device.send(acknowledgement(PUBACK, 4_711) + acknowledgement(PUBCOMP, 4_711) + acknowledgement(PUBREC, 4_712))
        device.expect(acknowledgement(PUBREL, 4_712, 0x92 if level == 5 else 0))
        device.send(acknowledgement(PUBREL, 4_713))
        device.expect(acknowledgement(PUBCOMP, 4_713, 0x92 if level == 5 else 0))
        backend.send(name, b"still there", qos=2)
        message = device.receive()
        device.answer(PUBREC, message)
        device.expect(acknowledgement(PUBREL, message.packet_id))
        device.answer(PUBREC, message)  # the PUBREL was lost
        device.expect(acknowledgement(PUBREL, message.packet_id))
        device.answer(PUBCOMP, message)
        assert backend.outcome(f"{name}/still there") == "delivered"


@both_versions
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection_and_the_session_goes_on(
    up: SharedUp, backend: Backend, level: int
) -> None:
    name = f"wrong-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        backend.send(name, b"x", qos=2)
        message = device.receive()
        device.answer(PUBACK, message)
        device.expect_disconnect(0x82)
    with WireDevice(up.mqtt, name, level) as device:
        assert device.session_present
        assert device.receive() == replace(message, dup=True)


def test_a_receive_maximum_of_1_is_strict_order_and_qos_0_passes_by(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-2] [MQTT-4.9.0-3]"""
    with WireDevice(up.mqtt, "one-by-one", 5, properties=receive_maximum(1)) as device:
        backend.send("one-by-one", b"1", b"2", b"3", qos=1)
        backend.send("one-by-one", b"passes by", qos=0)
        first = device.receive()
        assert device.receive().payload == b"passes by"
        device.finish(first)
        second = device.receive()
        backend.send("one-by-one", b"this too", qos=0)
        assert device.receive().payload == b"this too"
        device.finish(second)
        third = device.receive()
        device.finish(third)
        assert [first.payload, second.payload, third.payload] == [b"1", b"2", b"3"]


def test_a_receive_maximum_of_65535_lets_everything_out_at_once(up: SharedUp, backend: Backend) -> None:
    with WireDevice(up.mqtt, "wide-5", 5, properties=receive_maximum(65_535)) as device:
        payloads = [b"%d" % number for number in range(500)]
        backend.send("wide-5", *payloads)
        received = [device.receive() for _ in payloads]
        assert [message.payload for message in received] == payloads
        assert len({message.packet_id for message in received}) == 500
        for message in received:
            device.finish(message)
        assert backend.outcomes([f"wide-5/{payload.decode()}" for payload in payloads]) == ["delivered"] * 500


def test_a_smaller_receive_maximum_on_resume_lets_the_window_drain_first(up: SharedUp, backend: Backend) -> None:
    """[MQTT-4.9.0-1]; the quota is that of the connection, and nothing new goes out before the old."""
    with WireDevice(up.mqtt, "shrinking", 5, properties=receive_maximum(4)) as device:
        backend.send("shrinking", b"1", b"2", b"3", b"4", b"5")
        first = [device.receive() for _ in range(4)]
    with WireDevice(up.mqtt, "shrinking", 5, properties=receive_maximum(1)) as device:
        for number, message in enumerate(first):
            assert device.receive() == replace(message, dup=True)
            backend.send("shrinking", b"passes by %d" % number, qos=0)
            assert device.receive().payload == b"passes by %d" % number
            device.finish(message)
        fifth = device.receive()
        assert (fifth.payload, fifth.dup) == (b"5", False)
        device.finish(fifth)


def test_a_message_too_large_for_the_device_is_skipped_with_an_outcome(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    properties = bytes((MAXIMUM_PACKET_SIZE,)) + (100).to_bytes(4, "big")
    with WireDevice(up.mqtt, "small", 5, properties=properties) as device:
        (large,) = backend.send("small", b"x" * 100)
        (fitting,) = backend.send("small", b"y" * 80)
        message = device.receive()
        assert message.payload == b"y" * 80
        device.finish(message)
        assert backend.outcomes([large, fitting]) == ["too-large", "delivered"]


@both_versions
def test_the_granted_qos_of_a_matching_subscription_caps_the_qos(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.8.4-8] and [MQTT-3.10.4-1]: an unsubscribed filter caps nothing."""
    name = f"capped-{level}"
    empty = b"\x00" if level == 5 else b""
    with WireDevice(up.mqtt, name, level) as device:
        subscribe = b"\x00\x01" + empty + text("cmd") + b"\x00"
        device.send(bytes((0x82, len(subscribe))) + subscribe)
        device.expect(b"\x90" + bytes((3 + len(empty),)) + b"\x00\x01" + empty + b"\x00")
        backend.send(name, b"capped", qos=2)
        assert device.receive() == Received(b"capped", qos=0, dup=False, packet_id=0)
        unsubscribe = b"\x00\x02" + empty + text("cmd")
        device.send(bytes((0xA2, len(unsubscribe))) + unsubscribe)
        device.expect(b"\xb0\x02\x00\x02" if level == 4 else b"\xb0\x04\x00\x02\x00\x00")
        device.send(bytes((0xA2, len(unsubscribe))) + unsubscribe)
        device.expect(b"\xb0\x02\x00\x02" if level == 4 else b"\xb0\x04\x00\x02\x00\x11")
        backend.send(name, b"free", qos=2)
        message = device.receive()
        assert (message.payload, message.qos) == (b"free", 2)
        device.finish(message)


def test_retry_mqtt5_decides_what_a_live_connection_sees_of_an_unacknowledged_message(up: SharedUp, backend: Backend) -> None:
    """[MQTT-4.4.0-1] forbids what `timer` does; MQTT 3.1.1 is resent to whatever the setting."""
    with (
        WireDevice(up.mqtt, "timer-5", 5) as timer,
        WireDevice(up.mqtt, "wait-4", 4) as old,
        WireDevice(up.mqtt, "wait-5", 5) as waiting,
        WireDevice(up.mqtt, "reconnect-5", 5) as stalled,
    ):
        devices = {"timer-5": timer, "wait-4": old, "wait-5": waiting, "reconnect-5": stalled}
        for name in devices:
            backend.send(name, b"x")
        first = {name: device.receive() for name, device in devices.items()}
        assert timer.receive() == replace(first["timer-5"], dup=True)
        assert old.receive() == replace(first["wait-4"], dup=True)
        stalled.expect_disconnect(0x83)
        # By now the time of the fourth is over as well: it was sent to with the others.
        backend.send("wait-5", b"y")
        assert waiting.receive().payload == b"y"
    with WireDevice(up.mqtt, "reconnect-5", 5) as back:
        assert back.receive() == replace(first["reconnect-5"], dup=True)
        back.finish(first["reconnect-5"])


# --- §2: the queue --------------------------------------------------------------------------------------------------------------


def test_the_device_is_told_what_is_left_of_a_messages_life(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    with WireDevice(up.mqtt, "expiring", 5):
        pass
    await_gone(up, "expiring")
    backend.send("expiring", b"old", expiration="60000", age_ms=20_000)
    (over,) = backend.send("expiring", b"over", expiration="500")
    backend.send("expiring", b"for ever")
    assert backend.outcome(over) == "expired"  # without any traffic of the device
    with WireDevice(up.mqtt, "expiring", 5) as device:
        old, for_ever = device.receive(), device.receive()
        assert (old.payload, for_ever.payload) == (b"old", b"for ever")
        assert for_ever.expiry_interval_s is None
        assert old.expiry_interval_s is not None
        assert 40 - PATIENCE_S < old.expiry_interval_s <= 40


@both_versions
def test_a_full_queue_drops_its_oldest_and_a_higher_priority_goes_first(up: SharedUp, backend: Backend, level: int) -> None:
    name = f"short-{level}"
    with WireDevice(up.mqtt, name, level):
        pass
    await_gone(up, name)
    (oldest,) = backend.send(name, b"oldest")
    backend.send(name, b"normal")
    backend.send(name, b"urgent", priority="9")
    assert backend.outcome(oldest) == "maxlen"
    with WireDevice(up.mqtt, name, level) as device:
        assert device.receive_payloads(2) == [b"urgent", b"normal"]


# --- §3: receiving from a device ------------------------------------------------------------------------------------------------


@both_versions
def test_a_qos_2_publication_is_handed_on_once_whatever_its_dup_flag_says(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12]"""
    name = f"twice-{level}"
    with WireDevice(up.mqtt, name, level) as device:
        for dup in (False, True, False):
            device.publish(b"a", qos=2, packet_id=7, dup=dup)
            device.expect(acknowledgement(PUBREC, 7))
    with WireDevice(up.mqtt, name, level) as device:
        for dup in (True, False):
            device.publish(b"a", qos=2, packet_id=7, dup=dup)
            device.expect(acknowledgement(PUBREC, 7))
        device.send(acknowledgement(PUBREL, 7))
        device.expect(acknowledgement(PUBCOMP, 7))
        device.publish(b"released, so new", qos=2, packet_id=7, dup=True)
        device.expect(acknowledgement(PUBREC, 7))
        device.publish(b"unseen, so new", qos=2, packet_id=8, dup=True)
        device.expect(acknowledgement(PUBREC, 8))
        device.publish(b"the same content", qos=2, packet_id=9)
        device.expect(acknowledgement(PUBREC, 9))
        device.publish(b"the same content", qos=2, packet_id=10)
        device.expect(acknowledgement(PUBREC, 10))
        device.publish(b"end", qos=2, packet_id=11)
        device.expect(acknowledgement(PUBREC, 11))
    expected = [b"a", b"released, so new", b"unseen, so new", b"the same content", b"the same content", b"end"]
    assert backend.uplink(name, last=b"end") == expected


def test_one_unreleased_publication_too_many_ends_the_connection_and_a_repetition_is_not_too_many(
    up: SharedUp, backend: Backend
) -> None:
    """[MQTT-3.3.4-7]"""
    name, level = "narrow-5", 5
    with WireDevice(up.mqtt, name, level) as device:
        assert receive_maximum(2) in device.connack
        for packet_id, dup in ((1, False), (2, False), (1, True), (2, False)):
            device.publish(b"%d" % packet_id, qos=2, packet_id=packet_id, dup=dup)
            device.expect(acknowledgement(PUBREC, packet_id))
        device.publish(b"3", qos=2, packet_id=3)
        device.expect_disconnect(0x93)
    with WireDevice(up.mqtt, name, level) as device:
        device.send(acknowledgement(PUBREL, 1))
        device.expect(acknowledgement(PUBCOMP, 1))  # known to the session over the connections
        device.publish(b"3", qos=2, packet_id=3, dup=True)
        device.expect(acknowledgement(PUBREC, 3))
    assert backend.uplink(name, last=b"3") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["many", "narrow-4"])
def test_paho_with_mqtt_3_1_1_finishes_500_publications_that_it_sends_at_once(up: SharedUp, backend: Backend, name: str) -> None:
    """By default, and with a `max_awaiting_rel` of 2: all PUBLISHes are on the wire before the first PUBREL."""
    with PahoDevice(up, name, paho.MQTTv311, max_inflight=1_000) as device:
        done: set[int] = set()
        connections: list[int] = []
        device.client.on_connect = lambda client, data, flags, reason, properties: connections.append(1)
        device.client.on_publish = lambda client, data, packet_id, reason, properties: done.add(packet_id)
        payloads = [b"%d" % number for number in range(500)]
        for payload in payloads:
            device.client.publish("up/t", payload, qos=2)
        wait_until(lambda: len(done) == 500, lambda: f"{len(done)} PUBCOMPs of 500, {len(connections)} reconnects")
        assert connections == []
    assert backend.uplink(name, last=b"499") == payloads


def test_a_topic_alias_stands_for_its_topic_on_its_connection_only(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.3.2-12]; an alias ends with its connection [MQTT-3.3.2-7]."""
    alias = b"\x23\x00\x05"
    by_alias_only = b"\x00\x00\x03" + alias
    with WireDevice(up.mqtt, "alias", 5) as device:
        device.publish(b"named", qos=0, packet_id=0, properties=alias)
        device.send(bytes((0x30, len(by_alias_only) + 3)) + by_alias_only[:2] + by_alias_only[2:] + b"end")
        assert backend.uplink("alias", last=b"end") == [b"named", b"end"]
        assert [headers["mqtt-topic"] for headers in backend.uplink_headers("alias")] == [b"up/t", b"up/t"]
    with WireDevice(up.mqtt, "alias", 5) as device:
        device.send(bytes((0x30, len(by_alias_only))) + by_alias_only)
        device.expect_disconnect(0x82)


# --- §4: connection and session -------------------------------------------------------------------------------------------------


@both_versions
def test_a_second_connection_takes_the_session_over_and_the_first_is_told(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.1.4-3]"""
    name = f"taken-{level}"
    with WireDevice(up.mqtt, name, level) as first:
        backend.send(name, b"x")
        message = first.receive()
        with WireDevice(up.mqtt, name, level) as second:
            assert second.session_present
            first.expect_disconnect(0x8E)
            assert second.receive() == replace(message, dup=True)
            second.finish(message)
            assert backend.outcome(f"{name}/x") == "delivered"


@both_versions
def test_a_session_ends_when_its_expiry_interval_has_passed(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]: MQTT 5 says how long, for MQTT 3.1.1 the configuration does."""
    name = f"brief-{level}"
    with WireDevice(up.mqtt, name, level, expiry_s=1):
        pass
    assert backend.outcomes(backend.send(name, b"too late")) == ["session_ended"]
    with WireDevice(up.mqtt, name, level, expiry_s=1) as device:
        assert not device.session_present


def test_a_disconnect_may_change_the_expiry_interval_but_not_from_zero(up: SharedUp, backend: Backend) -> None:
    """MQTT 5, 3.14.2.2.2"""
    in_a_second, in_an_hour = (bytes.fromhex("e0070005 11") + seconds.to_bytes(4, "big") for seconds in (1, 3_600))
    with WireDevice(up.mqtt, "unlengthened", 5, expiry_s=0) as device:
        device.send(in_an_hour)
        device.expect_disconnect(0x82)
    with WireDevice(up.mqtt, "lengthened", 5, expiry_s=1) as device:
        device.send(in_an_hour)
        device.expect_closed()
    with WireDevice(up.mqtt, "shortened", 5, expiry_s=3_600) as device:
        unfinished = backend.send("shortened", b"x")
        device.receive()
        device.send(in_a_second)
        device.expect_closed()
    assert backend.outcomes(unfinished) == ["session_ended"]  # more than a second after the one before had gone
    (kept,) = backend.send("lengthened", b"x")
    for name, is_kept in (("shortened", False), ("lengthened", True), ("unlengthened", False)):
        with WireDevice(up.mqtt, name, 5) as device:
            assert device.session_present is is_kept, name
            if is_kept:
                device.finish(device.receive())
    assert backend.outcome(kept) == "delivered"


def test_a_will_with_a_delay_is_published_unless_the_client_returns_in_time(up: SharedUp, backend: Backend) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]"""

    def with_will(name: str, *, delay_s: int) -> WireDevice:
        will = bytes((5, 0x18)) + delay_s.to_bytes(4, "big") + text("will/t") + text("bye")
        return WireDevice(up.mqtt, name, 5, flags=0x04, payload=will)

    with with_will("returning", delay_s=6):
        pass
    with WireDevice(up.mqtt, "returning", 5) as returned:
        with with_will("leaving", delay_s=6):
            pass
        assert backend.uplink("leaving", last=b"bye") == [b"bye"]
        assert backend.uplink_headers("leaving")[0]["mqtt-topic"] == b"will/t"
        # The other one's delay began earlier, so its will would be here by now.
        returned.publish(b"end", qos=1, packet_id=1)
        returned.expect(acknowledgement(PUBACK, 1))
    assert backend.uplink("returning", last=b"end") == [b"end"]


@both_versions
def test_a_client_without_an_id_gets_one_and_can_be_written_to(up: SharedUp, backend: Backend, level: int) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7]; MQTT 3.1.1 has no way to tell the id."""
    with WireDevice(up.mqtt, "", level, expiry_s=None) as device:
        if level == 5:
            start = device.connack.index(b"\x12\x00") + 1
            length = int.from_bytes(device.connack[start : start + 2], "big")
            assigned = device.connack[start + 2 : start + 2 + length].decode()
            backend.send(assigned, b"for you")
            assert device.receive().payload == b"for you"
        device.send("c000")
        device.expect("d000")


@both_versions
def test_a_packet_over_the_servers_limit_ends_the_connection_before_its_body_has_come(up: SharedUp, level: int) -> None:
    with WireDevice(up.mqtt, f"huge-{level}", level) as device:
        if level == 5:
            assert bytes((MAXIMUM_PACKET_SIZE,)) + (512 << 10).to_bytes(4, "big") in device.connack
        device.send("30 ff ff ff 7f")
        device.expect_disconnect(0x95)


MALFORMED: dict[str, tuple[str, int]] = {
    "a type that only servers send": ("9003000100", 0x82),
    "a second CONNECT": ("100d 0004 4d515454 05 02 0000 00 0000", 0x82),
    "PUBLISH with QoS 3": ("36 05 000161 0001", 0x81),
    "PUBACK too short": ("400100", 0x81),
    "PUBREC with reserved flags": ("51020001", 0x81),
    "PUBREL with reserved flags": ("60020001", 0x81),
    "PUBCOMP with packet id 0": ("70020000", 0x82),
    "SUBSCRIBE with reserved flags": ("8000", 0x81),
    "UNSUBSCRIBE with packet id 0": ("a2 06 0000 00 000161", 0x82),
    "PINGREQ with a body": ("c00100", 0x81),
    "DISCONNECT with reserved flags": ("e100", 0x81),
    "AUTH": ("f000", 0x8C),
}


@both_versions
def test_malformed_input_ends_its_own_connection_with_the_reason_of_the_standard_and_no_other(
    up: SharedUp, backend: Backend, level: int
) -> None:
    """[MQTT-4.13.1-1]; test_gateway_packets.py has the whole list."""
    connections: list[tuple[str, WireDevice]] = []

    def open_one(name: str) -> None:
        connections.append((name, WireDevice(up.mqtt, f"bad {name} {level}", level, expiry_s=None)))

    in_parallel([lambda name=name: open_one(name) for name in MALFORMED])  # type: ignore[misc]
    with WireDevice(up.mqtt, f"beside-{level}", level) as beside:
        for name, device in connections:
            with device:
                device.send(MALFORMED[name][0])
                device.expect_disconnect(MALFORMED[name][1])
        backend.send(f"beside-{level}", b"untouched")
        assert beside.receive().payload == b"untouched"
    assert len(connections) == len(MALFORMED)


def in_parallel(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
