from collections.abc import Callable
from typing import Any

import pytest

from sinks.host.outbox import FastPublish, Outbox
from sinks.host.wire_table import WireAction
from state.commands import SendPublish
from state.model import MAX_PACKET_ID, MIN_FAST_PACKET_ID, Message, PacketId, Position, PublishProperties, QoS

MIB = 1 << 20
FIRST_FAST = MIN_FAST_PACKET_ID


class Wire:
    """An outbox, and what its host writes: packet ids, 0 for a QoS 0 message."""

    def __init__(self, send_quota: int = 2, receive_maximum: int | None = None, **fields: Any) -> None:
        self.outbox = Outbox(send_quota, receive_maximum, **{"max_qos0_bytes": MIB, **fields})
        self.now_ms = 1_000
        self.dropped = 0
        self.waited_s: dict[PacketId, int] = {}

    def send(self, *packet_ids: PacketId, qos: int = 1, payload: bytes = b"p", **fields: Any) -> list[PacketId]:
        """Returns the packet ids that are written."""
        written = []
        for packet_id in packet_ids:
            given = {"connection_id": 1, "partition": 0, "sequence": 1, "topic": "t", "payload": payload, **fields}
            action = self.outbox.send(SendPublish(packet_id=packet_id, qos=QoS(qos), **given), self.now_ms)
            written += [packet_id] if action is WireAction.WRITE_PUBLISH else []
            self.dropped += action is WireAction.DROP
        return written + self.due()

    def due(self) -> list[PacketId]:
        written = []
        while (due := self.outbox.next_due(self.now_ms)) is not None:
            publish, self.waited_s[publish.packet_id] = due[0], due[1]
            written.append(publish.packet_id)
        return written

    def after(self, call: Callable[..., object], *arguments: Any) -> list[PacketId]:
        """Returns the packet ids that are written after a call of the outbox."""
        call(*arguments)
        return self.due()

    def take(self, offset: int = 1, *, qos: int = 1) -> FastPublish | None:
        """The fast path takes a message; None = it cannot."""
        packet_id = self.outbox.next_fast_id() if qos else 0
        assert packet_id is not None
        message = Message(message_id="m", topic="t", payload=b"f")
        fast = FastPublish(Position(0, offset), message, QoS(qos), packet_id, None, b"f", self.now_ms)
        return fast if self.outbox.reserve(fast) else None

    def confirm(self, fast: FastPublish | None) -> list[PacketId]:
        assert fast is not None
        self.outbox.confirm(fast, self.now_ms)
        return self.due()


class TestSlots:
    def test_the_quota_limits_what_is_unacknowledged_and_the_rest_follows(self) -> None:
        """[MQTT-3.3.4-9]"""
        wire = Wire(2)
        assert wire.send(5, 4, 3, 2) == [5, 4]
        assert (wire.outbox.on_wire, wire.outbox.held) == (2, 2)
        assert wire.after(wire.outbox.acknowledged, 4) == [3]
        wire.outbox.acknowledged(5)
        wire.outbox.acknowledged(3)
        assert wire.due() == [2]

    def test_a_quota_of_nothing_is_one(self) -> None:
        assert Wire(0).send(1, 2) == [1]

    def test_pubrec_keeps_the_slot_and_pubcomp_frees_it(self) -> None:
        """[MQTT-4.9.0-2]"""
        wire = Wire(1)
        assert wire.send(1, 2, qos=2) == [1]
        assert wire.outbox.received(1, 0x00)
        assert wire.due() == []
        assert wire.after(wire.outbox.completed, 1) == [2]

    def test_a_refusing_pubrec_frees_the_slot_and_gets_no_pubrel(self) -> None:
        """[MQTT-4.4.0-2]"""
        wire = Wire(1)
        wire.send(1, 2, qos=2)
        assert not wire.outbox.received(1, 0x80)
        assert wire.due() == [2]

    def test_each_pubrec_gets_a_pubrel_with_a_reason_code_above_zero_too(self) -> None:
        wire = Wire(1)
        wire.send(1, qos=2)
        assert wire.outbox.received(1, 0x10)
        assert wire.outbox.received(1, 0)

    def test_acknowledgements_of_the_wrong_kind_or_id_change_nothing(self) -> None:
        wire = Wire(1)
        wire.send(1, 2)
        assert not wire.outbox.received(1, 0), "PUBREC for QoS 1"
        wire.outbox.completed(1)
        wire.outbox.acknowledged(9)
        wire.outbox.completed(9)
        assert not wire.outbox.received(9, 0)
        assert (wire.outbox.on_wire, wire.outbox.answers) == (1, 0)
        exactly_once = Wire(1)
        exactly_once.send(1, qos=2)
        exactly_once.outbox.acknowledged(1)
        exactly_once.outbox.completed(1)
        assert exactly_once.outbox.on_wire == 1

    def test_what_could_not_be_written_frees_its_slot(self) -> None:
        wire = Wire(1, 1)
        assert wire.send(1, 2) == [1]
        assert wire.after(wire.outbox.unwritten, 1) == [2]


