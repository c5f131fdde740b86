"""sinks.mqtt.connection.fast_path: a grant that changes its partition, subscriptions that change beside it, routed messages.

test_offers.py and test_offers_on_the_wire.py have the rest, in a connection.
"""

from typing import Any, TypeAlias

import pytest

from sinks.fast_path.offering import FastPathState
from sinks.host.outbox import Outbox
from sinks.mqtt.codec.packets import Connect
from sinks.mqtt.connection.fast_path import MAX_RESUBSCRIBED, OfferHold, OfferRefusal, TakenOffer, WireFastPath
from sinks.mqtt.connection.handshake import V311
from sinks.mqtt.settings import GatewaySettings
from state.commands import OfferPublish, OpenFastPath, SendPublish
from state.model import Position, QoS, Routing, Subscription
from state.outbound.deduplication import message_digest
from state.records.routing import SourceKind, encode_routing, source_number

IS_OPEN, INVALID = FastPathState.OPEN, OfferRefusal.INVALID
Offered: TypeAlias = TakenOffer | OfferRefusal | OfferHold | None


def fast_path() -> WireFastPath:
    connect = Connect(protocol_version=4, client_id="c", clean_start=False)
    return WireFastPath(connect, 1, encode=V311.encode_publish, outbox=Outbox(99), settings=GatewaySettings())


def granted(path: WireFastPath, partition: int, offset: int, **fields: Any) -> tuple[int, int]:
    grant = OpenFastPath(connection_id=1, partition=0, sequence=1, after=Position(partition, offset), **fields)
    return path.open(grant, 1_000)


def offer(path: WireFastPath, partition: int, offset: int, *, qos: int = 1, previous: int | None = None) -> Offered:
    """Offers the next message of its partition."""
    headers = (("mqtt-topic", b"t"), ("mqtt-qos", b"%d" % qos), ("message-id", b"m-%d-%d" % (partition, offset)))
    position, before = Position(partition, offset), offset - 1 if previous is None else previous
    given = OfferPublish(connection_id=1, position=position, previous=before, timestamp_ms=900, headers=headers)
    return offered(path, given)


def offered(path: WireFastPath, offer: OfferPublish) -> Offered:
    """Returns what becomes of an offer at once; None = it is ignored."""
    outcome = path.offer(offer, False, False, 900, 900)
    if isinstance(outcome, bool):
        return path.take_next(False, 900) if outcome else None
    return outcome


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


def test_a_closed_path_ignores_offers() -> None:
    path = fast_path()
    granted(path, 2, 4)
    path.unsubscribed(str(number) for number in range(MAX_RESUBSCRIBED + 1))
    assert offer(path, 2, 5) is None
    assert not path.held.offers


def test_what_the_session_has_not_read_about_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.mqtt.connection.fast_path._MOST_UNADOPTED", 2)
    path = fast_path()
    granted(path, 2, 4)
    take(path, 2, 5)
    take(path, 2, 6)
    assert offer(path, 2, 7) is OfferHold.UNADOPTED
    granted(path, 2, 5, adopted=5)
    assert isinstance(path.take_next(False, 900), TakenOffer)


def test_a_long_life_is_told_in_whole_seconds() -> None:
    path = fast_path()
    granted(path, 2, 4)
    headers = (("mqtt-topic", b"t"), ("expiration", b"2001000"))
    taken = offered(path, OfferPublish(connection_id=1, position=Position(2, 5), previous=4, timestamp_ms=900, headers=headers))
    assert isinstance(taken, TakenOffer)
    assert taken.publish.expiry_interval_s == 2_001


