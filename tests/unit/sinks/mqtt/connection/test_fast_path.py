"""sinks.mqtt.connection.fast_path: a grant that changes its partition, and subscriptions that change beside it.

test_fast_sender.py has the rest, on a wire.
"""

from typing import Any

from sinks.fast_path.chain import Link
from sinks.fast_path.offering import PathHere
from sinks.mqtt.connection.fast_path import MAX_RESUBSCRIBED, Adopted, FastPath
from state.commands import OpenFastPath
from state.model import Message, Position, QoS, Subscription


def granted(path: FastPath, partition: int, offset: int, **fields: Any) -> Adopted:
    grant = OpenFastPath(connection_id=1, partition=0, sequence=1, after=Position(partition, offset), **fields)
    return path.open(grant, 1_000)


def take(path: FastPath, partition: int, offset: int) -> None:
    message = Message(message_id=f"m-{partition}-{offset}", topic="t", payload=b"")
    path.take(Position(partition, offset), message, 40_000 + offset, explicit_id=True, now_ms=900)


def test_only_offers_of_the_granted_partition_count_and_others_break_nothing() -> None:
    path = FastPath()
    granted(path, 2, 4)
    assert path.link(Position(3, 5), 4) is None
    path.refuse(Position(3, 5))
    assert path.link(Position(2, 5), 4) is Link.NEXT


def test_what_was_taken_in_a_partition_is_known_when_the_grant_comes_back_to_it() -> None:
    path = FastPath()
    granted(path, 2, 4)
    take(path, 2, 5)
    granted(path, 3, 70)
    assert path.link(Position(3, 71), 70) is Link.NEXT
    granted(path, 2, 4)
    assert path.link(Position(2, 5), 4) is Link.KNOWN


def test_what_was_taken_is_known_until_a_grant_of_its_partition_says_that_it_was_read() -> None:
    path = FastPath()
    granted(path, 2, 4)
    take(path, 2, 5)
    take(path, 2, 6)
    assert granted(path, 2, 5, adopted=5) == Adopted(1, 100)
    assert [path.was_taken(Position(2, offset)) for offset in (5, 6)] == [False, True]
    assert granted(path, 3, 70, adopted=70) == Adopted(0, 0)
    assert path.was_taken(Position(2, 6))
    take(path, 3, 71)
    assert path.unadopted == 2
    assert granted(path, 2, 6, adopted=6) == Adopted(1, 100)
    assert path.was_taken(Position(3, 71))


def test_a_message_of_a_partition_that_no_grant_has_named_breaks_nothing() -> None:
    path = FastPath()
    granted(path, 2, 4)
    path.sent_by_session(Position(3, 9))
    assert path.link(Position(2, 5), 4) is Link.NEXT


TWICE = Message(message_id="m", topic="t", payload=b"", qos=QoS.EXACTLY_ONCE)
LOW = Subscription(topic_filter="t", qos=QoS.AT_MOST_ONCE)


def test_what_the_device_subscribes_to_and_leaves_holds_before_the_session_has_read_it() -> None:
    path = FastPath()
    granted(path, 2, 4, subscriptions=())
    path.subscribed([LOW])
    assert path.qos_of(TWICE) == QoS.AT_MOST_ONCE
    path.unsubscribed(["t"])
    assert path.qos_of(TWICE) == QoS.EXACTLY_ONCE


def test_a_grant_that_was_written_before_a_change_does_not_take_it_back() -> None:
    path = FastPath()
    path.subscribed([LOW])
    path.unsubscribed(["t"])
    granted(path, 2, 4, subscriptions=(LOW,))
    assert path.qos_of(TWICE) == QoS.EXACTLY_ONCE
    path.subscribed([LOW])
    granted(path, 2, 5, subscriptions=())
    assert path.qos_of(TWICE) == QoS.AT_MOST_ONCE


def test_a_device_with_ever_new_subscriptions_has_no_fast_path() -> None:
    path = FastPath()
    granted(path, 2, 4)
    path.unsubscribed(str(number) for number in range(MAX_RESUBSCRIBED))
    assert path.is_open
    path.unsubscribed(["one more"])
    assert not path.is_open


def test_what_becomes_of_an_offer_is_known_before_it_is_made() -> None:
    path = FastPath()
    assert path.here is PathHere.CLOSED
    granted(path, 2, 4)
    assert path.here is PathHere.OPEN
    path.refuse(Position(2, 5))
    assert path.here is PathHere.BROKEN
    granted(path, 2, 5)
    assert path.here is PathHere.OPEN
    path.close()
    assert path.here is PathHere.CLOSED