class TestResends:
    def test_a_resend_of_a_waiting_message_is_dropped(self) -> None:
        wire = Wire(1)
        wire.send(1, 2)
        assert wire.send(2, dup=True) == []
        assert wire.after(wire.outbox.acknowledged, 1) == [2]
        assert wire.dropped == 1

    def test_a_resend_of_an_unacknowledged_message_needs_no_second_slot(self) -> None:
        wire = Wire(2)
        assert wire.send(1, 2, 3) == [1, 2]
        assert wire.send(1, dup=True) == [1]
        assert wire.outbox.on_wire == 2
        assert wire.after(wire.outbox.acknowledged, 1) == [3]

    @pytest.mark.promise("no-publish-after-pubrel")
    def test_no_publish_follows_a_pubrec(self) -> None:
        """[MQTT-4.3.3-6]: the session's timer was faster than the log."""
        wire = Wire(2)
        wire.send(1, qos=2)
        wire.outbox.received(1, 0)
        assert wire.send(1, qos=2, dup=True) == []

    def test_a_finished_message_is_not_resent_and_its_id_is_free(self) -> None:
        wire = Wire(2)
        wire.send(1, qos=2)
        wire.outbox.received(1, 0)
        wire.outbox.completed(1)
        assert wire.send(1, qos=2, dup=True) == []
        assert wire.dropped == 1
        assert wire.send(1, qos=2) == [1]
        assert wire.send(1, qos=2, dup=True) == [1]

    def test_a_replay_on_a_new_connection_is_metered_like_everything_else(self) -> None:
        assert Wire(1).send(1, 2, dup=True) == [1]

    def test_a_replayed_pubrel_needs_no_slot_and_its_pubrec_is_answered(self) -> None:
        wire = Wire(1)
        assert wire.outbox.release(1) is WireAction.NOTHING
        assert wire.send(2) == [2]
        assert wire.outbox.received(1, 0)
        wire.outbox.completed(1)
        assert not wire.outbox.received(1, 0)
        assert wire.send(1, qos=2, dup=True) == []
        assert wire.dropped == 1

    def test_a_publish_that_waits_is_dropped_when_its_id_is_released(self) -> None:
        """[MQTT-4.3.3-6]"""
        wire = Wire(1)
        wire.send(1, 2, 3, qos=2)
        assert wire.outbox.release(2) is WireAction.DROP
        wire.outbox.received(1, 0)
        assert wire.after(wire.outbox.completed, 1) == [3]
        assert wire.outbox.received(2, 0), "what the client may say to the PUBREL"


