"""sinks.mqtt.connection.fast_path: offers to a connection, on its wire and in its records."""

from typing import Any

import pytest

from sinks.fast_path.offering import FastPathState
from sinks.fast_path.settings import FastPathSettings
from sinks.mqtt.connection.phases import CloseReason
from state.commands import CloseFastPath, OfferPublish, OpenFastPath, SendPublish, SendPubRel, WithdrawPublish
from state.events import ConnectionLost, FastPathClosed, FastSent, PubAckReceived
from state.model import Position, QoS, ReasonCode, Routing, Subscription
from state.outbound.deduplication import message_digest
from state.records.routing import encode_routing
from state.records.settings import RecordLimits
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected, send_publish, written
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

FIRST, SECOND = 32_768, 32_769
WALL_MS = 1_700_000_000_000
TOPIC = ("mqtt-topic", b"t")


def granted(level: int = 4, *, after: int = 4, partition: int = 2, **settings: Any) -> Harness:
    """A connection whose grant begins behind offset 4; two slots."""
    harness = connected(level, **settings)
    grant(harness, after, partition=partition, is_snapshot=True, subscriptions=())
    return harness


def grant(harness: Harness, after: int, *, partition: int = 2, **fields: Any) -> bytes:
    return harness.command(OpenFastPath, after=Position(partition, after), **fields)


def offer(
    harness: Harness,
    offset: int,
    *headers: tuple[str, bytes],
    previous: int | None = None,
    payload: bytes = b"p",
    qos: int = 1,
    partition: int = 2,
    age_ms: int = 0,
    under_pressure: bool = False,
    recipient: bytes | None = None,
) -> bytes:
    given = OfferPublish(
        connection_id=77,
        position=Position(partition, offset),
        previous=offset - 1 if previous is None else previous,
        timestamp_ms=WALL_MS - age_ms,
        headers=(TOPIC, ("mqtt-qos", b"%d" % qos), *headers),
        payload=payload,
        recipient=recipient,
    )
    counters, path = harness.counters, harness.connection.fast_path
    ignored, taken = counters.offers_ignored, counters.offers_taken
    harness.feed("offer", given, under_pressure, WALL_MS)
    # A router does not always make an offer to a path that is not open, so it must be right about what would become of it.
    if path is FastPathState.CLOSED:
        assert counters.offers_ignored == ignored + 1
    if path is FastPathState.HOLDING:
        assert counters.offers_taken == taken
    return harness.settle()


def sent(packet_id: int, payload: bytes = b"p", *, qos: int = 1, v5: bytes | None = None) -> bytes:
    return publish("t", payload, first_byte=0x30 | qos << 1, packet_id=packet_id if qos else None, v5=v5)


def refusals(harness: Harness) -> dict[str, int]:
    return dict(harness.counters.offers_refused)


def holds(harness: Harness) -> dict[str, int]:
    return dict(harness.counters.offers_held)


def fast_sents(harness: Harness) -> list[FastSent]:
    return [event for event in harness.events if isinstance(event, FastSent)]


