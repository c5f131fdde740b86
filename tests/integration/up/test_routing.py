"""Publications reach every client with a matching subscription: device to device, retained, shared, from a backend.

That something is not delivered is shown by what comes behind it on the same topic.
"""

import time

import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_subscriber import PahoSubscriber
from tests.integration.up.wire_device import MAXIMUM_PACKET_SIZE, Backend, WireDevice, both_versions
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish, text

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@both_versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_device_publishes_reaches_a_subscriber_once(up: SharedUp, level: int, qos: int) -> None:
    """[MQTT-3.3.4-2] [MQTT-4.3.1-1] [MQTT-4.3.2-1] [MQTT-4.3.3-1]"""
    name = f"routed-{level}-{qos}"
    with PahoSubscriber(up.mqtt, f"{name}-sub", level) as subscriber, PahoSubscriber(up.mqtt, f"{name}-pub", level) as publisher:
        assert subscriber.subscribe(f"{name}/+/t") == [2]
        sent = [b"%d" % number for number in range(20)]
        for payload in sent:
            publisher.publish(f"{name}/a/t", payload, qos)
        assert subscriber.payloads(20) == sent
        assert {message.qos for message in subscriber.messages} == {qos}
        assert {message.retain for message in subscriber.messages} == {False}


@pytest.mark.promise("subscribe-before-match")
def test_no_publication_after_suback_is_missed(up: SharedUp) -> None:
    """[MQTT-3.8.4-1]: the subscriber is another client at each turn, so each subscription is new."""
    with PahoSubscriber(up.mqtt, "suback-pub") as publisher:
        for turn in range(12):
            with PahoSubscriber(up.mqtt, f"suback-{turn}") as subscriber:
                subscriber.subscribe(f"suback/{turn}")
                publisher.publish(f"suback/{turn}", b"first")
                assert subscriber.payloads(1) == [b"first"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_publication_comes_once_to_a_later_subscriber(up: SharedUp, qos: int) -> None:
    """The publisher has PUBACK or PUBCOMP before the SUBSCRIBE."""
    with PahoSubscriber(up.mqtt, f"kept-{qos}-pub") as publisher:
        for turn in range(12):
            topic = f"kept-{qos}/{turn}"
            with PahoSubscriber(up.mqtt, f"kept-{qos}-{turn}") as subscriber:
                publisher.publish(topic, b"kept", qos, retain=True)
                subscriber.subscribe(topic)
                subscriber.payloads(1)
                publisher.publish(topic, b"end", qos)
                wait_until(lambda subscriber=subscriber: subscriber.messages[-1].payload == b"end", "what comes behind it")
                assert [(message.payload, message.retain) for message in subscriber.messages] == [
                    (b"kept", True),
                    (b"end", False),
                ]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_publication_behind_suback_comes_live_only(up: SharedUp, qos: int) -> None:
    with PahoSubscriber(up.mqtt, f"behind-{qos}-pub") as publisher:
        for turn in range(12):
            topic = f"behind-{qos}/{turn}"
            with PahoSubscriber(up.mqtt, f"behind-{qos}-{turn}") as subscriber:
                subscriber.subscribe(topic)
                publisher.publish(topic, b"live", qos, retain=True)
                publisher.publish(topic, b"end", qos)
                wait_until(
                    lambda subscriber=subscriber: [message.payload for message in subscriber.messages[-1:]] == [b"end"], "the end"
                )
                assert [(message.payload, message.retain) for message in subscriber.messages] == [
                    (b"live", False),
                    (b"end", False),
                ]


def test_a_publication_of_qos_2_waits_for_no_micro_batch(up: SharedUp) -> None:
    """An engine that is stopped would not hold it up. Here the fastest of twenty shows it: a micro-batch takes longer."""
    took_s = []
    with PahoSubscriber(up.mqtt, "prompt-2-sub") as subscriber, PahoSubscriber(up.mqtt, "prompt-2-pub") as publisher:
        subscriber.subscribe("prompt-2")
        for count in range(1, 21):
            began_s = time.monotonic()
            publisher.client.publish("prompt-2", b"p", 2)
            subscriber.payloads(count)
            took_s.append(time.monotonic() - began_s)
    assert min(took_s) < 0.2


def test_a_bridge_gets_nothing_of_its_own_back_and_retain_as_published(up: SharedUp) -> None:
    """Level 0x84, as Mosquitto and EMQX have it."""
    with WireDevice(up.mqtt, "bridge-bit", 0x84, expiry_s=None) as bridge, PahoSubscriber(up.mqtt, "bridge-bit-pub") as other:
        bridge.send(packet(0x82, b"\x00\x01", text("bridge-bit/#"), b"\x00"))
        bridge.expect(b"\x90\x03\x00\x01\x00")
        bridge.send(publish("bridge-bit/own", b"own", first_byte=0x31))
        other.publish("bridge-bit/a", b"retained", retain=True)
        other.publish("bridge-bit/a", b"plain")
        received = [bridge.packet() for _ in range(2)]
        assert [(one[0] & 1, bridge.parse(one).payload) for one in received] == [(1, b"retained"), (0, b"plain")]
        bridge.send(packet(0x82, b"\x00\x02", text("bridge-bit/#"), b"\x00"))
        bridge.expect(b"\x90\x03\x00\x02\x00")
        assert bridge.receive().payload == b"retained", "its own retained message does not come either"
        other.publish("bridge-bit/a", b"end")
        assert bridge.receive().payload == b"end"


@both_versions
def test_an_offline_subscriber_gets_it_when_it_comes_back(up: SharedUp, level: int) -> None:
    """[MQTT-3.1.2-5]"""
    name = f"away-{level}"
    subscriber = PahoSubscriber(up.mqtt, name, level, keeps_session=True)
    with subscriber:
        subscriber.subscribe(f"{name}/#", 1)
    with PahoSubscriber(up.mqtt, f"{name}-pub", level) as publisher:
        publisher.publish(f"{name}/x", b"1")
        publisher.publish(f"{name}/x", b"2", 2)
    with subscriber:
        assert subscriber.payloads(2) == [b"1", b"2"]


@both_versions
def test_an_unsubscribed_filter_brings_nothing_more(up: SharedUp, level: int) -> None:
    """[MQTT-3.10.4-1]"""
    name = f"leaving-filter-{level}"
    with PahoSubscriber(up.mqtt, name, level) as subscriber, PahoSubscriber(up.mqtt, f"{name}-pub", level) as publisher:
        subscriber.subscribe(f"{name}/a")
        subscriber.subscribe(f"{name}/end")
        publisher.publish(f"{name}/a", b"seen")
        assert subscriber.payloads(1) == [b"seen"]
        subscriber.unsubscribe(f"{name}/a")
        publisher.publish(f"{name}/a", b"unseen")
        publisher.publish(f"{name}/end", b"end")
        assert subscriber.payloads(2) == [b"seen", b"end"]


@both_versions
@pytest.mark.promise("retained")
def test_a_retained_message_comes_with_each_new_subscription(up: SharedUp, level: int) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-9]"""
    name = f"kept-{level}"
    with PahoSubscriber(up.mqtt, f"{name}-pub", level) as publisher, PahoSubscriber(up.mqtt, f"{name}-there", level) as witness:
        witness.subscribe(f"{name}/d")
        publisher.publish(f"{name}/a", b"old", retain=True)
        publisher.publish(f"{name}/a", b"new", retain=True)
        publisher.publish(f"{name}/b", b"other", retain=True)
        publisher.publish(f"{name}/c", b"deleted", retain=True)
        publisher.publish(f"{name}/c", b"", retain=True)
        publisher.publish(f"{name}/d", b"not kept")
        assert witness.payloads(1) == [b"not kept"], "all that was published has been routed"
        with PahoSubscriber(up.mqtt, f"{name}-sub", level) as subscriber:
            subscriber.subscribe(f"{name}/#", 1)
            assert sorted(subscriber.payloads(2)) == [b"new", b"other"]
            assert [message.retain for message in subscriber.messages] == [True, True]
            publisher.publish(f"{name}/a", b"live", retain=True)
            assert subscriber.payloads(3)[2:] == [b"live"]
            assert not subscriber.messages[2].retain


def test_options_of_a_subscription_hold(up: SharedUp) -> None:
    """No Local [MQTT-3.8.3-3], Retain As Published [MQTT-3.3.1-13], one copy with all identifiers [MQTT-3.3.4-4]."""
    with PahoSubscriber(up.mqtt, "options") as client, PahoSubscriber(up.mqtt, "options-other") as other:
        client.subscribe("options/#", 0, identifier=7, noLocal=True, retainAsPublished=True)
        client.subscribe("options/a", 2, identifier=8, noLocal=True)
        client.publish("options/a", b"own")
        other.publish("options/a", b"other", 2, retain=True)
        assert client.payloads(1) == [b"other"]
        (message,) = client.messages
        assert message.properties is not None
        assert sorted(message.properties.SubscriptionIdentifier) == [7, 8]
        assert (message.qos, message.retain) == (2, True)
        other.publish("options/a", b"", retain=True)


@pytest.mark.promise("shared-subscription")
def test_one_member_of_a_shared_subscription_gets_each_message(up: SharedUp) -> None:
    """[MQTT-4.8.2-4]"""
    with (
        PahoSubscriber(up.mqtt, "member-a") as first,
        PahoSubscriber(up.mqtt, "member-b") as second,
        PahoSubscriber(up.mqtt, "member-plain") as plain,
        PahoSubscriber(up.mqtt, "member-pub") as publisher,
    ):
        for member in (first, second):
            assert member.subscribe("$share/group/shared/#", 1) == [1]
        plain.subscribe("shared/#", 1)
        sent = [b"%d" % number for number in range(20)]
        for payload in sent:
            publisher.publish("shared/x", payload)
        assert plain.payloads(20) == sent
        wait_until(lambda: len(first.messages) + len(second.messages) >= len(sent), "what the group was sent")
        assert sorted(message.payload for message in (*first.messages, *second.messages)) == sorted(sent)


def test_what_a_backend_publishes_reaches_all_subscribers(up: SharedUp, backend: Backend) -> None:
    with PahoSubscriber(up.mqtt, "fleet-a") as first, PahoSubscriber(up.mqtt, "fleet-b") as second:
        for client in (first, second):
            client.subscribe("fleet/all", 1)
        backend.publish("fleet/all", b"p")
        assert [client.payloads(1) for client in (first, second)] == [[b"p"]] * 2


def test_the_servers_topics_need_a_filter_that_names_them(up: SharedUp) -> None:
    """[MQTT-4.7.2-1]"""
    with PahoSubscriber(up.mqtt, "sys-all") as everything, PahoSubscriber(up.mqtt, "sys") as subscriber:
        everything.subscribe("#")
        subscriber.subscribe("$SYS/broker/+")
        subscriber.subscribe("$SYS/broker/clients/connected")
        wait_until(lambda: len({message.topic for message in subscriber.messages}) == 3, "version, uptime and connected clients")
        found = {message.topic: message.payload.decode() for message in subscriber.messages}
        assert found["$SYS/broker/version"].startswith("inflight ")
        assert found["$SYS/broker/uptime"].endswith(" seconds")
        assert int(found["$SYS/broker/clients/connected"]) >= 2
        assert [message.topic for message in everything.messages if message.topic.startswith("$")] == []


def test_a_message_that_is_too_large_for_one_member_reaches_another(up: SharedUp, backend: Backend) -> None:
    """The choice depends on the message if it has no key, so both members are chosen."""
    at_most_100 = bytes((MAXIMUM_PACKET_SIZE,)) + (100).to_bytes(4, "big")
    with (
        WireDevice(up.mqtt, "size-small", 5, expiry_s=None, properties=at_most_100) as small,
        PahoSubscriber(up.mqtt, "size-large") as large,
    ):
        small.send(packet(0x82, b"\x00\x01\x00", text("$share/size/size/#"), b"\x01"))
        small.expect(b"\x90\x04\x00\x01\x00\x01")
        assert large.subscribe("$share/size/size/#", 1) == [1]
        payloads = [bytes((number,)) * 200 for number in range(16)]
        for payload in payloads:
            backend.publish("size/x", payload)
        assert sorted(large.payloads(len(payloads))) == payloads
