"""The demo plans what it sends, and counts what arrives."""

from inflight.demo.devices import Manners
from inflight.demo.run import make_cast
from inflight.demo.scoreboard import score
from state.inbound.subscriptions import Subscriptions
from state.model import QoS, Subscription


def test_each_publication_of_the_demo_is_for_those_who_subscribe() -> None:
    plans, devices = make_cast()
    filters = {}
    for device in devices:
        filters[device.name] = Subscriptions()
        for topic_filter in device.topic_filters:
            filters[device.name].add(Subscription(topic_filter=topic_filter, qos=QoS.EXACTLY_ONCE))
    for device in devices:
        for topic, payload in device.to_publish:
            subscribers = {name for name, theirs in filters.items() if theirs.granted_qos(topic) is not None}
            listed = {each.name for each in devices for plan in (plans.peers, plans.fleet) if payload in plan.payloads(each.name)}
            assert subscribers == listed != set()
    assert not any(device.topic_filters for device in devices if device.manners is Manners.LATE)


def test_the_demo_counts_a_lost_and_a_repeated_publication() -> None:
    plans, devices = make_cast()
    for device in devices:
        for plan in plans:
            device.received.update(plan.payloads(device.name))
    assert score(devices, *plans).lost == 0
    (first, second) = plans.peers.payloads(devices[0].name)[:2]
    devices[0].received[first] = 0
    devices[0].received[second] += 1
    counts = score(devices, *plans)
    assert (counts.lost, counts.qos2_duplicates, counts.sent) == (1, 1, plans.total())