def test_what_becomes_of_an_offer_is_known_before_it_is_made() -> None:
    path = fast_path()
    assert path.state is FastPathState.HOLDING
    granted(path, 2, 4)
    assert path.state is FastPathState.OPEN
    assert offered(path, OfferPublish(connection_id=1, position=Position(2, 5), previous=4, timestamp_ms=0)) is INVALID
    assert path.state is FastPathState.HOLDING, "the chain is broken"
    granted(path, 2, 5)
    assert path.state is FastPathState.OPEN
    assert offer(path, 2, 7, previous=6) is OfferHold.GAP
    assert path.state is FastPathState.HOLDING, "what comes next stands behind 7"
    granted(path, 2, 7)
    path.close()
    assert path.state is FastPathState.HOLDING


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
    assert offered(path, repeated(3, 2, "m-2-7")) is OfferRefusal.REPETITION, "the session has not read it yet"
    granted(path, 3, 2)
    assert isinstance(offered(path, repeated(3, 3, "m-2-5")), TakenOffer), "the session has forgotten it"


def test_what_waits_in_the_queue_of_the_session_is_no_repetition() -> None:
    path = fast_path()
    known = b"".join(message_digest(f"m-2-{offset}") for offset in (5, 6, 7))
    granted(path, 2, 4, recent_ids=known, is_snapshot=True, queued_to=6)
    take(path, 2, 5)
    take(path, 2, 6)
    assert offer(path, 2, 7) is OfferRefusal.REPETITION


def repeated(partition: int, offset: int, message_id: str) -> OfferPublish:
    headers = (("mqtt-topic", b"t"), ("message-id", message_id.encode()))
    position = Position(partition, offset)
    return OfferPublish(connection_id=1, position=position, previous=offset - 1, timestamp_ms=0, headers=headers)


def test_what_only_the_session_decides_breaks_the_chain() -> None:
    """A time, even one that has come, and a cancellation."""
    for headers, refusal in (
        ((("mqtt-topic", b"t"), ("deliver-at", b"+0s")), OfferRefusal.DELIVER_AT),
        ((("mqtt-topic", b"t"), ("other", b""), ("deliver-at", b"+9s")), OfferRefusal.DELIVER_AT),
        ((("cancel-message-id", b"m"),), OfferRefusal.INVALID),
    ):
        path = fast_path()
        granted(path, 2, 4)
        given = OfferPublish(connection_id=1, position=Position(2, 5), previous=4, timestamp_ms=900, headers=headers)
        assert offered(path, given) is refusal
        assert not isinstance(offer(path, 2, 6), TakenOffer), "it goes after the session has handled that"
        granted(path, 2, 5)
        assert isinstance(path.take_next(False, 900), TakenOffer)


def test_a_collapse_key_keeps_no_message_from_the_fast_path() -> None:
    path = fast_path()
    granted(path, 2, 4)
    headers = (("mqtt-topic", b"t"), ("collapse-key", b"k"))
    given = OfferPublish(connection_id=1, position=Position(2, 5), previous=4, timestamp_ms=900, headers=headers)
    taken = offered(path, given)
    assert isinstance(taken, TakenOffer)
    assert taken.sent.message.headers == (("collapse-key", b"k"),)


SOURCE = source_number(SourceKind.UPLINK, 0, "topic id")
OTHER_SOURCE = source_number(SourceKind.PUBLICATIONS, 1, "topic id")


def routed_offer(
    path: WireFastPath,
    offset: int,
    mark: int,
    *,
    source: int = SOURCE,
    matched_by: tuple[int, int] = (1, 3),
    granted: int = 2,
    qos: int = 2,
    previous: int | None = None,
    name: str = "p",
    **fields: Any,
) -> Offered:
    """Offers a routed message in partition 2. granted: by the subscriptions that matched."""
    connection_id, version = matched_by
    routing = Routing(source=source, mark=mark, connection_id=connection_id, version=version, qos=QoS(granted), **fields)
    given = OfferPublish(
        connection_id=1,
        position=Position(2, offset),
        previous=offset - 1 if previous is None else previous,
        timestamp_ms=900,
        headers=(("mqtt-topic", b"t"), ("mqtt-qos", b"%d" % qos), ("message-id", name.encode())),
        recipient=encode_routing(routing),
    )
    return offered(path, given)


