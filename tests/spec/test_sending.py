"""protocol.md, section 2, sending to a device: handshakes, what is sent again and when, order, QoS 0."""

import pytest

from state.commands import RecordTransition, SendPublish, SendReceipt, Transition
from state.model import Outcome, PublishProperties
from state.settings import RetryMqtt5
from tests.scenarios.scenario import PARTITION, START_MS, Scenario

# --- the handshakes ---------------------------------------------------------------------------------------------------------


def test_a_qos_1_message_is_done_with_its_puback() -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.2-3]"""
    s = Scenario().connect().submit("a")
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]
    s.puback(1)
    assert s.outcomes == {"a": Outcome.DELIVERED}
    assert s.packet_ids == []
    assert s.after(1_000).sees() == []


def test_a_first_transmission_has_dup_0_and_a_nonzero_packet_id() -> None:
    """[MQTT-3.3.1-1] [MQTT-2.2.1-4] [MQTT-4.3.2-2] [MQTT-4.3.3-2]"""
    s = Scenario().connect().submit("a").submit("b", qos=2)
    assert [(p.dup, p.packet_id) for p in s.sent(SendPublish)] == [(False, 1), (False, 2)]


def test_a_qos_2_message_is_done_with_its_pubcomp() -> None:
    """[MQTT-4.3.3-1] [MQTT-4.3.3-3] [MQTT-4.3.3-4] [MQTT-4.3.3-5]"""
    s = Scenario().connect().submit("a", qos=2)
    s.pubrec(1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBREL 1"]
    assert s.outcomes == {}
    assert s.packet_ids == [1]  # the id stays in use until PUBCOMP
    s.pubcomp(1)
    assert s.outcomes == {"a": Outcome.DELIVERED}
    assert s.packet_ids == []


def test_a_pubrec_lets_go_of_the_payload_and_keeps_the_id() -> None:
    s = Scenario().connect().submit("a", qos=2).pubrec(1)
    (entry,) = s.session.outbound.window
    assert entry.delivery.message.payload == b""
    assert entry.delivery.message.message_id == "a"


def test_a_message_past_pubrec_keeps_what_its_receipt_needs() -> None:
    properties = PublishProperties(content_type="c", response_topic="answers", correlation_data=b"42")
    s = Scenario().connect().submit("a", qos=2, properties=properties).pubrec(1)
    (entry,) = s.session.outbound.window
    kept = PublishProperties(response_topic="answers", correlation_data=b"42")
    assert entry.delivery.message.properties == kept
    s.pubcomp(1)
    (command,) = s.sent(SendReceipt)
    assert (command.response_topic, command.receipt.correlation_data) == ("answers", b"42")


def test_a_pubrel_that_the_gateway_has_sent_is_recorded_and_not_sent_twice() -> None:
    s = Scenario().connect().submit("a", qos=2)
    s.sees()
    s.pubrec(1, pubrel_sent=True)
    assert s.sees() == []
    assert "pubrec" in s.ledger
    assert s.after(30).sees() == ["PUBREL 1"]  # but it is the session that resends it


def test_reason_code_0x10_is_a_success() -> None:
    """The reason "No matching subscribers" is not a refusal (MQTT 5, 3.4.2.1)."""
    s = Scenario().connect(version=5).submit("a").submit("b", qos=2)
    s.puback(1, reason_code=0x10).pubrec(2, reason_code=0x10).pubcomp(2)
    assert s.outcomes == {"a": Outcome.DELIVERED, "b": Outcome.DELIVERED}
    assert s.receipt("a").reason_code == 0x10


def test_commands_go_to_the_partition_of_the_connection_and_are_numbered() -> None:
    s = Scenario().connect().submit("a", "b").puback(1)
    assert [(p.connection_id, p.partition, p.sequence) for p in s.sent(SendPublish)] == [(1, PARTITION, 2), (1, PARTITION, 3)]


# --- what is sent again, and when -------------------------------------------------------------------------------------------


def test_a_qos_1_publish_is_sent_again_after_the_retry_interval() -> None:
    """[MQTT-3.3.1-1] [MQTT-4.4.0-1]; MQTT 3.1.1 leaves the timer to the server."""
    s = Scenario(retry_interval_ms=20_000).connect().submit("a")
    s.sees()
    assert s.after(19.999).sees() == []
    assert s.after(0.001).sees() == ["PUBLISH 1 a DUP"]
    assert s.after(20).sees() == ["PUBLISH 1 a DUP"]  # each resend restarts the clock


@pytest.mark.parametrize("qos", [1, 2])
def test_a_resent_publish_is_the_same_packet_but_for_dup(qos: int) -> None:
    """[MQTT-4.4.0-1] the original packet id; MQTT 5, 4.3"""
    s = Scenario().connect().submit("a", qos=qos, retain=True).after(30).connect()
    first, retried, replayed = s.sent(SendPublish)
    for again in (retried, replayed):
        assert (again.packet_id, again.topic, again.payload, again.qos, again.retain, again.dup) == (
            1,
            "t",
            b"a",
            qos,
            True,
            True,
        )
    assert not first.dup
    if qos == 1:
        s.puback(1)
    else:
        s.pubrec(1).pubcomp(1)
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_an_unanswered_qos_2_publish_and_its_pubrel_are_sent_again() -> None:
    """[MQTT-4.3.3-6] never PUBLISH after PUBREC."""
    s = Scenario().connect().submit("a", qos=2)
    s.sees()
    assert s.after(30).sees() == ["PUBLISH 1 a DUP"]
    assert s.pubrec(1).sees() == ["PUBREL 1"]
    assert s.after(90).sees() == ["PUBREL 1", "PUBREL 1", "PUBREL 1"]
    s.lose_connection().connect()
    assert s.sees() == ["CONNACK present", "PUBREL 1"]


def test_a_phase_change_restarts_the_clock() -> None:
    """EMQX keeps the time of the PUBLISH and resends PUBREL too early."""
    s = Scenario().connect().submit("a", qos=2)
    s.after(29).pubrec(1)
    s.sees()
    assert s.after(29.999).sees() == []
    assert s.after(0.001).sees() == ["PUBREL 1"]


def test_each_entry_has_its_own_clock() -> None:
    s = Scenario().connect().submit("a").after(10).submit("b")
    s.sees()
    assert s.after(20).sees() == ["PUBLISH 1 a DUP"]
    assert s.after(10).sees() == ["PUBLISH 2 b DUP"]


def test_timers_do_not_run_while_the_client_is_offline() -> None:
    s = Scenario().connect().submit("a").lose_connection()
    s.sees()
    assert s.after(3_000).sees() == []
    assert s.attempts == {"a": 0}


def test_calling_early_does_nothing() -> None:
    s = Scenario().connect().submit("a").later(10)
    s.sees()
    with s.micro_batch():
        pass
    assert s.last == ()


def test_a_reconnect_replays_all_unfinished_before_the_queue() -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1]"""
    s = Scenario(max_inflight=3).connect()
    s.submit("a", qos=2).submit("b").submit("c", qos=2).submit("d")
    s.pubrec(3).lose_connection()
    s.sees()
    s.connect()
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP", "PUBLISH 2 b DUP", "PUBREL 3"]
    s.puback(2)
    assert s.sees() == ["PUBLISH 4 d"]


