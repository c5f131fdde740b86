"""One client gets all that is sent to it at once, although that is more than the queue of a client that is away holds."""

import pytest

from inflight import Producer
from state.settings import SessionSettings
from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_subscriber import PahoSubscriber
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MESSAGES = SessionSettings().max_mqueue_len + 500
COMES_BACK, PART = 5, 200
_BURST_S = 120.0


def publish_all(publisher: PahoSubscriber, topics: list[str], qos: int, *, retain: bool = False) -> list[bytes]:
    """Publishes as fast as it is answered. Returns the payloads."""
    payloads = [b"%06d" % number + bytes(150) for number in range(len(topics))]
    sent = [publisher.client.publish(*each, qos, retain) for each in zip(topics, payloads, strict=True)]
    for each in sent:
        each.wait_for_publish(_BURST_S)
    return payloads


def received(subscriber: PahoSubscriber, count: int) -> list[bytes]:
    messages = subscriber.messages
    wait_until(lambda: len(messages) >= count, lambda: f"{count} messages; there are {len(messages)}", within_s=_BURST_S)
    return [message.payload for message in messages]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscriber_gets_all_of_a_burst_in_order_and_once(up: SharedUp, qos: int) -> None:
    name = f"one-busy-{qos}"
    with (
        PahoSubscriber(up.mqtt, f"{name}-sub", 4, keeps_session=True) as subscriber,
        PahoSubscriber(up.mqtt, f"{name}-pub") as pub,
    ):
        assert subscriber.subscribe(f"{name}/#", qos) == [qos]
        payloads = publish_all(pub, [f"{name}/t"] * MESSAGES, qos)
        assert received(subscriber, MESSAGES) == payloads


def test_an_online_device_gets_all_that_a_producer_sends_at_once(up: SharedUp) -> None:
    payloads = [b"%06d" % number for number in range(2 * MESSAGES)]
    with PahoSubscriber(up.mqtt, "one-busy-device", 4, keeps_session=True) as device, Producer(up.kafka) as producer:
        sent = [producer.send_async("one-busy-device", "cmd", payload, qos=1) for payload in payloads]
        for each in sent:
            each.result(_BURST_S)
        assert received(device, len(payloads)) == payloads


def test_a_subscriber_gets_all_retained_messages_however_many_there_are(up: SharedUp) -> None:
    topics = [f"one-busy-retained/{number}" for number in range(MESSAGES)]
    with PahoSubscriber(up.mqtt, "one-busy-retainer") as publisher, PahoSubscriber(up.mqtt, "one-busy-late") as subscriber:
        publish_all(publisher, topics, 1, retain=True)
        assert subscriber.subscribe("one-busy-retained/#", 1) == [1]
        received(subscriber, MESSAGES)
        assert sorted(message.topic for message in subscriber.messages) == sorted(topics)
        for topic in topics:
            publisher.client.publish(topic, b"", 1, retain=True)
        publisher.publish(topics[-1], b"", retain=True)


def test_a_client_that_comes_back_gets_all_that_waited(up: SharedUp) -> None:
    count = SessionSettings().max_mqueue_len
    with PahoSubscriber(up.mqtt, "one-busy-back", 4, keeps_session=True) as device:
        assert device.subscribe("one-busy-back/#", 1) == [1]
    with PahoSubscriber(up.mqtt, "one-busy-back-pub") as publisher:
        payloads = publish_all(publisher, ["one-busy-back/t"] * count, 1)
    with device:
        assert received(device, count) == payloads


def test_a_busy_client_that_comes_and_goes_gets_all_once_and_in_order(up: SharedUp) -> None:
    """It leaves in the middle of its messages, with some unfinished or not, and more come while it is away."""
    device = PahoSubscriber(up.mqtt, "one-busy-comes-and-goes", 4, keeps_session=True)
    with device:
        assert device.subscribe("one-busy-comes-and-goes/#", 2) == [2]
    payloads: list[bytes] = []
    with PahoSubscriber(up.mqtt, "one-busy-comes-and-goes-pub") as publisher:
        for _ in range(COMES_BACK):
            own = [b"%06d" % (len(payloads) + number) for number in range(PART)]
            payloads += own
            sent = [publisher.client.publish("one-busy-comes-and-goes/t", payload, 2) for payload in own]
            sent[PART // 2].wait_for_publish(_BURST_S)
            with device:
                received(device, len(payloads) - PART // 2)
            for each in sent:
                each.wait_for_publish(_BURST_S)
    with device:
        assert received(device, len(payloads)) == payloads