def routed_qos(path: WireFastPath, offset: int, mark: int, **fields: Any) -> QoS | OfferRefusal | OfferHold | None:
    taken = routed_offer(path, offset, mark, **fields)
    return taken.publish.qos if isinstance(taken, TakenOffer) else taken


def subscribed(version: int = 3, *subscriptions: Subscription) -> WireFastPath:
    """A path of connection 1 with this version of its list of subscriptions, and a grant behind offset 4."""
    path = fast_path()
    path.list_id = (1, version)
    granted(path, 2, 4, subscriptions=subscriptions)
    return path


class TestRoutedMessages:
    def test_the_entry_decides_if_the_lists_of_subscriptions_are_equal(self) -> None:
        path = subscribed(3, LOW)
        taken = routed_offer(path, 5, 1, granted=1, retain=True)
        assert isinstance(taken, TakenOffer)
        message = taken.sent.message
        assert (taken.publish.qos, message.qos, message.retain) == (QoS(1), QoS(1), True), "LOW does not cap it"
        assert (taken.sent.explicit_id, message.message_id) == (False, "p")
        assert message.routing is not None
        assert (message.routing.source, message.routing.mark) == (SOURCE, 1)

    def test_a_newer_list_of_subscriptions_than_ours_decides_nothing_here(self) -> None:
        for matched_by in ((1, 4), (2, 0)):
            path = subscribed(3, LOW)
            assert routed_offer(path, 5, 1, matched_by=matched_by) is OfferRefusal.SUBSCRIPTIONS
            assert path.state is FastPathState.HOLDING

    def test_our_newer_list_of_subscriptions_decides(self) -> None:
        path = subscribed(3, LOW, Subscription(topic_filter="#", qos=QoS(1)), Subscription(topic_filter="u", qos=QoS(2)))
        assert routed_qos(path, 5, 1, matched_by=(1, 2)) == QoS(1)
        assert routed_qos(path, 6, 2, matched_by=(1, 1), qos=0) == QoS(0)
        path.unsubscribed(["#", "t"])
        assert routed_qos(path, 7, 3, matched_by=(1, 2)) is OfferRefusal.SUBSCRIPTIONS

    def test_a_list_of_an_earlier_connection_is_left_to_the_session(self) -> None:
        """It may be of an earlier session."""
        path = subscribed(3, Subscription(topic_filter="#", qos=QoS(2)))
        assert routed_qos(path, 5, 1, matched_by=(0, 9)) is OfferRefusal.SUBSCRIPTIONS

    def test_a_shared_message_matched_before_our_list_is_left_to_the_session(self) -> None:
        path = subscribed(3, Subscription(topic_filter="#", qos=QoS(2)))
        assert routed_qos(path, 5, 1, share="$share/g/#") == QoS(2)
        assert routed_qos(path, 6, 2, share="$share/g/#", matched_by=(1, 2)) is OfferRefusal.SUBSCRIPTIONS

    def test_a_copy_of_an_accepted_message_is_left_to_the_session(self) -> None:
        path = subscribed()
        assert routed_qos(path, 5, 7) == QoS(2)
        assert routed_qos(path, 6, 7) is OfferRefusal.COPY
        granted(path, 2, 6, marks=((SOURCE, 3),))
        assert routed_qos(path, 7, 6) is OfferRefusal.COPY, "an older mark, and a grant from before it"
        granted(path, 2, 7)
        assert routed_qos(path, 8, 8) == QoS(2)
        assert routed_qos(path, 9, 8, source=OTHER_SOURCE) == QoS(2), "marks are those of a source"

    def test_a_copy_of_what_the_session_has_sent_is_never_accepted(self) -> None:
        """No grant has said the mark of the message at 5 yet: the chain refuses whatever lies behind it."""
        path = subscribed()
        assert routed_qos(path, 6, 7, previous=5) is OfferHold.GAP, "a router that has not read the message at 5"
        granted(path, 2, 4)
        assert not was_taken(path, 2, 5, dup=False), "the session sends it"
        assert path.take_next(False, 900) is routed_qos(path, 7, 8) is OfferHold.BROKEN
        path = subscribed()
        assert not was_taken(path, 2, 5, dup=False)
        granted(path, 2, 5, marks=((SOURCE, 7),))
        assert routed_qos(path, 6, 7) is OfferRefusal.COPY

    def test_what_waits_in_the_queue_of_the_session_is_no_copy(self) -> None:
        path = subscribed()
        granted(path, 2, 4, marks=((SOURCE, 9),), queued_to=5)
        assert routed_qos(path, 5, 7) == QoS(2)
        assert routed_qos(path, 6, 8) is OfferRefusal.COPY, "the session has had the mark 9"

    def test_messages_that_share_a_mark_are_known_if_all_were_sent_here(self) -> None:
        for kind in (SourceKind.UPLINK_BATCH, SourceKind.PUBLICATIONS_BATCH, SourceKind.RETAINED):
            source, path = source_number(kind, 0, "topic id"), subscribed()
            assert [routed_qos(path, 5 + number, 1, source=source, name=name) for number, name in enumerate("ab")] == [QoS(2)] * 2
            assert routed_qos(path, 7, 1, source=source, name="a") is OfferRefusal.COPY
            granted(path, 2, 7)
            assert routed_qos(path, 8, 1, source=source, name="c") is OfferRefusal.AMBIGUOUS, "the session has handled one"
            granted(path, 2, 8)
            assert routed_qos(path, 9, 2, source=source, name="d") == QoS(2)

    def test_after_a_grant_beyond_what_was_sent_here_the_session_tells_a_copy(self) -> None:
        source, path = source_number(SourceKind.RETAINED, 0, "topic id"), subscribed()
        assert routed_qos(path, 5, 1, source=source) == QoS(2)
        granted(path, 2, 5)
        assert routed_qos(path, 6, 1, source=source, name="b") == QoS(2)
        granted(path, 2, 7)
        assert routed_qos(path, 8, 1, source=source, name="c") is OfferRefusal.AMBIGUOUS

    def test_a_named_publication_is_a_repetition_of_its_message_id(self) -> None:
        path = subscribed()
        assert routed_qos(path, 5, 1, is_named=True) == QoS(2)
        assert routed_qos(path, 6, 2) == QoS(2), "not named, so it cannot be repeated"
        assert routed_qos(path, 7, 3, is_named=True) is OfferRefusal.REPETITION

    def test_a_message_for_a_list_of_clients_is_as_any_other(self) -> None:
        path = subscribed(3, LOW)
        headers = (("mqtt-topic", b"t"), ("mqtt-qos", b"2"))
        given = OfferPublish(connection_id=1, position=Position(2, 5), previous=4, timestamp_ms=0, headers=headers, recipient=b"")
        taken = offered(path, given)
        assert isinstance(taken, TakenOffer)
        assert (taken.publish.qos, taken.sent.message.routing) == (QoS(0), None)