class TestTaking:
    def test_an_offer_is_written_when_its_record_is_confirmed(self) -> None:
        harness = granted()
        harness.confirming = False
        assert offer(harness, 5, ("message-id", b"m"), ("x-more", b"?"), qos=2) == b""
        told = harness.last(FastSent)
        assert (told.connection_id, told.position, told.previous) == (77, Position(2, 5), 4)
        assert (told.packet_id, told.qos, told.sent_ms, told.explicit_id) == (FIRST, QoS.EXACTLY_ONCE, WALL_MS, True)
        message = told.message
        assert (message.message_id, message.topic, message.payload, message.qos) == ("m", "t", b"p", QoS.EXACTLY_ONCE)
        assert (message.accepted_ms, message.headers) == (WALL_MS, (("x-more", b"?"),))
        harness.confirming = True
        assert harness.settle() == sent(FIRST, qos=2)
        assert harness.counters.offers_taken == harness.counters.fast_publishes_sent == harness.counters.publishes_sent == 1

    def test_offers_follow_each_other_under_ids_of_their_own(self) -> None:
        harness = granted()
        assert offer(harness, 5) == sent(FIRST)
        assert offer(harness, 9, previous=5) == sent(SECOND)
        assert [(told.position.offset, told.previous) for told in fast_sents(harness)] == [(5, 4), (9, 5)]
        assert fast_sents(harness)[0].message.message_id == "inflight.messages-2-5"

    def test_a_routed_message_is_judged_by_the_list_of_acceptconnection(self) -> None:
        harness = granted(accept={"list_connection_id": 70, "list_version": 2})
        for version, expected in ((2, sent(FIRST)), (3, b"")):
            routing = Routing(source=0, mark=version, connection_id=70, version=version, qos=QoS(1))
            assert offer(harness, 3 + version, qos=2, recipient=encode_routing(routing)) == expected
        assert refusals(harness) == {"subscriptions": 1}

    def test_a_payload_of_the_largest_size_is_accepted(self) -> None:
        harness = granted(fast_path=FastPathSettings(max_payload_bytes=100))
        assert offer(harness, 5, payload=b"p" * 100) == sent(FIRST, b"p" * 100)

    def test_without_a_grant_offers_are_held(self) -> None:
        harness = connected()
        assert offer(harness, 5) == b""
        assert (harness.counters.offers_ignored, refusals(harness), holds(harness)) == (0, {}, {"closed": 1})

    def test_offers_before_acceptance_and_after_the_end_are_ignored(self) -> None:
        for harness in (Harness(), granted()):
            harness.close("it stops", ReasonCode.SERVER_BUSY)
            harness.settle()
            assert offer(harness, 5) == b""
            assert harness.counters.offers_ignored == 1

    def test_a_repeated_offer_is_accepted_once(self) -> None:
        harness = granted()
        offer(harness, 5)
        assert offer(harness, 5) == b""
        assert grant(harness, 4) == b"", "an older grant"
        assert offer(harness, 5) == b""
        assert len(fast_sents(harness)) == 1
        assert harness.counters.offers_ignored == 2

    def test_the_subscriptions_of_the_grant_cap_the_qos(self) -> None:
        harness = granted()
        grant(harness, 4, subscriptions=(Subscription(topic_filter="#", qos=QoS.AT_LEAST_ONCE),))
        assert offer(harness, 5, qos=2) == sent(FIRST)
        assert (harness.last(FastSent).qos, harness.last(FastSent).message.qos) == (1, 2)
        grant(harness, 5)
        assert offer(harness, 6, qos=2) == sent(SECOND), "the grant before has said it"
        grant(harness, 6, subscriptions=())
        harness.send(ack(0x40, FIRST), ack(0x40, SECOND))
        assert offer(harness, 7, qos=2) == sent(32_770, qos=2)

    def test_the_remaining_expiry_interval_is_sent_as_by_the_session(self) -> None:
        """[MQTT-3.3.2-6]"""
        harness = granted(5)
        assert offer(harness, 5, ("expiration", b"5000"), age_ms=1_500) == sent(FIRST, v5=b"\x02\x00\x00\x00\x04")
        assert offer(harness, 6, ("expiration", b"0"), age_ms=1_500) == sent(SECOND, v5=b"\x02\x00\x00\x00\x01")

    def test_the_append_time_is_subtracted_from_the_expiry_interval(self) -> None:
        """[MQTT-3.3.2-6]"""
        harness = granted(5)
        harness.confirming = False
        offer(harness, 5, ("expiration", b"5000"))
        harness.now_ms += 2_000
        harness.confirming = True
        assert harness.settle() == sent(FIRST, v5=b"\x02\x00\x00\x00\x03")