class TestOldestUnanswered:
    def test_the_oldest_written_message_without_an_answer_is_named(self) -> None:
        wire = Wire(send_quota=3)
        assert wire.outbox.oldest_unanswered() == 0
        wire.send(5, 3, 4)
        assert wire.outbox.oldest_unanswered() == 5
        wire.after(wire.outbox.acknowledged, 5)
        assert wire.outbox.oldest_unanswered() == 3

    def test_a_message_that_was_not_written_is_not_named(self) -> None:
        wire = Wire(send_quota=1)
        wire.send(1, 2)
        wire.outbox.acknowledged(1)
        assert wire.outbox.oldest_unanswered() == 0
        assert wire.due() == [2]
        assert wire.outbox.oldest_unanswered() == 2

    def test_a_fast_path_message_is_named_once_it_is_written(self) -> None:
        wire = Wire()
        fast = wire.take()
        assert wire.outbox.oldest_unanswered() == 0
        assert wire.confirm(fast) == [FIRST_FAST]
        assert wire.outbox.oldest_unanswered() == FIRST_FAST

    def test_a_received_message_is_answered(self) -> None:
        wire = Wire()
        wire.send(1, qos=2)
        assert wire.outbox.oldest_unanswered() == 1
        wire.outbox.received(1, 0)
        assert wire.outbox.oldest_unanswered() == 0

    def test_a_message_that_was_given_up_is_not_named(self) -> None:
        wire = Wire(receive_maximum=5)
        wire.send(1, 2)
        wire.outbox.withdraw((1,))
        assert wire.outbox.oldest_unanswered() == 2

    def test_a_packet_id_that_is_used_again_is_the_newest(self) -> None:
        wire = Wire()
        wire.send(1)
        wire.after(wire.outbox.acknowledged, 1)
        wire.send(2, 1)
        assert wire.outbox.oldest_unanswered() == 2


def given_up(receive_maximum: int, *, qos: int = 1) -> Wire:
    """Id 1 was written and given up; 2 and 3 wait."""
    wire = Wire(1, receive_maximum)
    assert wire.send(1, 2, 3, qos=qos) == [1]
    wire.outbox.withdraw([1, 99])
    assert wire.outbox.owed == 1
    return wire


class TestGivingUp:
    def test_an_abandoned_exchange_counts_for_the_receive_maximum(self) -> None:
        """[MQTT-3.3.4-9]"""
        wire = given_up(1)
        assert wire.due() == []
        assert wire.after(wire.outbox.acknowledged, 1) == [2]
        assert wire.outbox.owed == 0

    def test_a_qos_2_message_that_was_given_up_counts_until_pubcomp(self) -> None:
        wire = given_up(1, qos=2)
        assert wire.outbox.received(1, 0)
        assert wire.due() == []
        assert wire.after(wire.outbox.completed, 1) == [2]

    def test_an_abandoned_exchange_needs_no_slot_of_the_send_quota(self) -> None:
        wire = given_up(2)
        assert wire.due() == [2]
        assert wire.after(wire.outbox.acknowledged, 2) == [3]
        assert (wire.outbox.on_wire, wire.outbox.owed) == (2, 1)

    def test_what_was_given_up_before_it_was_written_counts_nowhere(self) -> None:
        wire = given_up(2)
        assert wire.after(wire.outbox.withdraw, [2]) == [3]
        assert wire.outbox.owed == 1

    def test_a_new_message_under_an_id_that_is_owed_is_one_of_the_quota(self) -> None:
        """An engine of an older version uses it again."""
        wire = given_up(2)
        assert wire.send(1) == [2]
        assert wire.after(wire.outbox.acknowledged, 2) == [3]
        assert wire.after(wire.outbox.acknowledged, 3) == [1]
        assert (wire.outbox.on_wire, wire.outbox.owed) == (1, 0)
        at_once = Wire(1, 2)
        at_once.send(1)
        at_once.outbox.withdraw([1])
        assert at_once.send(1) == [1]
        assert (at_once.outbox.on_wire, at_once.outbox.owed) == (1, 0)

    def test_a_withdrawn_message_is_not_written_and_frees_its_slot(self) -> None:
        wire = Wire(1)
        assert wire.send(1, 2, 3) == [1]
        assert wire.after(wire.outbox.withdraw, [2, 1, 99]) == [3]
        assert wire.outbox.on_wire == 1

    def test_a_new_message_under_a_withdrawn_id_is_not_the_old_one(self) -> None:
        wire = Wire(1)
        wire.send(1, 2)
        wire.outbox.withdraw([2])
        wire.send(3, 2)
        assert wire.after(wire.outbox.acknowledged, 1) == [3]
        assert wire.after(wire.outbox.acknowledged, 3) == [2]