def test_a_replay_follows_first_transmissions_over_a_wraparound() -> None:
    """[MQTT-4.6.0-1] EMQX replays in packet-id order."""
    s = Scenario().connect()
    s.session.outbound.packet_ids.last = 32_765
    s.submit("a", "b", "c", "d")
    assert s.packet_ids == [32_766, 32_767, 1, 2]
    s.sees()
    s.lose_connection().connect()
    assert s.sees() == ["CONNACK present", "PUBLISH 32766 a DUP", "PUBLISH 32767 b DUP", "PUBLISH 1 c DUP", "PUBLISH 2 d DUP"]


# --- retry_mqtt5 ------------------------------------------------------------------------------------------------------------


def test_mqtt_5_reconnect_mode_closes_a_stalled_connection() -> None:
    """[MQTT-4.4.0-1] no timed resend on a live connection."""
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5).submit("a")
    s.sees()
    assert s.after(30).sees() == ["CLOSE 0x83"]
    assert not s.session.summary().connected
    s.connect(version=5)
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP"]
    assert s.attempts == {"a": 2}  # the first one had its time


def test_mqtt_5_reconnect_mode_spares_sessions_without_expiry() -> None:
    """[MQTT-4.4.0-1] closing would turn a late acknowledgement into `session_ended`."""
    s = Scenario(retry_mqtt5=RetryMqtt5.RECONNECT).connect(version=5, expiry_s=0).submit("a")
    s.sees()
    assert s.after(60).sees() == []
    assert s.session.next_deadline_ms() is None
    assert s.puback(1).outcomes == {"a": Outcome.DELIVERED}


