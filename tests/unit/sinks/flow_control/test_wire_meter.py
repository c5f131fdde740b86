"""sinks.flow_control.wire_meter"""

from sinks.flow_control.wire_meter import WireMeter
from state.commands import SendPublish
from state.model import QoS


def message(packet_id: int, *, qos: int = 1, dup: bool = False) -> SendPublish:
    return SendPublish(
        connection_id=1, partition=0, sequence=1, packet_id=packet_id, topic="t", payload=b"", qos=QoS(qos), dup=dup
    )


def due(meter: WireMeter) -> list[int]:
    written = []
    while (publish := meter.next_due()) is not None:
        written.append(publish.packet_id)
    return written


def filled(quota: int, *packet_ids: int, qos: int = 1) -> WireMeter:
    meter = WireMeter(quota)
    for packet_id in packet_ids:
        assert not meter.admit(message(packet_id, qos=qos))
    return meter


def test_no_more_than_the_quota_is_on_the_wire_and_the_rest_follows_in_order() -> None:
    """[MQTT-3.3.4-9]"""
    meter = filled(2, 5, 4, 3, 2)
    assert due(meter) == [5, 4]
    assert (meter.on_wire, meter.held) == (2, 2)
    meter.acknowledged(4)
    assert due(meter) == [3]
    meter.acknowledged(5)
    meter.acknowledged(3)
    assert due(meter) == [2]


def test_a_quota_of_nothing_is_one() -> None:
    assert due(filled(0, 1, 2)) == [1]


def test_pubrec_keeps_the_slot_and_pubcomp_frees_it() -> None:
    """[MQTT-4.9.0-2]"""
    meter = filled(1, 1, 2, qos=2)
    assert due(meter) == [1]
    assert meter.received(1, 0x00)
    assert due(meter) == []
    meter.completed(1)
    assert due(meter) == [2]


def test_a_refusing_pubrec_frees_the_slot_and_gets_no_pubrel() -> None:
    """[MQTT-4.4.0-2]"""
    meter = filled(1, 1, 2, qos=2)
    due(meter)
    assert not meter.received(1, 0x80)
    assert due(meter) == [2]


def test_a_success_above_zero_is_answered() -> None:
    meter = filled(1, 1, qos=2)
    due(meter)
    assert meter.received(1, 0x10)


def test_a_repeated_pubrec_gets_another_pubrel() -> None:
    meter = filled(1, 1, qos=2)
    due(meter)
    assert meter.received(1, 0)
    assert meter.received(1, 0)


def test_acknowledgements_of_the_wrong_kind_or_id_change_nothing_and_are_left_to_the_session() -> None:
    meter = filled(1, 1, 2)
    due(meter)
    assert not meter.received(1, 0)  # PUBREC for QoS 1
    meter.completed(1)
    meter.acknowledged(9)
    meter.completed(9)
    assert not meter.received(9, 0)
    assert meter.on_wire == 1
    exactly_once = filled(1, 1, qos=2)
    due(exactly_once)
    exactly_once.acknowledged(1)
    exactly_once.completed(1)
    assert exactly_once.on_wire == 1


def test_a_resend_of_a_waiting_message_is_ignored() -> None:
    meter = filled(1, 1, 2)
    due(meter)
    assert not meter.admit(message(2, dup=True))
    meter.acknowledged(1)
    assert due(meter) == [2]
    assert due(meter) == []
    assert meter.resends_dropped == 1


def test_a_resend_of_an_unacknowledged_message_goes_at_once_and_takes_no_second_slot() -> None:
    meter = filled(2, 1, 2, 3)
    assert due(meter) == [1, 2]
    assert meter.admit(message(1, dup=True))
    assert meter.on_wire == 2
    meter.acknowledged(1)
    assert due(meter) == [3]


def test_no_publish_follows_a_pubrec() -> None:
    """[MQTT-4.3.3-6]: the session's timer was faster than the log."""
    meter = filled(2, 1, qos=2)
    due(meter)
    meter.received(1, 0)
    assert not meter.admit(message(1, qos=2, dup=True))
    assert due(meter) == []


def test_a_resend_of_a_finished_message_is_ignored_but_a_new_message_may_have_its_id() -> None:
    meter = filled(2, 1, qos=2)
    due(meter)
    meter.received(1, 0)
    meter.completed(1)
    assert not meter.admit(message(1, qos=2, dup=True))
    assert due(meter) == []
    assert meter.resends_dropped == 1
    assert not meter.admit(message(1, qos=2))
    assert due(meter) == [1]
    assert meter.admit(message(1, qos=2, dup=True))


def test_a_replay_on_a_new_connection_is_metered_like_everything_else() -> None:
    meter = WireMeter(1)
    assert not meter.admit(message(1, dup=True))
    assert not meter.admit(message(2, dup=True))
    assert due(meter) == [1]


def test_a_replayed_pubrel_takes_no_slot_and_its_repeated_pubrec_is_answered() -> None:
    meter = filled(1, 2)
    meter.release(1)
    assert due(meter) == [2]
    assert meter.received(1, 0)
    meter.completed(1)
    assert not meter.received(1, 0)
    assert not meter.admit(message(1, qos=2, dup=True))
    assert meter.resends_dropped == 1


