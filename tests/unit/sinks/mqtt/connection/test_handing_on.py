"""sinks.mqtt.connection.handing_on: a gateway with routing writes QoS 2 publications to `inflight.uplink` itself."""

from typing import Any

import pytest

from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.phases import CloseReason, Phase
from sinks.mqtt.known_tables import _NoTables
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection, DropAwaitingRel, KnownPublication
from state.events import ConnectionLost, PublishAccepted, PublishReceived, PubRelReceived
from state.inbound.awaiting_rel import content_hash
from state.model import ReasonCode
from state.records.events import decode_events
from tests.unit.sinks.mqtt.connection.harness import BROKERS_MS, Harness, ack
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

PUBREC, PUBREL, PUBCOMP = ack(0x50, 5), ack(0x62, 5), ack(0x70, 5)
CONTENT = content_hash("t", b"p")
KNOWN = KnownPublication(packet_id=5, content=CONTENT, publication_id="c1:9:1", since_ms=123)


class Sessions(_NoTables):
    def kept_ms(self, client_id: str) -> int | None:
        return None


def device(*known: KnownPublication, kept: bool = True, level: int = 4, **accept: Any) -> Harness:
    """A device whose session is kept, or ends with the connection."""
    harness = Harness(routing=RoutingSettings(enabled=True), serves_at_once=True, knows_settings=False, tables=Sessions())
    harness.send(connect(level=level, flags=0x00 if kept else 0x02))
    fields: dict[str, Any] = {
        "session_expiry_interval_s": 3_600 if kept else 0,
        "subscriptions": (),
        "topic_filters": (),
        "max_awaiting_rel": 100,
        "send_quota": 32,
        "known_publications": known,
        "awaiting_rel": tuple(each.packet_id for each in known if not each.is_abandoned),
    }
    harness.command(AcceptConnection, **{**fields, **accept})
    assert harness.connection.phase is Phase.CONNECTED
    harness.events.clear()
    return harness


def published(payload: bytes = b"p", *, dup: bool = False, packet_id: int = 5) -> bytes:
    return publish("t", payload, first_byte=0x34 | dup << 3, packet_id=packet_id)


def headers(append: Append) -> dict[str, bytes]:
    return dict(append.headers or ())


@pytest.mark.promise("handed-on-once")
def test_pubrec_follows_the_event_the_look_and_the_record_of_uplink() -> None:
    """[MQTT-4.3.3-8]"""
    harness = device()
    harness.confirming, harness.is_newest = False, None
    harness.send(published())
    [event] = harness.waiting
    assert decode_events(event.value) == (
        PublishAccepted(connection_id=77, packet_id=5, content=CONTENT, publication_id="c1:77:1"),
    )
    harness.confirm(event)
    assert (harness.looks, harness.waiting, harness.output()) == (1, [], b"")
    harness.feed("looked_for_later", True, BROKERS_MS)
    [uplink] = harness.waiting
    assert (uplink.topic, uplink.value) == (AppendTopic.UPLINK, b"p")
    assert headers(uplink)["inflight-id"] == b"c1:77:1"
    assert headers(uplink)["may-be-copy-since"] == b"%d" % BROKERS_MS
    assert headers(uplink)["connection-id"] == b"77"
    assert harness.output() == b""
    harness.confirm(uplink)
    assert harness.output() == PUBREC


def test_a_session_that_ends_with_its_connection_needs_no_look() -> None:
    harness = device(kept=False)
    assert harness.send(published()) == PUBREC
    [uplink] = harness.uplink
    assert harness.looks == 0
    assert not {"may-be-copy-since", "connection-id"} & headers(uplink).keys()
    assert harness.send(PUBREL) == PUBCOMP
    harness.last(PubRelReceived)


def test_one_look_serves_all_that_waits_and_the_order_is_kept() -> None:
    harness = device()
    harness.is_newest = None
    assert harness.send(published(b"a", packet_id=1)) == b""
    assert harness.send(published(b"b", packet_id=2), published(b"c", packet_id=3)) == b""
    assert harness.looks == 1
    harness.feed("looked_for_later", True, BROKERS_MS)
    assert harness.looks == 2, "for those that came meanwhile"
    harness.feed("looked_for_later", True, BROKERS_MS)
    assert harness.settle() == ack(0x50, 1) + ack(0x50, 2) + ack(0x50, 3)
    assert [append.value for append in harness.uplink] == [b"a", b"b", b"c"]


def test_with_a_later_connection_nothing_is_handed_on_or_answered() -> None:
    harness = device()
    harness.is_newest = False
    assert harness.send(published()) == b""
    assert harness.connection.is_closed
    assert harness.uplink == []
    assert harness.last(ConnectionLost).reconnect_grace_ms > 0


def test_a_known_publication_is_handed_on_under_its_id_as_a_possible_copy() -> None:
    harness = device(KNOWN)
    assert harness.send(published(dup=True)) == PUBREC
    assert harness.last(PublishAccepted) == PublishAccepted(
        connection_id=77, packet_id=5, content=CONTENT, publication_id="c1:9:1", dup=True, is_repetition=True, since_ms=123
    )
    [uplink] = harness.uplink
    assert (headers(uplink)["inflight-id"], headers(uplink)["may-be-copy-since"]) == (b"c1:9:1", b"123")
    assert "connection-id" not in headers(uplink)
    assert harness.send(published(dup=True)) == PUBREC
    harness.last(PublishReceived)
    assert len(harness.uplink) == 1, "this gateway has handed it on"