class TestRefusing:
    @pytest.mark.parametrize(
        ("reason", "how"),
        [
            ("partition", {"partition": 3}),
            ("pressure", {"under_pressure": True}),
            ("size", {"payload": b"p" * 101}),
            ("invalid", {"headers": [("priority", b"high")]}),
            ("invalid", {"headers": [("many", b"h" * 65_536)]}),
            ("invalid", {"headers": [("mqtt-topic", b"")]}),
            ("priority", {"headers": [("priority", b"1")]}),
            ("cc", {"headers": [("CC", b"a")]}),
            ("cc", {"headers": [("BCC", b"a")]}),
            ("expired", {"headers": [("expiration", b"10")], "age_ms": 10}),
            ("repetition", {"headers": [("message-id", b"known")]}),
            ("invalid", {"recipient": b"no entry"}),
        ],
    )
    def test_an_offer_with_special_handling_is_left_to_the_session(self, reason: str, how: dict[str, Any]) -> None:
        harness = granted(fast_path=FastPathSettings(max_payload_bytes=100))
        grant(harness, 4, recent_ids=message_digest("known"))
        options = {"offset": 5, "headers": (), **how}
        assert offer(harness, options.pop("offset"), *options.pop("headers"), **options) == b""
        assert refusals(harness) == {reason: 1}
        assert fast_sents(harness) == []

    def test_offers_behind_a_refused_message_wait_for_the_session(self) -> None:
        harness = granted()
        offer(harness, 5, ("priority", b"1"))
        assert offer(harness, 6) == b""
        assert grant(harness, 4) == b""
        assert offer(harness, 8, previous=7) == b""
        assert grant(harness, 5) == sent(FIRST), "6, and 7 is missing"
        assert (refusals(harness), holds(harness)) == ({"priority": 1}, {"broken": 2})
        assert grant(harness, 7) == sent(SECOND)

    def test_a_message_that_the_session_sends_first_breaks_the_chain(self) -> None:
        harness = granted()
        send_slow(harness, 1, offset=6, qos=0)
        assert offer(harness, 7, previous=4) == b""
        assert grant(harness, 5) == b""
        assert grant(harness, 6) == sent(FIRST)

    def test_a_repetition_by_the_session_does_not_break_it(self) -> None:
        harness = granted()
        send_slow(harness, 1, offset=6, dup=True)
        assert offer(harness, 5) == sent(FIRST)

    def test_an_offer_needs_a_free_slot_and_no_waiting_message(self) -> None:
        """[MQTT-3.3.4-9]"""
        harness = granted()
        send_publish(harness, 1)
        assert offer(harness, 5) == sent(FIRST)
        assert offer(harness, 6) == b""
        send_publish(harness, 2)
        grant(harness, 6)
        assert offer(harness, 7, qos=0) == b"", "2 waits for a slot"
        assert (refusals(harness), holds(harness)) == ({}, {"waiting": 2})
        assert harness.send(ack(0x40, 1)) == written(2) + sent(0, qos=0), "QoS 0 needs no slot"

    def test_qos_0_needs_no_slot(self) -> None:
        harness = granted()
        for packet_id in (1, 2):
            send_publish(harness, packet_id)
        assert offer(harness, 5, qos=0) == sent(0, qos=0)
        assert harness.last(FastSent).packet_id == 0

    def test_a_device_that_does_not_read_gets_nothing_new(self) -> None:
        harness = granted()
        harness.feed("writing_blocked", True)
        assert offer(harness, 5, qos=0) == b""
        assert holds(harness) == {"unread": 1}
        harness.feed("writing_blocked", False)
        assert harness.settle() == sent(0, qos=0)

    def test_a_message_above_the_maximum_packet_size_is_left_to_the_session(self) -> None:
        """[MQTT-3.1.2-24]"""
        harness = granted(5, properties=b"\x27\x00\x00\x00\x16")
        assert offer(harness, 5, payload=b"p" * 14) == sent(FIRST, b"p" * 14, v5=b"")
        assert offer(harness, 6, payload=b"p" * 15) == b""
        assert refusals(harness) == {"size": 1}

    def test_a_message_that_mqtt_cannot_carry_is_left_to_the_session(self) -> None:
        limits = RecordLimits(max_headers_bytes=200_000)
        harness = granted(5, limits=limits)
        many = [(f"user-{number}", b"v" * 60_000) for number in range(3)]
        assert len(offer(harness, 5, *many)) > 180_000
        harness = granted(limits=limits)
        assert offer(harness, 5, ("user-a", b"\x00")) == b""
        assert refusals(harness) == {"invalid": 1}

    def test_a_repetition_of_an_accepted_message_is_left_to_the_session(self) -> None:
        harness = granted()
        offer(harness, 5, ("message-id", b"m"))
        grant(harness, 4, is_snapshot=True)
        assert offer(harness, 6, ("message-id", b"m")) == b""
        assert refusals(harness) == {"repetition": 1}

    def test_kafkas_silence_stops_the_fast_path_of_a_connection(self) -> None:
        harness = granted(max_unconfirmed_appends=2, accept={"send_quota": 9})
        harness.confirming = False
        for offset in (5, 6, 7):
            offer(harness, offset)
        assert (len(fast_sents(harness)), holds(harness)) == (2, {"unconfirmed": 1})
        harness.confirming = True
        assert harness.settle() == sent(FIRST) + sent(SECOND) + sent(32_770)