class TestFastPath:
    def test_a_fast_path_message_has_a_slot_before_it_is_written(self) -> None:
        wire = Wire(2)
        fast = wire.take()
        assert fast is not None
        assert wire.send(1) == [], "nothing new is written behind it"
        assert wire.outbox.on_wire == 1
        assert wire.confirm(fast) == [FIRST_FAST, 1]
        assert wire.outbox.on_wire == 2
        assert wire.take(2) is None, "all slots are taken, and nothing was acknowledged"
        wire.outbox.acknowledged(FIRST_FAST)
        assert wire.outbox.on_wire == 1

    def test_the_fast_path_does_not_overtake_messages_that_wait_for_a_slot(self) -> None:
        wire = Wire(2, is_blocked=True)
        wire.send(1)
        assert wire.take() is None
        assert wire.after(wire.outbox.block, False) == [1]
        assert wire.take() is not None

    def test_it_keeps_to_the_receive_maximum_when_the_device_owes_answers(self) -> None:
        """[MQTT-3.3.4-9]"""
        wire = Wire(2, 2)
        assert wire.send(1, 2) == [1, 2]
        wire.outbox.withdraw((1, 2))
        assert wire.take() is None
        wire.outbox.acknowledged(1)
        assert wire.take() is not None

    def test_a_message_given_up_before_it_is_written_frees_its_slot(self) -> None:
        for receive_maximum in (None, 1):
            wire = Wire(1, receive_maximum)
            fast = wire.take()
            wire.outbox.withdraw((FIRST_FAST,))
            assert (wire.outbox.on_wire, wire.outbox.owed) == (0, 0)
            assert wire.confirm(fast) == []

    def test_what_is_on_the_wire_and_given_up_stays_owed(self) -> None:
        wire = Wire(1, 1)
        assert wire.confirm(wire.take(qos=2)) == [FIRST_FAST]
        wire.outbox.withdraw((FIRST_FAST,))
        assert (wire.outbox.on_wire, wire.outbox.owed) == (1, 1)
        assert wire.outbox.received(FIRST_FAST, 0)


class TestAheadOfTheSlots:
    """The device acknowledges at once, and Kafka takes 10 ms, if a test says nothing else."""

    @staticmethod
    def turn(wire: Wire, *, kafka_ms: int = 10, device_ms: int = 0) -> int:
        """Takes as many messages as it may; Kafka confirms, the device acknowledges all. Returns how many there were."""
        wire.outbox.measure_ahead(wire.now_ms)
        taken: list[FastPublish] = []
        while (fast := wire.take(len(taken) + 1)) is not None:
            taken.append(fast)
        wire.now_ms += kafka_ms
        written = [packet_id for fast in taken for packet_id in wire.confirm(fast)]
        wire.now_ms += device_ms
        for packet_id in written:  # grows
            written += wire.after(wire.outbox.acknowledged, packet_id)
        assert written == [fast.packet_id for fast in taken]
        return len(taken)

    def test_they_grow_with_what_is_acknowledged_while_kafka_confirms(self) -> None:
        wire = Wire(32)
        assert [self.turn(wire) for _ in range(6)] == [32, 32 + 2 * 32, 32 + 2 * 96, 32 + 2 * 224, 32 + 512, 32 + 512]

    def test_a_slow_device_gets_none(self) -> None:
        wire = Wire(2)
        assert [self.turn(wire, kafka_ms=5, device_ms=200) for _ in range(3)] == [2, 2, 2]
        assert self.turn(wire) == 2
        assert self.turn(wire) > 2

    def test_they_are_written_in_their_order_when_slots_are_free(self) -> None:
        """[MQTT-3.3.4-9]"""
        wire = self.ahead(Wire(2, 2), 4)
        fast = [wire.take(offset) for offset in range(1, 7)]
        assert wire.take(7) is None
        written = [packet_id for each in fast for packet_id in wire.confirm(each)]
        assert written == [fast[0].packet_id, fast[1].packet_id]  # type: ignore[union-attr]
        assert wire.send(1) == [], "it waits behind them"
        assert wire.after(wire.outbox.acknowledged, written[0]) == [fast[2].packet_id]  # type: ignore[union-attr]
        for each in fast[1:5]:
            wire.outbox.acknowledged(each.packet_id)  # type: ignore[union-attr]
            written += wire.due()
        assert written[-2:] == [fast[5].packet_id, 1]  # type: ignore[union-attr]

    def test_a_withdrawn_one_is_not_written_and_counts_no_more(self) -> None:
        wire = self.ahead(Wire(1), 2)
        first, second, third = (wire.take(offset) for offset in (1, 2, 3))
        assert first is not None
        assert second is not None
        wire.confirm(first)
        wire.confirm(second)
        before_bytes = wire.outbox.ahead_bytes
        wire.outbox.withdraw((second.packet_id,))
        assert 0 < wire.outbox.ahead_bytes < before_bytes
        assert wire.confirm(second) == wire.confirm(third) == []
        assert wire.after(wire.outbox.acknowledged, first.packet_id) == [third.packet_id]  # type: ignore[union-attr]
        assert wire.outbox.ahead_bytes == 0

    def test_their_number_and_size_are_limited(self) -> None:
        wire = self.ahead(Wire(2), 1_000)
        assert [wire.take(offset) is None for offset in (1, 514, 515)] == [False] * 3
        wire = self.ahead(Wire(1), 10)
        large = Message(message_id="m", topic="t", payload=b"")
        for number in range(3):
            packet_id = wire.outbox.next_fast_id()
            assert packet_id is not None
            fast = FastPublish(Position(0, 1), large, QoS(1), packet_id, None, bytes(200_000), wire.now_ms)
            assert wire.outbox.reserve(fast) is (number < 2)

    @staticmethod
    def ahead(wire: Wire, count: int) -> Wire:
        """Lets so many be ahead."""
        wire.outbox._ahead = count
        return wire

    def test_a_measurement_by_a_withdrawn_message_is_begun_anew(self) -> None:
        wire = Wire(1)
        first = wire.take()
        wire.confirm(first)
        wire.outbox.withdraw((FIRST_FAST,))
        assert wire.outbox._probe is None
        assert self.turn(wire) == 1
        assert self.turn(wire) > 1