def test_an_abandoned_publication_is_repeated_with_dup_only() -> None:
    abandoned = KnownPublication(packet_id=5, content=CONTENT, publication_id="c1:9:1", since_ms=123, is_abandoned=True)
    harness = device(abandoned)
    harness.send(published(dup=True))
    assert harness.last(PublishAccepted).is_repetition
    harness = device(abandoned)
    harness.send(published())
    assert not harness.last(PublishAccepted).is_repetition
    assert headers(harness.uplink[0])["inflight-id"] == b"c1:77:1"


@pytest.mark.parametrize("dup", [False, True])
def test_what_the_session_has_handed_on_is_the_sessions_to_recognise(dup: bool) -> None:
    harness = device(KnownPublication(packet_id=5, content=CONTENT))
    assert harness.send(published(dup=dup)) == PUBREC
    harness.last(PublishReceived)
    assert harness.uplink == []


def test_other_content_with_dup_under_a_known_id_is_left_to_the_session() -> None:
    harness = device(KNOWN)
    assert harness.send(published(b"other", dup=True)) == PUBREC
    harness.last(PublishReceived)


def test_other_content_without_dup_under_a_known_id_is_new() -> None:
    harness = device(KNOWN)
    assert harness.send(published(b"other")) == PUBREC
    assert not harness.last(PublishAccepted).is_repetition


def test_a_repetition_on_the_same_connection_is_not_handed_on_again() -> None:
    harness = device()
    harness.is_newest = None
    assert harness.send(published(), published(dup=True)) == b"", "its PUBREC is behind the first one"
    harness.last(PublishReceived)
    harness.feed("looked_for_later", True, BROKERS_MS)
    assert harness.settle() == PUBREC * 2
    assert len(harness.uplink) == 1


def test_a_repetition_after_the_session_has_abandoned_it_is_recognised() -> None:
    harness = device()
    harness.send(published())
    harness.command(DropAwaitingRel, packet_ids=(5, 6))
    assert harness.send(published(dup=True)) == PUBREC
    harness.last(PublishReceived)
    assert harness.send(PUBREL) == PUBCOMP
    harness.send(published(dup=True))
    assert not harness.last(PublishAccepted).is_repetition


def test_the_session_hands_on_where_its_gateway_cannot_know_enough() -> None:
    harness = device(known_publications=None)
    assert harness.send(published()) == PUBREC
    harness.last(PublishReceived)


def test_what_a_device_has_published_is_handed_on_after_it_has_left() -> None:
    harness = device()
    harness.confirming = False
    harness.send(published())
    harness.feed("peer_closed")
    harness.confirming = True
    assert harness.settle() == b""
    assert [append.value for append in harness.uplink] == [b"p"]


@pytest.mark.parametrize("when", ["before the event is there", "while the gateway looks"])
def test_nothing_is_handed_on_after_an_end_that_the_gateway_caused(when: str) -> None:
    harness = device()
    harness.confirming, harness.is_newest = False, None
    harness.send(published())
    if when == "while the gateway looks":
        harness.confirming = True
        harness.settle()
    harness.close("lease", ReasonCode.SERVER_BUSY)
    harness.confirming = True
    harness.settle()
    harness.feed("looked_for_later", True, BROKERS_MS)
    assert (harness.settle(), harness.uplink) == (b"", [])
    assert unconfirmed(harness.connection) == 0


def unconfirmed(connection: WireConnection) -> int:
    return connection._records.unconfirmed


def test_a_graceful_end_waits_for_what_is_to_be_handed_on() -> None:
    harness = device(level=5)
    harness.is_newest = None
    harness.send(publish("t", b"p", first_byte=0x34, packet_id=5, v5=b""))
    harness.feed("close_gracefully", CloseReason("stops", "gateway", ReasonCode.SERVER_SHUTTING_DOWN), 0)
    assert harness.settle() == b""
    assert not harness.connection.is_closed
    harness.feed("looked_for_later", True, BROKERS_MS)
    assert harness.settle() == PUBREC + bytes.fromhex("e0018b")


@pytest.mark.parametrize("topic", [AppendTopic.EVENTS, AppendTopic.UPLINK])
def test_without_one_of_both_records_the_connection_ends(topic: AppendTopic) -> None:
    harness = device()
    harness.confirming = False
    harness.send(published())
    if topic is AppendTopic.UPLINK:
        harness.confirm(harness.waiting[0])
    [append] = harness.waiting
    assert append.topic is topic
    harness.confirm(append, OSError("told to fail"))
    assert harness.connection.is_closed
    harness.confirming = True
    harness.settle()
    assert unconfirmed(harness.connection) == 0
    assert harness.output() == b""


def test_a_publication_that_is_too_large_for_uplink_is_refused() -> None:
    harness = device(level=5)
    harness.confirming = False
    harness.send(publish("t", b"p", first_byte=0x34, packet_id=5, v5=b""))
    harness.confirm(harness.waiting[0])
    harness.confirm(harness.uplink[0], OSError("told to fail"), too_large=True)
    assert harness.output() == bytes.fromhex("5003000597")


def test_what_is_retained_has_the_id_of_what_is_handed_on() -> None:
    harness = device(kept=False)
    assert harness.send(publish("t", b"p", first_byte=0x35, packet_id=5)) == PUBREC
    [kept], [uplink] = harness.others[AppendTopic.RETAINED], harness.uplink
    assert kept.headers == uplink.headers


def test_the_engine_need_not_be_woken_for_what_the_gateway_hands_on() -> None:
    harness = device(kept=False)
    harness.confirming = False
    harness.send(published())
    assert not harness.waiting[0].is_urgent
    harness.confirming = True
    harness.settle()
    harness.confirming = False
    harness.send(PUBREL)
    assert not harness.waiting[0].is_urgent