class TestHolding:
    def test_a_grant_accepts_what_is_held_behind_it(self) -> None:
        harness = connected()
        for offset in (3, 4, 5, 6):
            offer(harness, offset, payload=b"%d" % offset)
        assert grant(harness, 4, is_snapshot=True, subscriptions=()) == sent(FIRST, b"5") + sent(SECOND, b"6")
        assert [(told.position.offset, told.previous) for told in fast_sents(harness)] == [(5, 4), (6, 5)]

    def test_an_acknowledgement_makes_room_for_the_next_one(self) -> None:
        """[MQTT-3.3.4-9]"""
        harness = granted()
        for offset in (5, 6, 7, 8):
            offer(harness, offset, payload=b"%d" % offset)
        assert harness.output() == b""
        assert harness.connection.fast_path is FastPathState.HOLDING
        assert harness.send(ack(0x40, FIRST)) == sent(32_770, b"7")
        assert harness.send(ack(0x40, SECOND)) == sent(32_771, b"8")
        assert harness.connection.fast_path is FastPathState.OPEN

    def test_what_the_session_sends_is_held_no_longer(self) -> None:
        harness = granted()
        for offset in (6, 7, 9):
            offer(harness, offset, previous=offset - 1)
        send_slow(harness, 1, offset=7)
        assert harness.connection.fast_path is FastPathState.HOLDING
        assert grant(harness, 7) == b"", "8 is missing"
        assert grant(harness, 8) == sent(FIRST)
        assert harness.last(FastSent).position.offset == 9

    def test_what_the_session_repeats_stays_held(self) -> None:
        harness = granted()
        offer(harness, 6, previous=5)
        send_slow(harness, 1, offset=6, dup=True)
        assert grant(harness, 5) == sent(FIRST)

    def test_a_message_that_expires_while_it_is_held_is_left_to_the_session(self) -> None:
        harness = granted()
        for offset in (5, 6, 7):
            offer(harness, offset, ("expiration", b"2000"))
        harness.now_ms += 2_000
        assert harness.send(ack(0x40, FIRST)) == b""
        assert refusals(harness) == {"expired": 1}

    def test_the_time_that_an_offer_is_held_counts_for_the_session(self) -> None:
        harness = connected(5)
        offer(harness, 5, ("expiration", b"5000"), age_ms=1_000)
        harness.now_ms += 2_000
        assert grant(harness, 4, is_snapshot=True, subscriptions=()) == sent(FIRST, v5=b"\x02\x00\x00\x00\x02")
        assert harness.last(FastSent).sent_ms == WALL_MS + 2_000

    def test_what_is_too_much_is_left_to_the_session(self) -> None:
        harness = connected(fast_path=FastPathSettings(max_held_offers=2))
        for offset in (5, 6, 7):
            offer(harness, offset, qos=0)
        assert (refusals(harness), holds(harness)) == ({"full": 1}, {"closed": 2})
        assert grant(harness, 4, is_snapshot=True, subscriptions=()) == 2 * sent(0, qos=0)
        assert offer(harness, 8, qos=0) == b"", "7 is missing"
        assert grant(harness, 7) == sent(0, qos=0)

    def test_held_bytes_are_limited_and_counted(self) -> None:
        harness = connected(fast_path=FastPathSettings(max_held_bytes=2_000))
        offer(harness, 5, payload=b"p" * 2_000)
        held_bytes = harness.effects.held_bytes
        assert held_bytes > 2_000, "one message always fits"
        offer(harness, 6)
        assert (refusals(harness), harness.effects.held_bytes) == ({"full": 1}, held_bytes)
        send_slow(harness, 1, offset=5)
        assert harness.effects.held_bytes == 0

    def test_an_offer_of_another_partition_replaces_what_is_held(self) -> None:
        harness = connected()
        offer(harness, 5)
        offer(harness, 70, partition=3)
        assert grant(harness, 4, is_snapshot=True, subscriptions=()) == b""
        assert grant(harness, 69, partition=3) == sent(FIRST)

    def test_nothing_held_is_accepted_after_the_end_has_begun(self) -> None:
        harness = connected()
        offer(harness, 5)
        harness.confirming = False
        harness.feed("close_gracefully", CloseReason("it stops", "gateway", ReasonCode.SERVER_BUSY), 0)
        grant(harness, 4, is_snapshot=True, subscriptions=())
        assert fast_sents(harness) == []


