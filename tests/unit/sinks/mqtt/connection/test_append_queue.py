"""sinks.mqtt.connection.append_queue"""

import sys

from sinks.host.outbox import FastPublish
from sinks.mqtt.connection.append_queue import Append, AppendQueue
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from state.events import FastSent, PubAckReceived, PubRecReceived
from state.model import MIN_FAST_PACKET_ID, Message, Position, QoS
from state.records.events import MAX_EVENTS_IN_RECORD, decode_events, encode_event


def queue(**settings: int) -> AppendQueue:
    return AppendQueue(GatewaySettings(**settings), Unconfirmed(DeviceLimits()))  # type: ignore[arg-type]


def acknowledgement(packet_id: int, reason: str = "") -> bytes:
    return encode_event(PubAckReceived(connection_id=1, packet_id=packet_id, reason=reason))


def packet_ids(record: Append) -> list[int]:
    events = decode_events(record.value)
    return [event.packet_id for event in events if isinstance(event, PubAckReceived | PubRecReceived)]


def answers(appends: AppendQueue) -> list[bytes]:
    taken: list[bytes] = []
    appends.take_answers(taken)
    return taken


def test_answers_leave_in_request_order_in_any_order_of_confirmations() -> None:
    """[MQTT-4.6.0-2]"""
    appends = queue()
    first, silent, second = Append(b"1", b"A"), Append(b"x"), Append(b"2", b"C")
    appends.add(first)
    appends.add(silent)
    appends.add_answer(b"B")
    appends.add(second)
    assert appends.take_new() == [first, silent, second]
    assert appends.take_new() == []
    appends.settle(second, confirmed=True)
    appends.settle(silent, confirmed=True)
    assert answers(appends) == []
    appends.settle(first, confirmed=True)
    assert answers(appends) == [b"A", b"B", b"C"]
    assert appends.unconfirmed == 0


def test_a_failed_record_blocks_every_answer_behind_it() -> None:
    appends = queue()
    failed, later = Append(b"1", b"A"), Append(b"2", b"B")
    appends.add(failed)
    appends.add(later)
    appends.settle(failed, confirmed=False)
    appends.settle(later, confirmed=True)
    assert answers(appends) == []


def test_a_delayed_answer_waits_with_those_behind_it_and_nothing_else() -> None:
    appends = queue()
    first, second = Append(b"1", b"A"), Append(b"2", b"B")
    appends.add(first)
    appends.add(second)
    answer = appends.delay_answer(first)
    assert answer is not None
    appends.settle(first, confirmed=True)
    appends.settle(second, confirmed=True)
    appends.add_answer(b"C")
    assert answers(appends) == []
    assert (appends.unconfirmed, appends.unconfirmed_bytes, appends.stops_reading) == (0, 0, False)
    appends.end_delay(answer)
    assert answers(appends) == [b"A", b"B", b"C"]
    appends.end_delay(answer)
    assert answers(appends) == []


def test_delays_end_when_there_is_no_room_for_more_answers() -> None:
    appends = queue(max_unconfirmed_appends=4)
    records = [Append(b"%d" % number, b"%d" % number) for number in range(4)]
    for record in records[:3]:
        appends.add(record)
        assert appends.delay_answer(record) is not None
        appends.settle(record, confirmed=True)
    assert answers(appends) == []
    appends.add(records[3])
    assert appends.stops_reading
    assert appends.delay_answer(records[3]) is None
    appends.settle(records[3], confirmed=True)
    assert answers(appends) == [b"0", b"1", b"2", b"3"]
    assert not appends.stops_reading, "a delay never stops the reading of a device"


def test_a_record_without_an_answer_is_not_delayed() -> None:
    appends = queue()
    record = Append(b"1")
    appends.add(record)
    assert appends.delay_answer(record) is None


def test_delays_are_forgotten_with_the_connection() -> None:
    appends = queue()
    record = Append(b"1", b"A")
    appends.add(record)
    answer = appends.delay_answer(record)
    assert answer is not None
    appends.drop_answers()
    appends.end_delay(answer)
    assert answers(appends) == []


