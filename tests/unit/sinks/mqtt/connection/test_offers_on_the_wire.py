"""sinks.mqtt.connection.fast_path: accepted offers on the wire and in the records of a connection."""

from sinks.mqtt.connection.fast_path import OfferHold
from sinks.mqtt.connection.phases import CloseReason
from state.commands import CloseFastPath, SendPublish, SendPubRel, WithdrawPublish
from state.events import ConnectionLost, FastPathClosed, FastSent, PubAckReceived
from state.model import QoS, ReasonCode, Routing
from state.records.routing import encode_routing
from state.records.scheduling import COLLAPSE_KEY
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack, connected, send_publish
from tests.unit.sinks.mqtt.connection.offers import FIRST, SECOND, grant, granted, holds, offer, refusals, send_slow, sent
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

ALIAS = b"\x23\x00\x01"


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
        send_publish(harness, 0, qos=0, payload=bytes((8 << 20) - len("t")))
        send_publish(harness, 0, qos=0)
        harness.confirming = True
        assert len(harness.settle()) > 8 << 20
        assert harness.counters.qos0_dropped == 1
        harness.confirming = False
        offer(harness, 6)
        send_publish(harness, 0, qos=0)
        harness.confirming = True
        assert harness.settle() == sent(SECOND) + sent(0, qos=0)


class TestAheadOfTheSlots:
    @staticmethod
    def quick() -> Harness:
        """A device with two slots, both taken, that has acknowledged two messages at once."""
        harness = granted()
        for offset in (5, 6, 7):
            offer(harness, offset)
        assert harness.send(ack(0x40, FIRST), ack(0x40, SECOND)) == sent(FIRST + 2)
        assert offer(harness, 8) == sent(FIRST + 3)
        return harness

    def test_messages_are_taken_before_there_is_a_slot_for_them(self) -> None:
        """[MQTT-3.3.4-9]"""
        harness = self.quick()
        assert offer(harness, 9) == offer(harness, 10) == b"", "they are in the log, and wait for slots"
        assert [event.position.offset for event in harness.events if isinstance(event, FastSent)] == [5, 6, 7, 8, 9, 10]
        assert send_publish(harness, 1) == b"", "it waits behind them"
        assert harness.effects.held_bytes > 0
        assert harness.send(ack(0x40, FIRST + 2)) == sent(FIRST + 4)
        assert harness.send(ack(0x40, FIRST + 3), ack(0x40, FIRST + 4)) == sent(FIRST + 5) + sent(1)
        assert harness.effects.held_bytes == 0

    def test_what_may_expire_or_be_replaced_waits_for_a_slot(self) -> None:
        for header in ("expiration", b"5000"), (COLLAPSE_KEY, b"key"):
            harness = self.quick()
            offer(harness, 9, header)
            assert harness.counters.offers_taken == 4, header
            assert offer(harness, 10) == b"", "in its order"
            assert harness.counters.offers_taken == 4
            harness.send(ack(0x40, FIRST + 2))
            assert harness.counters.offers_taken == 6

    def test_a_device_that_acknowledges_nothing_gets_nothing_ahead(self) -> None:
        harness = granted()
        for offset in range(5, 9):
            offer(harness, offset)
        assert (harness.counters.offers_taken, holds(harness)) == (2, {"waiting": 2})


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


class TestAnAcknowledgementThatNobodyWaitsFor:
    """Its confirmation takes a shorter way (`WireConnection.settle`), unless something follows from it."""

    def test_nothing_follows_from_it(self) -> None:
        harness = acknowledged()
        (record,) = harness.waiting
        assert record.may_linger
        assert harness.connection.settle(record)
        harness.waiting.clear()
        harness.feed("resume")
        assert (harness.effects.write, harness.effects.appends, harness.wants_data) == (b"", [], True)

    def test_a_record_that_a_message_waits_for_does_not_take_it(self) -> None:
        harness = granted()
        harness.confirming = False
        offer(harness, 5)
        (record,) = harness.waiting
        assert not harness.connection.settle(record)
        harness.confirm(record)
        assert harness.output() == sent(FIRST)

    def test_it_frees_room_for_what_the_device_has_sent(self) -> None:
        harness = acknowledged(max_unconfirmed_appends=1)
        assert harness.send(PINGREQ) == b""
        assert not harness.wants_data
        (record,) = harness.waiting
        assert not harness.connection.settle(record)
        harness.confirm(record)
        assert harness.output() == PINGRESP
        assert harness.wants_data

    def test_it_lets_a_connection_go(self) -> None:
        harness = acknowledged()
        harness.feed("close_gracefully", CloseReason("it stops", "gateway", ReasonCode.SERVER_SHUTTING_DOWN), 0)
        record, farewell = harness.waiting
        harness.confirm(farewell)
        assert not harness.connection.is_closed
        assert not harness.connection.settle(record)
        harness.confirm(record)
        assert harness.connection.is_closed

    def test_an_offer_may_wait_for_it(self) -> None:
        harness = acknowledged(max_unconfirmed_appends=1)
        offer(harness, 6)
        assert harness.counters.offers_held == {OfferHold.UNCONFIRMED: 1}
        (record,) = harness.waiting
        assert not harness.connection.settle(record)
        harness.confirm(record)
        assert harness.settle() == b""
        harness.confirming = True
        assert harness.settle() == sent(SECOND)


def acknowledged(**settings: int) -> Harness:
    """A connection with a message of the fast path that the device has acknowledged; Kafka has not confirmed that."""
    harness = granted(**settings)
    assert offer(harness, 5) == sent(FIRST)
    harness.confirming = False
    assert harness.send(ack(0x40, FIRST)) == b""
    return harness