class TestFastPacketIds:
    def test_ids_go_round_from_the_last_one_used(self) -> None:
        assert used(Wire(9), 1) == MIN_FAST_PACKET_ID
        wire = Wire(9)
        wire.outbox.free_fast_ids(Position(0, 0), (), MAX_PACKET_ID - 1)
        assert [used(wire, offset) for offset in (1, 2, 3)] == [MAX_PACKET_ID, MIN_FAST_PACKET_ID, MIN_FAST_PACKET_ID + 1]
        wire.outbox.free_fast_ids(Position(0, 3), (), 40_000)
        assert used(wire, 4) == MIN_FAST_PACKET_ID + 2, "what was used here is later than what the session knows of"

    def test_an_id_is_free_when_a_later_grant_does_not_list_it(self) -> None:
        wire = Wire(99)
        first, second, third = (used(wire, offset) for offset in (1, 2, 3))
        wire.outbox.free_fast_ids(Position(0, 2), (second,), 0)
        round_again(wire, 9)
        assert used(wire, 10) == first
        assert wire.outbox.next_fast_id() == third + 1
        wire.outbox.free_fast_ids(Position(0, 10), (), 0)
        round_again(wire, 11)
        assert [used(wire, offset) for offset in (12, 13, 14)] == [first, second, third]

    def test_a_grant_for_another_partition_frees_nothing(self) -> None:
        wire = Wire(9)
        first = used(wire, 1)
        wire.outbox.free_fast_ids(Position(1, 50), (), 0)
        round_again(wire, 51)
        assert wire.outbox.next_fast_id() == first + 1

    def test_ids_in_use_are_skipped_and_without_a_free_id_there_is_none(self) -> None:
        wire = Wire(9)
        wire.take(1)
        wire.outbox.free_fast_ids(Position(0, 1), tuple(range(MIN_FAST_PACKET_ID + 1, MAX_PACKET_ID)), 0)
        assert wire.outbox.next_fast_id() == MAX_PACKET_ID
        wire.outbox.free_fast_ids(Position(0, 1), tuple(range(MIN_FAST_PACKET_ID + 1, MAX_PACKET_ID + 1)), 0)
        assert wire.outbox.next_fast_id() is None


def used(wire: Wire, offset: int) -> PacketId:
    """An exchange from beginning to end."""
    (packet_id,) = wire.confirm(wire.take(offset))
    wire.outbox.acknowledged(packet_id)
    return packet_id


