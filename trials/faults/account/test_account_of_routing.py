"""trials/faults/account/account_of_routing.py: a run in which all is well has no violation, and each thing that may go wrong is
noticed."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from trials.faults.account.account_of_routing import came_before_subscribe, owed, publications, violations
from trials.faults.account.facts import DeviceFacts, Facts, Period, Publication, Received, RoutedArrival
from trials.faults.plan.characters import Character, Keeping
from trials.faults.plan.talk import SHARED

TOPIC = "talk/3/1"


def device(client_id: str) -> DeviceFacts:
    character = Character(client_id=client_id, keeping=Keeping.KEPT, level=5, expiry_s=None, will_delay_s=0, patience_s=5.0)
    return DeviceFacts(character=character, epoch=1)


class Talk:
    """A publisher that sends a publication of each QoS every second from 100 s to 103 s, and a subscriber at QoS 2 since 90 s."""

    def __init__(self) -> None:
        self.publisher, self.subscriber = device("p"), device("s")
        self.period = Period(topic_filter="talk/3/+", qos=2, epoch=1, asked_s=80.0, granted_s=90.0)
        self.subscriber.periods = [self.period]
        self.facts = Facts(devices=[self.publisher, self.subscriber])
        for number in range(12):
            self.publish(number, qos=number % 3, sent_s=100.0 + number // 3)

    def publish(self, number: int, *, qos: int, sent_s: float) -> None:
        payload = b"up/p/%d/%d" % (qos, number)
        self.publisher.publications.append(Publication(payload=payload, qos=qos, sent_s=sent_s, topic=TOPIC))
        self.facts.uplink.append(Received(client_id="p", payload=payload, inflight_id=f"i{number}", time_s=sent_s + 0.1))
        self.subscriber.routed.append(
            RoutedArrival(payload=payload, topic=TOPIC, qos=qos, is_new=True, epoch=1, time_s=sent_s + 0.2)
        )

    def arrival(self, number: int) -> int:
        (place,) = [place for place, each in enumerate(self.subscriber.routed) if each.payload.endswith(b"/%d" % number)]
        return place

    def drop(self, number: int) -> None:
        del self.subscriber.routed[self.arrival(number)]

    def change(self, number: int, **changes: object) -> None:
        place = self.arrival(number)
        self.subscriber.routed[place] = replace(self.subscriber.routed[place], **changes)

    def found(self) -> list[str]:
        return [violation.what for violation in violations(self.facts)]


def test_a_run_in_which_all_is_well_has_no_violation() -> None:
    assert Talk().found() == []


def again(talk: Talk) -> None:
    talk.subscriber.routed.append(talk.subscriber.routed[talk.arrival(11)])


def swapped(talk: Talk) -> None:
    routed, (one, other) = talk.subscriber.routed, (talk.arrival(4), talk.arrival(7))
    routed[one], routed[other] = routed[other], routed[one]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda talk: talk.drop(4), "a publication was not routed to it"),
        (lambda talk: talk.drop(11), "a publication was not routed to it"),
        (again, "came 2 times at QoS 2; it was published 1 times at QoS 2"),
        (swapped, "a routed publication is out of order"),
        (lambda talk: talk.change(4, epoch=0), "came without a subscription"),
        (lambda talk: talk.change(4, topic="talk/3/2"), "came for talk/3/2, for which nobody published it"),
        (lambda talk: talk.change(5, qos=1), "came at QoS 1, not 2 to 2"),
        (lambda talk: setattr(talk.period, "ended_s", 102.5), "came without a subscription"),
    ],
    ids=["lost", "the last one lost", "twice", "out of order", "another session", "another topic", "lower QoS", "unsubscribed"],
)
def test_what_must_not_happen_is_found(wrong: Callable[[Talk], None], expected: str) -> None:
    talk = Talk()
    wrong(talk)
    assert expected in talk.found()


def test_qos_0_may_be_lost() -> None:
    talk = Talk()
    for number in (0, 3, 6, 9):
        talk.drop(number)
    assert talk.found() == []


def test_a_publication_that_was_sent_twice_may_come_twice_at_qos_1() -> None:
    talk = Talk()
    talk.facts.uplink.append(replace(talk.facts.uplink[4], inflight_id="another"))
    talk.subscriber.routed.append(talk.subscriber.routed[4])
    assert talk.found() == []


def test_who_has_unsubscribed_is_owed_what_comes_before_something_that_came() -> None:
    talk = Talk()
    talk.period.leaving_s = 102.5
    talk.drop(10)
    talk.drop(7)
    assert talk.found() == []
    talk.drop(1)  # before 4, which came
    assert talk.found() == ["a publication was not routed to it"]


@pytest.mark.parametrize(
    ("qos", "copies", "expected"),
    [
        (1, 0, "came to no member of a group"),
        (1, 1, None),
        (1, 2, None),
        (2, 0, "came to no member of a group"),
        (2, 1, None),
        (2, 2, "came to 2 members of a group at QoS 2"),
    ],
)
def test_a_group_gets_a_publication_once(qos: int, copies: int, expected: str | None) -> None:
    talk = Talk()
    member = replace(talk.period, topic_filter=SHARED)
    talk.subscriber.periods.append(member)
    talk.publisher.periods.append(member)
    payload = b"up/p/%d/12" % qos
    talk.publisher.publications.append(Publication(payload=payload, qos=qos, sent_s=105.0, topic="work/1"))
    talk.facts.uplink.append(Received(client_id="p", payload=payload, inflight_id="i12", time_s=105.1))
    arrival = RoutedArrival(payload=payload, topic="work/1", qos=qos, is_new=True, epoch=1, time_s=105.2)
    for device_ in [talk.publisher, talk.subscriber][:copies]:
        device_.routed.append(arrival)
    assert talk.found() == ([] if expected is None else [expected])


def test_a_qos_2_message_in_flight_may_end_with_its_session() -> None:
    talk = Talk()
    talk.subscriber.periods.append(replace(talk.period, topic_filter=SHARED))
    talk.publisher.publications.append(Publication(payload=b"up/p/2/12", qos=2, sent_s=105.0, topic="work/1"))
    talk.facts.uplink.append(Received(client_id="p", payload=b"up/p/2/12", inflight_id="i12", time_s=105.1))
    assert talk.found() == ["came to no member of a group"]
    talk.facts.ended_ids = frozenset({"i12"})
    assert talk.found() == []


def test_only_the_last_session_is_owed_anything() -> None:
    talk = Talk()
    assert len(owed(talk.subscriber, publications(talk.facts).values())) == 8
    talk.subscriber.epoch = 2
    assert owed(talk.subscriber, publications(talk.facts).values()) == set()
    assert talk.found() == []


def test_a_publication_that_was_matched_late_is_counted() -> None:
    talk = Talk()
    talk.period.asked_s, talk.period.granted_s, talk.period.ended_s = 100.15, 100.2, inf
    known = publications(talk.facts)
    early = [came_before_subscribe(talk.subscriber, each, known[each.payload]) for each in talk.subscriber.routed]
    assert early == [True] * 3 + [False] * 9