class TestTheWire:
    def test_nothing_new_is_written_behind_an_unconfirmed_message(self) -> None:
        harness = granted(accept={"send_quota": 9})
        send_publish(harness, 1)
        harness.confirming = False
        offer(harness, 5)
        assert send_publish(harness, 2) == b""
        assert send_publish(harness, 0, qos=0, payload=b"0") == b""
        assert send_publish(harness, 1, dup=True) != b"", "it is on the wire already"
        harness.confirming = True
        assert harness.settle() == sent(FIRST) + sent(0, b"0", qos=0) + sent(2)

    def test_messages_are_written_in_their_order_whatever_kafka_confirms_first(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5, payload=b"1")
        offer(harness, 6, payload=b"2")
        assert harness.settle() == b""
        first, second = harness.waiting
        harness.confirm(second)
        assert harness.settle() == b""
        harness.confirm(first)
        assert harness.settle() == sent(FIRST, b"1") + sent(SECOND, b"2")

    def test_a_pubrel_passes(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        assert harness.command(SendPubRel, packet_id=9) == ack(0x62, 9)

    def test_an_accepted_offer_holds_its_slot_before_it_is_written(self) -> None:
        """[MQTT-3.3.4-9]"""
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        send_publish(harness, 1)
        send_publish(harness, 2)
        harness.confirming = True
        assert harness.settle() == sent(FIRST) + sent(1)
        assert harness.send(ack(0x40, FIRST)) == sent(2)
        assert harness.last(PubAckReceived).packet_id == FIRST

    def test_a_failed_append_of_an_offer_ends_the_connection(self) -> None:
        harness = granted(5)
        harness.confirming = False
        offer(harness, 5)
        offer(harness, 6)
        first, second = harness.waiting
        harness.confirm(first, OSError("told to fail"))
        harness.confirm(second)
        assert harness.settle() == bytes.fromhex("e00189")
        harness.last(ConnectionLost)

    def test_what_is_not_confirmed_when_the_lease_passes_is_not_written(self) -> None:
        harness = granted(5)
        harness.confirming = False
        offer(harness, 5)
        harness.close("the lease has passed", ReasonCode.SERVER_BUSY)
        assert harness.settle() == bytes.fromhex("e00189")
        harness.confirming = True
        assert harness.settle() == b""

    def test_an_accepted_offer_is_written_to_a_blocked_device(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        harness.feed("writing_blocked", True)
        harness.confirming = True
        assert harness.settle() == sent(FIRST)

    def test_a_message_that_is_withdrawn_before_it_is_written_stays_unwritten(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        send_publish(harness, 1)
        assert harness.command(WithdrawPublish, packet_ids=(FIRST,)) == sent(1)
        harness.confirming = True
        assert harness.settle() == b""

    def test_too_much_qos_0_behind_a_message_that_waits_is_dropped(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        send_publish(harness, 0, qos=0, payload=bytes((1 << 20) - len("t")))
        send_publish(harness, 0, qos=0)
        harness.confirming = True
        assert len(harness.settle()) > 1 << 20
        assert harness.counters.qos0_dropped == 1
        harness.confirming = False
        offer(harness, 6)
        send_publish(harness, 0, qos=0)
        harness.confirming = True
        assert harness.settle() == sent(SECOND) + sent(0, qos=0)


def send_slow(harness: Harness, packet_id: int, *, offset: int, qos: int = 1, dup: bool = False) -> bytes:
    return harness.command(
        SendPublish, packet_id=packet_id, topic="t", payload=b"s", qos=QoS(qos), dup=dup, position=Position(2, offset)
    )


ALIAS = b"\x23\x00\x01"


class TestProperties:
    def test_both_paths_and_resends_share_the_topic_aliases(self) -> None:
        """[MQTT-3.1.2-26]"""
        harness = granted(5, properties=b"\x22\x00\x01", accept={"send_quota": 9})
        assert offer(harness, 5) == sent(FIRST, v5=ALIAS)
        assert send_publish(harness, 1) == publish("", b"p", first_byte=0x32, packet_id=1, v5=ALIAS)
        assert send_publish(harness, 1, dup=True) == publish("", b"p", first_byte=0x3A, packet_id=1, v5=ALIAS)
        grant(harness, 5)
        assert offer(harness, 6, ("expiration", b"5000"), qos=0) == publish("", b"p", v5=b"\x02\x00\x00\x00\x05" + ALIAS)

    def test_the_first_publish_on_the_wire_sets_the_alias(self) -> None:
        harness = granted(5, properties=b"\x22\x00\x01", accept={"send_quota": 9})
        harness.confirming = False
        assert offer(harness, 5) == b""
        assert send_slow(harness, 1, offset=4) == b"", "it waits behind the offer, which was encoded before"
        harness.confirming = True
        assert harness.settle() == sent(FIRST, v5=ALIAS) + publish("", b"s", first_byte=0x32, packet_id=1, v5=ALIAS)

    def test_without_a_topic_alias_maximum_there_is_no_alias(self) -> None:
        """[MQTT-3.1.2-27]"""
        for properties in (b"", b"\x22\x00\x00"):
            harness = granted(5, properties=properties)
            for offset in (5, 6):
                assert offer(harness, offset, qos=0) == sent(0, qos=0, v5=b"")

    def test_an_alias_leaves_a_publish_within_the_maximum_packet_size(self) -> None:
        """[MQTT-3.1.2-24]"""
        harness = granted(5, properties=b"\x22\x00\x01" + b"\x27\x00\x00\x00\x16")
        assert offer(harness, 5, payload=b"p" * 14) == sent(FIRST, b"p" * 14, v5=b"")
        assert offer(harness, 6, qos=0) == sent(0, qos=0, v5=ALIAS)

    def test_a_routed_message_carries_its_subscription_identifiers(self) -> None:
        """[MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
        routing = Routing(source=0, mark=1, connection_id=0, version=0, qos=QoS(1), subscription_ids=(3, 1))
        for level, v5 in ((5, b"\x0b\x03\x0b\x01"), (4, None)):
            harness = granted(level)
            assert offer(harness, 5, recipient=encode_routing(routing)) == sent(FIRST, v5=v5)
            written = harness.command(
                SendPublish, packet_id=0, topic="t", payload=b"s", qos=QoS(0), subscription_ids=routing.subscription_ids
            )
            assert written == publish("t", b"s", v5=v5)

    def test_subscription_identifiers_stay_after_a_wait_for_kafka(self) -> None:
        routing = Routing(source=0, mark=1, connection_id=0, version=0, qos=QoS(1), subscription_ids=(3,))
        harness = granted(5)
        harness.confirming = False
        offer(harness, 5, ("expiration", b"5000"), recipient=encode_routing(routing))
        harness.now_ms += 2_000
        harness.confirming = True
        assert harness.settle() == sent(FIRST, v5=b"\x02\x00\x00\x00\x03" + b"\x0b\x03")

    def test_subscription_identifiers_count_towards_the_packet_size(self) -> None:
        """[MQTT-3.1.2-24]"""
        for identifier, refused in ((127, {}), (128, {"size": 1})):
            routing = Routing(source=0, mark=1, connection_id=0, version=0, qos=QoS(1), subscription_ids=(identifier,))
            harness = granted(5, properties=b"\x27\x00\x00\x00\x16")
            offer(harness, 5, payload=b"p" * 12, recipient=encode_routing(routing))
            assert refusals(harness) == refused


class TestTheSessionsCopies:
    def test_the_sessions_copy_of_an_accepted_offer_is_dropped(self) -> None:
        harness = granted()
        offer(harness, 5)
        assert send_slow(harness, 1, offset=5) == b""
        assert send_slow(harness, 1, offset=5, dup=True) == b""
        assert harness.counters.copies_dropped == 2
        assert offer(harness, 6) == sent(SECOND), "it did not break the chain"

    def test_a_refused_offer_is_sent_by_the_session_out_of_order(self) -> None:
        harness = granted()
        offer(harness, 5, ("priority", b"1"))
        grant(harness, 5)
        offer(harness, 6)
        assert send_slow(harness, 1, offset=5) != b""

    def test_an_accepted_offer_is_remembered_until_its_adoption(self) -> None:
        harness = granted()
        offer(harness, 5)
        harness.now_ms += 300
        offer(harness, 6)
        grant(harness, 6, adopted=5)
        assert (harness.counters.adoptions, harness.counters.adoption_delay_ms) == (1, 300)
        assert send_slow(harness, 1, offset=6) == b""
        harness.send(ack(0x40, FIRST))
        assert send_slow(harness, 2, offset=5) != b""

    def test_a_repeated_message_does_not_precede_its_unwritten_original(self) -> None:
        """The engine has read FastSent before the gateway has heard that it is in the log, and repeats the message."""
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        assert send_publish(harness, FIRST, dup=True) == b""
        harness.confirming = True
        assert harness.settle() == sent(FIRST)


class TestClosing:
    def test_fast_path_closed_follows_all_accepted_offers(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        harness.command(CloseFastPath)
        assert [type(event) for event in harness.events[-2:]] == [FastSent, FastPathClosed]
        assert offer(harness, 6) == b""
        assert holds(harness) == {"closed": 1}
        harness.confirming = True
        assert harness.settle() == sent(FIRST)

    def test_it_opens_again(self) -> None:
        harness = granted()
        harness.command(CloseFastPath)
        offer(harness, 5)
        assert grant(harness, 4) == sent(FIRST)
        assert offer(harness, 6) == sent(SECOND)


class TestUrgency:
    """Says of which records the engine is told that they should not wait (state/records/wake_ups.py)."""

    @staticmethod
    def urgent(harness: Harness, *data: bytes) -> list[bool]:
        """Returns whether each record is urgent that the device's bytes make."""
        harness.confirming = False
        harness.send(*data)
        found = [append.is_urgent for append in harness.waiting]
        harness.confirming = True
        harness.settle()
        return found

    def test_a_connect_is_urgent(self) -> None:
        harness = Harness()
        assert self.urgent(harness, connect(flags=0x00)) == [True]

    def test_answers_to_the_fast_path_are_not_urgent_while_it_is_open(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        assert [append.is_urgent for append in harness.waiting] == [False]
        harness.confirming = True
        harness.settle()
        assert self.urgent(harness, ack(0x40, FIRST)) == [False]
        offer(harness, 6, qos=2)
        assert self.urgent(harness, ack(0x50, SECOND)) == [False], "the gateway answers by PUBREL itself"
        assert self.urgent(harness, ack(0x70, SECOND)) == [False]

    def test_answers_are_urgent_while_messages_may_wait_for_them(self) -> None:
        harness = connected()
        send_publish(harness, 1)
        assert self.urgent(harness, ack(0x40, 1)) == [True], "there is no grant"
        harness = granted()
        offer(harness, 5)
        offer(harness, 7, previous=6)
        assert self.urgent(harness, ack(0x40, FIRST)) == [True], "a message before the second one is the session's"

    def test_answers_are_urgent_while_messages_wait_in_the_queue_of_the_session(self) -> None:
        harness = connected()
        grant(harness, 4, is_snapshot=True, subscriptions=(), queued_to=6)
        offer(harness, 5)
        assert self.urgent(harness, ack(0x40, FIRST)) == [True]
        offer(harness, 6)
        assert self.urgent(harness, ack(0x40, SECOND)) == [False]

    def test_refusals_and_what_only_the_session_answers_are_urgent(self) -> None:
        harness = granted(level=5)
        offer(harness, 5)
        assert self.urgent(harness, bytes((0x40, 3)) + FIRST.to_bytes(2, "big") + b"\x97") == [True]
        assert self.urgent(harness, ack(0x50, 9)) == [True]
        assert self.urgent(harness, ack(0x62, 9)) == [True]
        assert self.urgent(harness, publish("t", first_byte=0x34, packet_id=1, v5=b"")) == [True]