def test_mqtt_5_timer_mode_resends_on_a_live_connection() -> None:
    s = Scenario(retry_mqtt5=RetryMqtt5.TIMER).connect(version=5).submit("a")
    s.sees()
    assert s.after(30).sees() == ["PUBLISH 1 a DUP"]


def test_mqtt_5_wait_mode_sends_nothing_again_until_the_reconnect() -> None:
    """[MQTT-4.4.0-1]"""
    s = Scenario(retry_mqtt5=RetryMqtt5.WAIT).connect(version=5).submit("a")
    s.sees()
    assert s.after(10_000).sees() == []
    assert s.session.next_deadline_ms() is None
    s.lose_connection().connect(version=5)
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP"]


def test_by_default_a_slow_mqtt_5_client_keeps_its_connection() -> None:
    """It acknowledges each message after 45 s, and answers pings meanwhile (docs/decisions/0040)."""
    s = Scenario().connect(version=5, receive_maximum=1).submit(*(f"m{number}" for number in range(30)))
    for number in range(30):
        s.after(45).puback(number + 1)
    assert set(s.outcomes.values()) == {Outcome.DELIVERED}
    assert {s.receipt(f"m{number}").attempts for number in range(30)} == {1}
    assert not any(said.startswith("CLOSE") for said in s.sees())


@pytest.mark.parametrize("qos", [1, 2])
def test_the_ledger_says_once_that_an_acknowledgement_is_overdue(qos: int) -> None:
    s = Scenario(max_inflight=1).connect(version=5).submit("a", "b", qos=qos)
    s.after(29)
    assert "overdue" not in s.ledger
    s.after(600)
    (row,) = [row for row in s.sent(RecordTransition) if row.transition is Transition.OVERDUE]
    assert (row.message_id, row.packet_id, row.attempt, row.time_ms - START_MS) == ("a", 1, 1, 30_000)
    s.lose_connection().connect(version=5).after(600)
    assert s.ledger.count("overdue") == 2, "once for each transmission"
    if qos == 2:
        s.pubrec(1).after(600)
        assert s.ledger.count("overdue") == 3, "and for PUBREL"


@pytest.mark.parametrize("mode", RetryMqtt5)
def test_retry_mqtt5_means_nothing_to_a_3_1_1_client(mode: RetryMqtt5) -> None:
    s = Scenario(retry_mqtt5=mode).connect(version=4).submit("a")
    s.sees()
    assert s.after(30).sees() == ["PUBLISH 1 a DUP"]


# --- order ------------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("queue-order")
def test_first_transmissions_leave_in_the_order_of_submission() -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
    s = Scenario(max_inflight=2)
    s.submit("a", "b").connect().submit("c", "d", "e")
    for packet_id in range(1, 6):
        s.puback(packet_id)
    assert [p.payload.decode() for p in s.sent(SendPublish)] == ["a", "b", "c", "d", "e"]


def test_a_slot_freed_in_a_batch_goes_to_the_queue_before_a_newcomer() -> None:
    """EMQX lets the new message overtake."""
    s = Scenario(max_inflight=1).connect().submit("a", "b")
    s.sees()
    with s.micro_batch():
        s.puback(1)
        s.submit("c")
    assert s.sees() == ["PUBLISH 2 b"]
    assert s.queued == ["c"]


# --- QoS 0 ------------------------------------------------------------------------------------------------------------------


def test_qos_0_passes_a_full_window_and_is_never_in_it() -> None:
    """[MQTT-4.3.1-1] [MQTT-2.2.1-2] [MQTT-3.3.1-2]: no packet id, DUP 0."""
    s = Scenario(max_inflight=1).connect().submit("a", "b")
    s.sees()
    s.submit("x", qos=0)
    assert s.sees() == ["PUBLISH qos0 x"]
    (publish,) = (p for p in s.sent(SendPublish) if p.payload == b"x")
    assert (publish.packet_id, publish.dup) == (0, False)
    assert s.outcomes == {"x": Outcome.SENT}
    assert s.session.summary().inflight == 1