def round_again(wire: Wire, offset: int) -> None:
    """The last id was used: the next one is the first again."""
    message = Message(message_id="m", topic="t", payload=b"f")
    fast = FastPublish(Position(0, offset), message, QoS(1), MAX_PACKET_ID, None, b"f", wire.now_ms)
    assert wire.outbox.reserve(fast)
    assert wire.confirm(fast) == [MAX_PACKET_ID]
    wire.outbox.acknowledged(MAX_PACKET_ID)


class TestADeviceThatDoesNotRead:
    def test_it_gets_nothing_new_but_qos_0_until_it_does(self) -> None:
        wire = Wire(is_blocked=True)
        assert wire.send(1) == []
        assert wire.send(0, qos=0) == [0]
        assert wire.after(wire.outbox.block, False) == [1]
        wire.outbox.block(True)
        assert wire.after(wire.outbox.acknowledged, 1) == []
        assert wire.send(2) == []
        assert wire.after(wire.outbox.block, False) == [2]

    def test_qos_0_is_bounded_each_time(self) -> None:
        wire = Wire(is_blocked=True)
        assert wire.send(0, qos=0, payload=bytes(MIB - len("t"))) == [0]
        assert wire.send(0, qos=0) == []
        assert wire.dropped == 1
        wire.outbox.block(True)
        assert wire.send(0, qos=0) == [0]

    def test_properties_count_like_payload(self) -> None:
        wire = Wire(is_blocked=True, max_qos0_bytes=1_000)
        properties = PublishProperties(user_properties=tuple((f"k{number}", "v" * 20) for number in range(30)))
        assert wire.send(0, 0, qos=0, properties=properties) == [0]
        assert wire.dropped == 1


def test_the_waiting_time_of_a_message_is_reported() -> None:
    wire = Wire(1)
    wire.send(1, 2)
    wire.now_ms += 20_000
    wire.send(2, dup=True)  # a resend that finds the first one still here changes nothing
    wire.now_ms += 500
    assert wire.after(wire.outbox.acknowledged, 1) == [2]
    assert wire.waited_s == {2: 20}
    wire.send(3)
    wire.outbox.withdraw((3,))
    wire.now_ms += 30_000
    wire.send(3)
    assert wire.after(wire.outbox.acknowledged, 2) == [3]
    assert wire.waited_s[3] == 0, "it is a new message"


class TestHeldBytes:
    """The size of messages that wait until they may be written."""

    SIZE = 1_000

    def held(self, wire: Wire) -> int:
        """Returns the held bytes, counted in messages."""
        return wire.outbox.held_bytes // self.SIZE

    def send(self, wire: Wire, *packet_ids: int, qos: int = 1) -> None:
        wire.send(*packet_ids, qos=qos, payload=bytes(self.SIZE))

    def test_what_is_written_does_not_count(self) -> None:
        wire = Wire()
        self.send(wire, 1)
        self.send(wire, 0, qos=0)
        assert wire.outbox.held_bytes == 0

    def test_messages_that_wait_for_a_slot_count_until_they_have_it(self) -> None:
        wire = Wire(1)
        self.send(wire, 1, 2, 3, qos=2)
        assert self.held(wire) == 3, "two, and each takes more than its text"
        assert wire.after(wire.outbox.withdraw, (1,)) == [2]
        assert self.held(wire) == 1
        wire.outbox.release(3)
        assert wire.outbox.held_bytes == 0

    def test_messages_for_a_device_that_does_not_read_count_until_it_does(self) -> None:
        wire = Wire(8, is_blocked=True)
        self.send(wire, 1, 2, 3)
        assert self.held(wire) == 4
        wire.after(wire.outbox.block, False)
        assert wire.outbox.held_bytes == 0

    def test_qos_0_behind_a_fast_path_message_counts_until_it_is_written(self) -> None:
        wire = Wire(max_qos0_bytes=2_100)
        fast = wire.take()
        self.send(wire, *[0] * 10, qos=0)
        assert wire.dropped == 8
        assert self.held(wire) == 3
        assert wire.confirm(fast) == [FIRST_FAST, 0, 0]
        assert wire.outbox.held_bytes == 0