def test_the_queue_is_full_at_its_limit_and_open_again_at_half_of_it() -> None:
    appends = queue(max_unconfirmed_appends=4)
    records = [Append(b"x") for _ in range(4)]
    for record in records[:3]:
        appends.add(record)
    assert not appends.is_full
    appends.add(records[3])
    assert appends.is_full
    appends.settle(records[0], confirmed=True)
    assert appends.is_full
    appends.settle(records[1], confirmed=True)
    assert not appends.is_full


def test_the_queue_counts_bytes_too() -> None:
    appends = queue(max_unconfirmed_bytes=100)
    large, small = Append(bytes(90)), Append(bytes(20))
    appends.add(large)
    assert not appends.is_full
    appends.add(small)
    assert appends.is_full
    appends.settle(large, confirmed=True)
    assert not appends.is_full
    assert appends.unconfirmed_bytes == 20


def test_headers_count_and_a_small_one_costs_more_than_its_text() -> None:
    appends = queue(max_unconfirmed_bytes=10_000)
    large = Append(b"", headers=[("user-k", bytes(10_000))])
    assert large.size_bytes > 10_000
    appends.add(large)
    assert appends.is_full
    appends.settle(large, confirmed=True)
    assert not appends.is_full
    assert appends.unconfirmed_bytes == 0
    assert Append(b"", headers=[("user-", b"")] * 10_000).size_bytes > 1_000_000


def test_answers_that_need_no_record_fill_the_queue_like_those_that_do() -> None:
    appends = queue(max_unconfirmed_appends=4)
    first = Append(b"1", b"A")
    appends.add(first)
    for _ in range(2):
        appends.add_answer(b"B")
    assert not appends.is_full
    appends.add_answer(b"B")
    assert appends.is_full
    appends.settle(first, confirmed=True)
    assert appends.is_full, "they are not written yet"
    assert answers(appends) == [b"A", b"B", b"B", b"B"]
    assert not appends.is_full


def test_waiting_answers_count_by_their_bytes_too() -> None:
    appends = queue(max_unconfirmed_bytes=100)
    first = Append(b"1", b"A")
    appends.add(first)
    appends.add_answer(bytes(99))
    assert appends.is_full
    appends.settle(first, confirmed=True)
    answers(appends)
    assert not appends.is_full
    assert appends.unwritten_bytes == 0


def test_what_all_connections_hold_together_stops_each_of_them() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_appends=2))
    first, second = AppendQueue(GatewaySettings(), total), AppendQueue(GatewaySettings(), total)
    one, two = Append(b"1"), Append(b"2")
    first.add(one)
    assert not second.is_full
    first.add(two)
    assert first.is_full
    assert second.is_full
    first.settle(one, confirmed=True)
    assert not second.is_full


def test_the_queue_is_full_while_too_many_publications_are_unanswered() -> None:
    appends = queue()
    appends.max_unanswered = 2
    first, second, other = Append(b"1", b"A", counts=True), Append(b"2", b"B", counts=True), Append(b"3", b"C")
    appends.add(other)
    appends.add(first)
    assert not appends.is_full
    appends.add(second)
    assert appends.is_full
    appends.settle(first, confirmed=True)
    appends.settle(second, confirmed=True)
    assert answers(appends) == []
    assert appends.is_full, "they are in the log, but an earlier answer has its turn first"
    assert appends.owes_answers
    appends.settle(other, confirmed=True)
    assert answers(appends) == [b"C", b"A", b"B"]
    assert not appends.is_full
    assert not appends.owes_answers


def test_waiting_answers_count_for_the_limit_of_all_connections() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_bytes=10_000))
    first, second = AppendQueue(GatewaySettings(), total), AppendQueue(GatewaySettings(), total)
    record = Append(b"1", b"A")
    first.add(record)
    for _ in range(2):
        first.add_answer(bytes(4_000))
        assert not second.is_full
    first.add_answer(bytes(4_000))
    assert second.is_full
    first.settle(record, confirmed=True)
    assert second.is_full
    assert len(answers(first)) == 4
    assert not second.is_full
    assert (total.records, total.size_bytes) == (0, 0)


