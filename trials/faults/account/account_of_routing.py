"""Publications of devices to devices: what happened → what of it must not have happened. Pure.

1. A publication that is in `inflight.uplink` reaches every device that was certainly subscribed when it was sent, and either
   stays so, or gets a later publication of that publisher before it unsubscribes. Both QoS are above 0. Only the last session of
   a device counts.
2. A session gets no more copies than the publication has ids in `inflight.uplink`: at QoS 2 one, at QoS 1 one for each time that
   the publisher had to send it.
3. Publications of one publisher arrive in their order, at each pair of publication's QoS and arrival's QoS.
4. Nothing comes for which the session certainly had no subscription between the publication and the arrival.
5. The QoS is the lower one of the publication and the best matching subscription.
6. A publication for a shared subscription reaches one member, at QoS 2 once. At QoS 1 it reaches some member, and may come again
   when a session has ended without an acknowledgement. A QoS 2 message in flight ends with its session, as a dead letter. There
   is no order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import inf

from paho.mqtt.client import topic_matches_sub

from trials.faults.account.facts import DeviceFacts, Facts, Period, Publication, RoutedArrival, Violation
from trials.faults.plan.talk import SHARED


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A publication of a device. number: its place among those of its publisher. ids: in `inflight.uplink`, where a micro-batch
    that was executed again writes the same ones again. logged_s: the first time there.
    """

    publisher: str
    number: int
    publication: Publication
    ids: frozenset[str]
    logged_s: float


@cache
def matches(topic_filter: str, topic: str) -> bool:
    return topic_matches_sub(topic_filter.split("/", 2)[2] if topic_filter == SHARED else topic_filter, topic)


def violations(facts: Facts) -> Iterator[Violation]:
    known = publications(facts)
    log: dict[str, list[bytes]] = defaultdict(list)
    for record in facts.uplink:
        log[record.client_id].append(record.payload)
    for device in facts.devices:
        yield from _arrivals(device, known)
        for payload in _out_of_order(device, known, log):
            yield Violation(client_id=device.client_id, what="a routed publication is out of order", of=payload)
        for payload in sorted(owed(device, known.values()) - arrived(device)):
            yield Violation(client_id=device.client_id, what="a publication was not routed to it", of=payload)
    yield from _shared(facts, known)


def publications(facts: Facts) -> dict[bytes, Routed]:
    """Returns all publications by payload, those of a publisher in their order."""
    ids: dict[bytes, set[str]] = defaultdict(set)
    logged_s: dict[bytes, float] = {}
    for record in facts.uplink:
        ids[record.payload].add(record.inflight_id)
        logged_s.setdefault(record.payload, record.time_s)
    return {
        publication.payload: Routed(
            publisher=device.client_id,
            number=number,
            publication=publication,
            ids=frozenset(ids[publication.payload]),
            logged_s=logged_s.get(publication.payload, inf),
        )
        for device in facts.devices
        for number, publication in enumerate(device.publications)
    }


def arrived(device: DeviceFacts) -> set[bytes]:
    """Returns what has come in the last session."""
    return {arrival.payload for arrival in device.routed if arrival.epoch == device.epoch}


def owed(device: DeviceFacts, known: Iterable[Routed]) -> set[bytes]:
    """Returns what the last session must have got."""
    came_s = {arrival.payload: arrival.time_s for arrival in reversed(device.routed) if arrival.epoch == device.epoch}
    of_session = (period for period in device.periods if period.epoch == device.epoch and period.topic_filter != SHARED)
    periods = [period for period in of_session if period.granted_s is not None and period.qos]
    due: set[bytes] = set()
    witnessed: set[tuple[str, int, int]] = set()
    for routed in reversed(list(known)):  # the later ones of a publisher are the witnesses of those before
        sent = routed.publication
        if not sent.qos or not routed.ids:
            continue
        for number, period in enumerate(periods):
            assert period.granted_s is not None
            if not period.granted_s <= sent.sent_s < period.leaving_s or not matches(period.topic_filter, sent.topic):
                continue
            reason = routed.publisher, sent.qos, number
            if period.leaving_s == inf or (reason in witnessed and not sent.given_up):
                due.add(sent.payload)
            if not sent.given_up and came_s.get(sent.payload, inf) < period.leaving_s:
                witnessed.add(reason)
    return due


