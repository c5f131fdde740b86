"""sinks.mqtt.connection.fast_path: which offers a connection accepts, refuses and holds."""

from typing import Any

import pytest

from sinks.fast_path.offering import FastPathState
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.limits.buffered import Buffered
from sinks.mqtt.settings import DeviceLimits
from sinks.routing.settings import FastPathSettings
from state.events import FastSent
from state.model import Position, QoS, ReasonCode, Routing, Subscription
from state.outbound.deduplication import message_digest
from state.records.routing import encode_routing
from state.settings import RecordLimits
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected, send_publish, written
from tests.unit.sinks.mqtt.connection.offers import (
    FIRST,
    SECOND,
    WALL_MS,
    fast_sents,
    grant,
    granted,
    holds,
    offer,
    refusals,
    send_slow,
    sent,
)


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
        harness = connected(fast_path=FastPathSettings(max_held_bytes=1_300))
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

    def test_less_is_held_while_memory_is_scarce(self) -> None:
        harness = connected(fast_path=FastPathSettings(max_held_bytes=32 * 1_300))
        harness.connection._device._buffered = buffered = Buffered(DeviceLimits(max_total_buffered_bytes=100))  # type: ignore[union-attr]
        buffered.update(self, 51)  # type: ignore[arg-type]
        for offset in (5, 6, 7):
            offer(harness, offset)
        assert (refusals(harness), holds(harness)) == ({"full": 1}, {"closed": 2})
        buffered.update(self, 50)  # type: ignore[arg-type]
        offer(harness, 8)
        assert holds(harness) == {"closed": 3}

    def test_forgotten_offers_are_left_to_the_session(self) -> None:
        harness = connected()
        offer(harness, 5)
        assert harness.connection.held_offers_bytes > 512
        harness.feed("forget_offers")
        assert (harness.connection.held_offers_bytes, harness.effects.held_bytes) == (0, 0)
        assert grant(harness, 4, is_snapshot=True, subscriptions=()) == b""
        assert offer(harness, 6) == b"", "5 is missing"
        assert send_slow(harness, 1, offset=5)

    def test_an_offer_that_only_waits_for_a_slot_needs_no_session(self) -> None:
        harness = granted()
        path = harness.connection._device.fast_path  # type: ignore[union-attr]
        for offset in (5, 6, 7):
            offer(harness, offset)
        assert holds(harness) == {"waiting": 1}
        assert (harness.connection.needs_session, path.may_wait_for_session) == (False, False)

    def test_an_offer_behind_a_missing_one_needs_the_session(self) -> None:
        harness = granted()
        assert not harness.connection.needs_session
        offer(harness, 6)
        assert (holds(harness), harness.connection.needs_session) == ({"gap": 1}, True)

    def test_without_a_grant_the_session_is_needed(self) -> None:
        assert connected().connection.needs_session

    def test_behind_a_refused_offer_the_session_is_needed(self) -> None:
        harness = granted()
        offer(harness, 5, ("priority", b"1"))
        assert (refusals(harness), harness.connection.needs_session) == ({"priority": 1}, True)

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