def test_answers_of_a_connection_that_is_over_count_no_more() -> None:
    total = Unconfirmed(DeviceLimits())
    appends = AppendQueue(GatewaySettings(), total)
    record = Append(b"1", b"A")
    appends.add(record)
    appends.add_answer(b"B")
    appends.drop_answers()
    assert total.size_bytes == 1
    appends.settle(record, confirmed=True)
    assert answers(appends) == []
    assert (total.records, total.size_bytes) == (0, 0)


def test_a_confirmed_record_is_let_go_while_its_answer_waits_for_another() -> None:
    appends = queue()
    first, second = Append(b"1", b"A"), Append(bytes(100), b"B")
    appends.add(first)
    appends.add(second)
    appends.take_new()
    appends.settle(second, confirmed=True)
    assert sys.getrefcount(second) == 2, "this test has it, and nobody else"
    appends.settle(first, confirmed=True)
    assert answers(appends) == [b"A", b"B"]


class TestAcknowledgements:
    def test_successive_acknowledgements_share_a_record(self) -> None:
        appends = queue()
        for packet_id in (1, 2, 3):
            appends.add_acknowledgement(acknowledgement(packet_id), None)
        appends.add(Append(b"other"))
        appends.add_acknowledgement(acknowledgement(4), None)
        first, other, last = appends.take_new()
        assert (packet_ids(first), other.value, packet_ids(last)) == ([1, 2, 3], b"other", [4])
        assert last.value == acknowledgement(4), "one alone is written as ever"
        assert appends.unconfirmed == 3

    def test_one_urgent_acknowledgement_makes_the_record_urgent(self) -> None:
        appends = queue()
        for urgent in ((False, False), (False, True), (True, False)):
            for packet_id, is_urgent in enumerate(urgent, 1):
                appends.add_acknowledgement(acknowledgement(packet_id), None, is_urgent=is_urgent)
            (record,) = appends.take_new()
            assert (packet_ids(record), record.is_urgent) == ([1, 2], any(urgent))

    def test_a_sent_record_gets_no_more_acknowledgements(self) -> None:
        appends = queue()
        appends.add_acknowledgement(acknowledgement(1), None)
        (first,) = appends.take_new()
        appends.add_acknowledgement(acknowledgement(2), None)
        (second,) = appends.take_new()
        assert (packet_ids(first), packet_ids(second)) == ([1], [2])

    def test_answers_of_a_shared_record_leave_in_order(self) -> None:
        """[MQTT-4.6.0-2]"""
        appends = queue()
        before = Append(b"before", b"A")
        appends.add(before)
        appends.add_acknowledgement(acknowledgement(1), None)
        for packet_id, answer in ((2, b"B"), (3, b"C"), (4, None), (5, b"D")):
            appends.add_acknowledgement(acknowledgement(packet_id), answer)
        _, record = appends.take_new()
        assert packet_ids(record) == [1, 2, 3, 4, 5]
        appends.settle(record, confirmed=True)
        assert answers(appends) == []
        appends.settle(before, confirmed=True)
        assert b"".join(answers(appends)) == b"ABCD"

    def test_an_acknowledgement_behind_another_answer_has_its_own_record(self) -> None:
        appends = queue()
        appends.add_acknowledgement(acknowledgement(1), b"A")
        appends.add_answer(b"B")
        appends.add_acknowledgement(acknowledgement(2), None)
        appends.add_acknowledgement(acknowledgement(3), b"C")
        first, second = appends.take_new()
        assert (packet_ids(first), packet_ids(second)) == ([1, 2], [3])
        appends.settle(second, confirmed=True)
        assert answers(appends) == []
        appends.settle(first, confirmed=True)
        assert b"".join(answers(appends)) == b"ABC"

    def test_a_record_that_fails_sets_no_answer_free(self) -> None:
        appends = queue()
        for packet_id, answer in ((1, b"A"), (2, b"B")):
            appends.add_acknowledgement(acknowledgement(packet_id), answer)
        (record,) = appends.take_new()
        appends.settle(record, confirmed=False)
        assert answers(appends) == []

    def test_a_shared_record_has_limits_of_count_and_bytes(self) -> None:
        appends = queue()
        for packet_id in range(1, MAX_EVENTS_IN_RECORD + 2):
            appends.add_acknowledgement(acknowledgement(packet_id), None)
        full, rest = appends.take_new()
        assert (len(packet_ids(full)), packet_ids(rest)) == (MAX_EVENTS_IN_RECORD, [MAX_EVENTS_IN_RECORD + 1])
        for packet_id in (1, 2, 3):
            appends.add_acknowledgement(acknowledgement(packet_id, "why" * 2_000), None)
        assert [packet_ids(record) for record in appends.take_new()] == [[1, 2], [3]]

    def test_all_count_until_confirmed_and_answered(self) -> None:
        total = Unconfirmed(DeviceLimits())
        appends = AppendQueue(GatewaySettings(max_unconfirmed_bytes=100), total)
        for packet_id, answer in ((1, None), (2, b"A"), (3, b"B"), (4, None)):
            assert not appends.is_full
            appends.add_acknowledgement(acknowledgement(packet_id, "x" * 20), answer)
        assert appends.is_full
        (record,) = appends.take_new()
        assert (total.records, appends.unwritten_bytes) == (1, 2)
        appends.settle(record, confirmed=True)
        assert answers(appends) == [b"AB"]
        assert (total.records, total.size_bytes) == (0, 0)
        assert (appends.unconfirmed_bytes, appends.unwritten_bytes, appends.is_full) == (0, 0, False)