def test_qos_0_for_an_offline_client_is_kept_if_so_configured() -> None:
    s = Scenario(mqueue_store_qos0=True).submit("x", qos=0).submit("a").connect()
    assert s.sees() == ["CONNACK", "PUBLISH qos0 x", "PUBLISH 1 a"]


def test_qos_0_for_an_offline_client_is_a_named_drop_otherwise() -> None:
    s = Scenario(mqueue_store_qos0=False).submit("x", qos=0).connect()
    assert s.sees() == ["CONNACK"]
    assert s.outcomes == {"x": Outcome.OFFLINE}
    assert s.dead_letters == []


def test_stored_qos_0_needs_no_slot_of_the_window() -> None:
    s = Scenario(max_inflight=1).connect().submit("a").lose_connection()
    s.submit("x", "y", qos=0)
    s.sees()
    s.connect()
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP", "PUBLISH qos0 x", "PUBLISH qos0 y"]


def test_a_stored_queue_leaves_in_the_order_in_which_it_came() -> None:
    s = Scenario().submit("a").submit("b", qos=0).submit("c").submit("d", qos=0).connect()
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH qos0 b", "PUBLISH 2 c", "PUBLISH qos0 d"]


def test_qos_0_passes_what_waits_for_a_slot_and_nothing_else() -> None:
    s = Scenario(max_inflight=2).submit("a").submit("b", qos=0).submit("c", "e").submit("d", qos=0).connect()
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH qos0 b", "PUBLISH 2 c", "PUBLISH qos0 d"]
    assert s.queued == ["e"]


def test_qos_0_passes_what_waits_for_a_backoff() -> None:
    s = Scenario().connect(version=5).submit("a").puback(1, reason_code=0x97).submit("b", qos=0).lose_connection()
    s.submit("c", qos=0).connect(version=5)
    assert s.sees()[-3:] == ["PUBLISH qos0 b", "CONNACK present", "PUBLISH qos0 c"]
    assert s.queued == ["a"]


def test_a_new_qos_0_message_goes_behind_what_leaves_the_queue() -> None:
    s = Scenario(max_inflight=1).connect().submit("a", "b")
    s.sees()
    with s.micro_batch():
        s.puback(1)
        s.submit("x", qos=0)
    assert s.sees() == ["PUBLISH 2 b", "PUBLISH qos0 x"]


def test_a_new_qos_0_message_goes_behind_a_stored_one() -> None:
    s = Scenario(max_inflight=1).connect().submit("a").lose_connection().submit("x", qos=0)
    s.sees()
    with s.micro_batch():
        s.connect()
        s.submit("y", qos=0)
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP", "PUBLISH qos0 x", "PUBLISH qos0 y"]


@pytest.mark.parametrize(
    ("settings", "fields"),
    [({"mqueue_store_qos0": False}, {}), ({"max_mqueue_len": 1}, {}), ({}, {"expiration_ms": 0, "expires_at_ms": 0})],
    ids=["not stored", "the queue is full", "no time to wait"],
)
def test_no_message_that_could_leave_stays_behind_a_new_qos_0_message(settings: dict[str, int], fields: dict[str, int]) -> None:
    s = Scenario(max_inflight=1, **settings).connect().submit("a", "b")
    s.sees()
    with s.micro_batch():
        s.puback(1)
        s.submit("x", qos=0, **fields)
    assert s.sees() == ["PUBLISH 2 b", "PUBLISH qos0 x"]


def test_qos_0_of_one_activation_keeps_its_order_in_a_full_queue() -> None:
    s = Scenario(max_mqueue_len=2)
    with s.micro_batch():
        s.submit("a", qos=0).connect().submit("b", "c", "d", qos=0)
    assert s.sees() == ["CONNACK", *(f"PUBLISH qos0 {name}" for name in "abcd")]
    assert Outcome.MAXLEN not in s.outcomes.values()


def test_stored_qos_0_whose_time_is_over_is_not_sent() -> None:
    s = Scenario()
    s.submit("x", qos=0, expires_at_ms=s.now_ms + 1_000).later(1).connect()
    assert s.sees() == ["CONNACK"]
    assert s.outcomes == {"x": Outcome.EXPIRED}