def test_the_first_marks_of_a_source_are_no_copies() -> None:
    path = fast_path()
    path.list_id = (1, 3)
    granted(path, 2, 4, subscriptions=())
    assert [routed_qos(path, offset, mark) for offset, mark in ((5, 0), (6, 1))] == [QoS.EXACTLY_ONCE] * 2
    assert routed_qos(path, 7, 1) is OfferRefusal.COPY


def new_session(*, partition: int = 2) -> WireFastPath:
    """A path of connection 1 that has begun a session; the router had read up to offset 4 of this partition."""
    path = fast_path()
    path.list_id = (1, 3)
    path.begin(Position(partition, 4))
    return path


class TestANewSession:
    def test_what_comes_by_its_own_list_needs_no_grant(self) -> None:
        path = new_session()
        assert (path.state, path.needs_session, path.may_wait_for_session) == (IS_OPEN, False, False)
        taken = routed_offer(path, 7, 1, previous=4)
        assert isinstance(taken, TakenOffer)
        assert (taken.sent.is_granted, taken.sent.previous) == (False, -1)
        second = routed_offer(path, 9, 2, previous=7)
        assert isinstance(second, TakenOffer)
        assert (second.sent.is_granted, second.sent.previous) == (False, 7)

    def test_other_messages_are_left_to_the_session(self) -> None:
        path = new_session()
        assert offer(path, 2, 6, previous=4) is OfferRefusal.NO_GRANT, "it names the client"
        assert routed_offer(path, 7, 1, previous=6, matched_by=(0, 1)) is OfferRefusal.NO_GRANT, "of an earlier session"
        assert path.state is IS_OPEN
        assert routed_qos(path, 8, 2, previous=7) == QoS(2)

    def test_a_message_that_the_router_has_not_read_is_waited_for(self) -> None:
        path = new_session()
        assert routed_offer(path, 9, 1, previous=7) is OfferHold.CLOSED
        assert (path.state, path.needs_session) == (FastPathState.HOLDING, True)
        granted(path, 2, 7)
        assert isinstance(path.take_next(False, 900), TakenOffer)

    def test_a_refused_message_is_waited_for(self) -> None:
        path = new_session()
        assert routed_offer(path, 7, 1, previous=4, share="$share/g/t") is OfferRefusal.SUBSCRIPTIONS
        path = new_session()
        assert routed_offer(path, 7, 1, previous=4, matched_by=(1, 4)) is OfferRefusal.SUBSCRIPTIONS
        assert (path.state, path.needs_session) == (FastPathState.HOLDING, True)
        assert routed_offer(path, 8, 2, previous=7) is OfferHold.CLOSED

    def test_a_message_that_the_session_sends_first_is_waited_for(self) -> None:
        path = new_session()
        assert not was_taken(path, 2, 7, dup=False)
        assert routed_offer(path, 8, 2, previous=7) is OfferHold.CLOSED
        path = new_session()
        routed_offer(path, 8, 2, previous=4)
        assert was_taken(path, 2, 8, dup=False)
        assert not was_taken(path, 2, 6, dup=False), "it was left to the session"
        assert routed_qos(path, 9, 3, previous=8) == QoS(2)

    def test_a_grant_covers_what_comes_behind_what_was_taken(self) -> None:
        path = new_session()
        routed_offer(path, 7, 1, previous=4)
        granted(path, 2, 3)
        assert offer(path, 2, 8, previous=7) is OfferRefusal.NO_GRANT, "a message at 4 may not be handled"
        granted(path, 2, 8)
        taken = offer(path, 2, 9, previous=8)
        assert isinstance(taken, TakenOffer)
        assert (taken.sent.is_granted, taken.sent.previous) == (True, 8)

    def test_a_partition_that_the_router_does_not_read_needs_a_grant(self) -> None:
        path = new_session(partition=5)
        assert routed_offer(path, 7, 1, previous=4) is OfferHold.CLOSED
        path = new_session()
        granted(path, 5, 3)
        assert routed_offer(path, 7, 1, previous=4) is OfferRefusal.PARTITION

    def test_behind_a_path_that_was_closed_all_needs_a_grant(self) -> None:
        for takes in (True, False):
            path = new_session()
            if takes:
                routed_offer(path, 7, 1, previous=4)
            path.close()
            assert (path.state, path.needs_session) == (FastPathState.HOLDING, True)
            assert routed_offer(path, 9, 2, previous=7 if takes else 4) is OfferHold.CLOSED

    def test_a_session_that_is_resumed_needs_a_grant(self) -> None:
        path = fast_path()
        granted(path, 2, 3)
        path.begin(Position(2, 4))
        assert routed_offer(path, 7, 1, previous=4) is OfferHold.GAP