def test_a_publish_that_waits_is_dropped_when_its_id_is_released() -> None:
    """[MQTT-4.3.3-6]"""
    meter = filled(1, 1, 2, 3, qos=2)
    due(meter)
    meter.release(2)
    assert meter.resends_dropped == 1
    meter.received(1, 0)
    meter.completed(1)
    assert due(meter) == [3]
    assert meter.received(2, 0), "what the client may say to the PUBREL"


def given_up(receive_maximum: int, *, qos: int = 1) -> WireMeter:
    """Id 1 was written and given up; 2 and 3 wait."""
    meter = WireMeter(1, receive_maximum)
    for packet_id in (1, 2, 3):
        meter.admit(message(packet_id, qos=qos))
    assert due(meter) == [1]
    meter.withdraw([1, 99])
    assert meter.owed == 1
    return meter


def test_what_was_given_up_counts_towards_the_receive_maximum_until_it_is_answered() -> None:
    """[MQTT-3.3.4-9]"""
    meter = given_up(1)
    assert due(meter) == []
    meter.acknowledged(1)
    assert (meter.owed, due(meter)) == (0, [2])


def test_a_qos_2_message_that_was_given_up_counts_until_pubcomp() -> None:
    meter = given_up(1, qos=2)
    assert meter.received(1, 0)
    assert due(meter) == []
    meter.completed(1)
    assert due(meter) == [2]


def test_what_was_given_up_takes_no_slot_of_the_send_quota() -> None:
    meter = given_up(2)
    assert due(meter) == [2]
    meter.acknowledged(2)
    assert due(meter) == [3]
    assert (meter.on_wire, meter.owed) == (2, 1)


def test_what_was_given_up_before_it_was_written_counts_nowhere() -> None:
    meter = given_up(2)
    meter.withdraw([2])
    assert due(meter) == [3]
    assert meter.owed == 1


def test_a_new_message_under_an_id_that_is_owed_is_one_of_the_quota() -> None:
    """An engine of an older version uses it again."""
    meter = given_up(2)
    meter.admit(message(1))
    assert due(meter) == [2]
    meter.acknowledged(2)
    assert due(meter) == [3]
    meter.acknowledged(3)
    assert (due(meter), meter.on_wire, meter.owed) == ([1], 1, 0)


def test_what_could_not_be_written_frees_its_slot() -> None:
    meter = WireMeter(1, 1)
    meter.admit(message(1))
    meter.admit(message(2))
    assert meter.next_due() == message(1)
    meter.unwritten(1)
    assert due(meter) == [2]


def test_a_withdrawn_message_is_not_written_and_frees_its_slot() -> None:
    meter = filled(1, 1, 2, 3)
    assert due(meter) == [1]
    meter.withdraw([2, 1, 99])
    assert due(meter) == [3]
    assert meter.on_wire == 1


def test_a_new_message_under_a_withdrawn_id_is_not_the_old_one() -> None:
    meter = filled(1, 1, 2)
    due(meter)
    meter.withdraw([2])
    meter.admit(message(3))
    meter.admit(message(2))
    meter.acknowledged(1)
    assert due(meter) == [3]
    meter.acknowledged(3)
    assert due(meter) == [2]


def test_a_message_of_the_fast_path_takes_a_slot_before_it_is_written() -> None:
    meter = WireMeter(2)
    assert meter.reserve(32_768)
    assert not meter.admit(message(1))
    assert due(meter) == [1]
    assert meter.on_wire == 2
    assert not meter.reserve(32_769), "all slots are taken"
    assert meter.confirm(32_768, QoS.AT_LEAST_ONCE)
    assert meter.on_wire == 2
    meter.acknowledged(32_768)
    assert meter.on_wire == 1


def test_the_fast_path_takes_nothing_past_what_waits_for_a_slot() -> None:
    meter = filled(2, 1)
    assert not meter.reserve(32_768)
    assert due(meter) == [1]
    assert meter.reserve(32_768)


def test_the_fast_path_keeps_to_the_receive_maximum_when_the_device_owes_answers() -> None:
    """[MQTT-3.3.4-9]"""
    meter = WireMeter(2, receive_maximum=2)
    for packet_id in (1, 2):
        meter.admit(message(packet_id))
    assert due(meter) == [1, 2]
    meter.withdraw((1, 2))
    assert not meter.reserve(32_768)
    meter.acknowledged(1)
    assert meter.reserve(32_768)


def test_what_is_given_up_before_it_is_written_frees_its_slot_and_is_not_written() -> None:
    for receive_maximum in (None, 1):
        meter = WireMeter(1, receive_maximum)
        assert meter.reserve(32_768)
        meter.withdraw((32_768,))
        assert (meter.on_wire, meter.owed) == (0, 0)
        assert not meter.confirm(32_768, QoS.AT_LEAST_ONCE)


def test_a_message_of_the_fast_path_that_is_on_the_wire_and_given_up_stays_owed() -> None:
    meter = WireMeter(1, receive_maximum=1)
    assert meter.reserve(32_768)
    assert meter.confirm(32_768, QoS.EXACTLY_ONCE)
    meter.withdraw((32_768,))
    assert (meter.on_wire, meter.owed) == (1, 1)
    assert meter.received(32_768, 0)