def _arrivals(device: DeviceFacts, known: dict[bytes, Routed]) -> Iterator[Violation]:
    def wrong(what: str) -> Violation:
        return Violation(client_id=device.client_id, what=what, of=arrival.payload)

    copies = Counter((arrival.epoch, arrival.payload) for arrival in device.routed if arrival.is_new)
    for arrival in {(arrival.epoch, arrival.payload): arrival for arrival in reversed(device.routed)}.values():
        routed = known.get(arrival.payload)
        if routed is None or routed.publication.topic != arrival.topic:
            yield wrong(f"came for {arrival.topic}, for which nobody published it")
            continue
        sent, count = routed.publication, copies[arrival.epoch, arrival.payload]
        if count > len(routed.ids) and not (is_shared(sent) and sent.qos == 1):
            yield wrong(f"came {count} times at QoS {arrival.qos}; it was published {len(routed.ids)} times at QoS {sent.qos}")
        possible = possible_periods(device, arrival, sent)
        certain = [
            period
            for period in possible
            if period.granted_s is not None and period.granted_s <= sent.sent_s and period.leaving_s >= arrival.time_s
        ]
        if not possible:
            yield wrong("came without a subscription")
            continue
        most, least = _best(possible, sent), _best(certain, sent)
        if not least <= arrival.qos <= most:
            yield wrong(f"came at QoS {arrival.qos}, not {least} to {most}")


def possible_periods(device: DeviceFacts, arrival: RoutedArrival, sent: Publication) -> list[Period]:
    """Returns the subscriptions for which a message may have come."""
    return [
        period
        for period in device.periods
        if period.epoch == arrival.epoch
        and period.asked_s <= arrival.time_s
        and period.ended_s >= sent.sent_s
        and matches(period.topic_filter, sent.topic)
    ]


def came_before_subscribe(device: DeviceFacts, arrival: RoutedArrival, routed: Routed) -> bool:
    """Returns True if a publication was in the log before each SUBSCRIBE that explains its arrival: the matcher was late."""
    possible = possible_periods(device, arrival, routed.publication)
    return bool(possible) and all(period.asked_s > routed.logged_s for period in possible)


def is_shared(publication: Publication) -> bool:
    return matches(SHARED, publication.topic)


def _shared(facts: Facts, known: dict[bytes, Routed]) -> Iterator[Violation]:
    count = Counter(arrival.payload for device in facts.devices for arrival in device.routed if arrival.is_new)
    owed_to_all = owed_to_group(facts.devices, known.values())
    for payload, routed in known.items():
        if is_shared(routed.publication) and routed.publication.qos == 2 and count[payload] > len(routed.ids):
            yield Violation(client_id=routed.publisher, what=f"came to {count[payload]} members of a group at QoS 2", of=payload)
        if payload in owed_to_all and not count[payload] and not (routed.publication.qos == 2 and routed.ids & facts.ended_ids):
            yield Violation(client_id=routed.publisher, what="came to no member of a group", of=payload)


def owed_to_group(devices: Iterable[DeviceFacts], known: Iterable[Routed]) -> set[bytes]:
    """Returns what some member must get, because one of them was subscribed when it was published, and stays so."""
    first_s = min(
        (
            period.granted_s
            for device in devices
            for period in device.periods
            if period.topic_filter == SHARED and period.epoch == device.epoch and period.leaving_s == inf and period.granted_s
        ),
        default=inf,
    )
    return {
        routed.publication.payload
        for routed in known
        if is_shared(routed.publication) and routed.ids and routed.publication.sent_s >= first_s
    }


def _best(periods: Iterable[Period], sent: Publication) -> int:
    return min(sent.qos, max((period.qos for period in periods), default=0))


def _out_of_order(device: DeviceFacts, known: dict[bytes, Routed], log: dict[str, list[bytes]]) -> Iterator[bytes]:
    """Yields what came after one that follows it in the log. A publication that is there twice may come at both places."""
    places: dict[tuple[int, str, int, int], Iterator[bytes]] = {}
    for arrival in device.routed:
        routed = known.get(arrival.payload)
        if routed is None or not arrival.is_new or is_shared(routed.publication):
            continue
        lane = arrival.epoch, routed.publisher, routed.publication.qos, arrival.qos
        following = places.get(lane)
        if following is None:
            following = places[lane] = iter(log[routed.publisher])
        if arrival.payload not in following:
            yield arrival.payload
            places.pop(lane)
