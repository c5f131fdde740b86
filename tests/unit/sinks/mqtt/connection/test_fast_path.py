"""sinks.mqtt.connection.fast_path: a grant that changes its partition, and subscriptions that change beside it.

test_offers.py has the rest, in a connection.
"""

from typing import Any

from sinks.fast_path.offering import FastPathState
from sinks.host.outbox import Outbox
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.connection.fast_path import MAX_RESUBSCRIBED, OfferRefusal, TakenOffer, WireFastPath
from sinks.mqtt.connection.handshake import V311
from sinks.mqtt.settings import GatewaySettings
from state.commands import OfferPublish, OpenFastPath, SendPublish
from state.model import Position, QoS, Subscription
from state.outbound.deduplication import message_digest

IS_OPEN = FastPathState.OPEN


def fast_path() -> WireFastPath:
    connect = Connect(protocol_version=4, client_id="c", clean_start=False)
    return WireFastPath(connect, 1, encode=V311.encode_publish, outbox=Outbox(99), settings=GatewaySettings())


def granted(path: WireFastPath, partition: int, offset: int, **fields: Any) -> tuple[int, int]:
    grant = OpenFastPath(connection_id=1, partition=0, sequence=1, after=Position(partition, offset), **fields)
    return path.open(grant, 1_000)


def offer(path: WireFastPath, partition: int, offset: int, *, qos: int = 1) -> TakenOffer | OfferRefusal | None:
    """The next message of its partition."""
    headers = (("mqtt-topic", b"t"), ("mqtt-qos", b"%d" % qos), ("message-id", b"m-%d-%d" % (partition, offset)))
    position = Position(partition, offset)
    given = OfferPublish(connection_id=1, position=position, previous=offset - 1, timestamp_ms=900, headers=headers)
    return path.offer(given, False, 900, 900)


def take(path: WireFastPath, partition: int, offset: int, *, qos: int = 1) -> QoS:
    """Returns the QoS with which the message goes out."""
    taken = offer(path, partition, offset, qos=qos)
    assert isinstance(taken, TakenOffer), taken
    return taken.publish.qos


def was_taken(path: WireFastPath, partition: int, offset: int, *, dup: bool = True) -> bool:
    publish = SendPublish(
        connection_id=1, partition=0, sequence=1, packet_id=1, topic="t", payload=b"", qos=QoS(1), dup=dup,
        position=Position(partition, offset),
    )  # fmt: skip
    return path.was_taken(publish)


def test_offers_of_other_partitions_are_refused_and_break_nothing() -> None:
    path = fast_path()
    granted(path, 2, 4)
    assert offer(path, 3, 5) is OfferRefusal.PARTITION
    assert path.state is IS_OPEN
    take(path, 2, 5)


def test_accepted_offers_are_remembered_when_a_grant_changes_back() -> None:
    path = fast_path()
    granted(path, 2, 4)
    take(path, 2, 5)
    granted(path, 3, 70)
    take(path, 3, 71)
    granted(path, 2, 4)
    assert offer(path, 2, 5) is None


def test_an_accepted_offer_is_remembered_until_a_grant_adopts_it() -> None:
    path = fast_path()
    granted(path, 2, 4)
    take(path, 2, 5)
    take(path, 2, 6)
    assert granted(path, 2, 5, adopted=5) == (1, 100)
    assert [was_taken(path, 2, offset) for offset in (5, 6)] == [False, True]
    assert granted(path, 3, 70, adopted=70) == (0, 0)
    assert was_taken(path, 2, 6)
    take(path, 3, 71)
    assert granted(path, 2, 6, adopted=6) == (1, 100)
    assert was_taken(path, 3, 71)


def test_a_message_of_a_partition_that_no_grant_has_named_breaks_nothing() -> None:
    path = fast_path()
    granted(path, 2, 4)
    assert not was_taken(path, 3, 9, dup=False)
    take(path, 2, 5)


LOW = Subscription(topic_filter="t", qos=QoS.AT_MOST_ONCE)


def test_subscription_changes_hold_before_the_session_reads_them() -> None:
    path = fast_path()
    granted(path, 2, 4, subscriptions=())
    path.subscribed([LOW])
    assert take(path, 2, 5, qos=2) == QoS.AT_MOST_ONCE
    path.unsubscribed(["t"])
    assert take(path, 2, 6, qos=2) == QoS.EXACTLY_ONCE


def test_an_older_grant_does_not_undo_a_subscription_change() -> None:
    path = fast_path()
    path.subscribed([LOW])
    path.unsubscribed(["t"])
    granted(path, 2, 4, subscriptions=(LOW,))
    assert take(path, 2, 5, qos=2) == QoS.EXACTLY_ONCE
    path.subscribed([LOW])
    granted(path, 2, 5, subscriptions=())
    assert take(path, 2, 6, qos=2) == QoS.AT_MOST_ONCE


def test_a_device_with_ever_new_subscriptions_has_no_fast_path() -> None:
    path = fast_path()
    granted(path, 2, 4)
    path.unsubscribed(str(number) for number in range(MAX_RESUBSCRIBED))
    assert path.state is IS_OPEN
    path.unsubscribed(["one more"])
    assert path.state is FastPathState.CLOSED


def test_what_becomes_of_an_offer_is_known_before_it_is_made() -> None:
    path = fast_path()
    assert path.state is FastPathState.CLOSED
    granted(path, 2, 4)
    assert path.state is FastPathState.OPEN
    assert path.offer(OfferPublish(connection_id=1, position=Position(2, 5), previous=4, timestamp_ms=0), True, 0, 0)
    assert path.state is FastPathState.BROKEN
    granted(path, 2, 5)
    assert path.state is FastPathState.OPEN
    path.close()
    assert path.state is FastPathState.CLOSED


def test_grants_add_message_ids_or_replace_them() -> None:
    path = fast_path()
    digests = [message_digest(f"m-2-{offset}") for offset in (5, 6)]
    granted(path, 2, 4, recent_ids=digests[0], is_snapshot=True)
    granted(path, 2, 4, recent_ids=digests[1])
    for offset in (5, 6):
        assert offer(path, 2, offset) is OfferRefusal.REPETITION
        granted(path, 2, offset)
    granted(path, 2, 4, is_snapshot=True)
    take(path, 2, 7)
    granted(path, 3, 1, is_snapshot=True)
    assert path.offer(repeated(3, 2, "m-2-7"), False, 0, 0) is OfferRefusal.REPETITION, "the session has not read it yet"
    granted(path, 3, 2)
    assert isinstance(path.offer(repeated(3, 3, "m-2-5"), False, 0, 0), TakenOffer), "the session has forgotten it"


def repeated(partition: int, offset: int, message_id: str) -> OfferPublish:
    headers = (("mqtt-topic", b"t"), ("message-id", message_id.encode()))
    position = Position(partition, offset)
    return OfferPublish(connection_id=1, position=position, previous=offset - 1, timestamp_ms=0, headers=headers)