def fast_publish(packet_id: int) -> FastPublish:
    message = Message(message_id="m", topic="t", payload=b"p")
    return FastPublish(Position(0, packet_id), message, QoS.AT_LEAST_ONCE, packet_id, None, b"p", 0)


def fast_sent(packet_id: int) -> bytes:
    message = Message(message_id="m", topic="t", payload=b"p")
    return encode_event(
        FastSent(
            connection_id=1,
            position=Position(0, packet_id),
            previous=packet_id - 1,
            packet_id=packet_id,
            qos=QoS.AT_LEAST_ONCE,
            message=message,
            sent_ms=0,
        )
    )


class TestFastSent:
    def test_messages_taken_at_once_share_a_record_with_acknowledgements(self) -> None:
        appends = queue()
        first, second = fast_publish(1), fast_publish(2)
        appends.add_acknowledgement(acknowledgement(1), None, is_urgent=False)
        appends.add_fast_sent(fast_sent(1), first)
        appends.add_acknowledgement(acknowledgement(2), None, is_urgent=False)
        appends.add_fast_sent(fast_sent(2), second)
        (record,) = appends.take_new()
        kinds = [type(event).__name__ for event in decode_events(record.value)]
        assert kinds == ["PubAckReceived", "FastSent", "PubAckReceived", "FastSent"]
        assert record.fast_publishes == [first, second]
        assert (record.is_urgent, record.may_linger) == (False, False)

    def test_a_sent_record_gets_no_further_message(self) -> None:
        appends = queue()
        appends.add_fast_sent(fast_sent(1), fast_publish(1))
        (alone,) = appends.take_new()
        appends.add_fast_sent(fast_sent(2), fast_publish(2))
        (other,) = appends.take_new()
        assert (alone.value, other.value) == (fast_sent(1), fast_sent(2)), "one alone is written as ever"


def test_only_what_nobody_waits_for_may_linger() -> None:
    appends = queue()
    for value, answer, is_urgent in (b"PUBACK", None, False), (b"PUBREC", b"PUBREL", False), (b"next", None, True):
        appends.add_acknowledgement(value, answer, is_urgent=is_urgent)
        (record,) = appends.take_new()
        assert record.may_linger is (value == b"PUBACK")
    appends.add_fast_sent(b"FastSent", fast_publish(MIN_FAST_PACKET_ID))
    (taken,) = appends.take_new()
    assert not taken.may_linger
    for value, is_urgent in (b"1", False), (b"2", True):
        appends.add_acknowledgement(value, None, is_urgent=is_urgent)
    (record,) = appends.take_new()
    assert not record.may_linger, "it has an urgent one, too"
