"""protocol.md, section 3, the message queue; and messages that end before they are queued."""

import pytest

from state.commands import RecordTransition, SendPublish
from state.events import MessageReturned
from state.model import NO_PROPERTIES, Outcome
from state.outbound.message_queue import STARVATION_LIMIT
from state.records.receipts import Receipt
from state.settings import Overflow, SessionSettings
from tests.scenarios.scenario import Scenario, message

# --- limits -----------------------------------------------------------------------------------------------------------------


def test_a_full_queue_takes_the_new_message_and_drops_the_oldest() -> None:
    s = Scenario(max_mqueue_len=3).submit("a", "b", "c", "d", "e")
    assert s.queued == ["c", "d", "e"]
    assert s.outcomes == {"a": Outcome.MAXLEN, "b": Outcome.MAXLEN}
    assert s.dead_letters == [("a", Outcome.MAXLEN), ("b", Outcome.MAXLEN)]


def test_a_stored_qos_0_message_is_dropped_before_any_other() -> None:
    """EMQX differs: its queue drops the oldest message of the newcomer's priority."""
    s = Scenario(max_mqueue_len=3).submit("a").submit("x", qos=0).submit("y", qos=0).submit("b", "c", "d")
    assert s.queued == ["b", "c", "d"]
    assert list(s.outcomes) == ["x", "y", "a"]


def test_a_new_qos_0_message_pushes_no_qos_1_message_out() -> None:
    s = Scenario(max_mqueue_len=2).submit("a", "b").submit("x", qos=0)
    assert s.queued == ["a", "b"]
    assert s.outcomes == {"x": Outcome.MAXLEN}
    assert s.dead_letters == [("x", Outcome.MAXLEN)]
    assert s.receipt("x").detail == "the queue is full of messages that rank above it"


def test_a_new_message_pushes_no_higher_priority_out() -> None:
    s = Scenario(max_mqueue_len=2).submit("a", "b", priority=9).submit("low").submit("x", qos=0, priority=255)
    assert s.queued == ["a", "b"]
    assert s.outcomes == {"low": Outcome.MAXLEN, "x": Outcome.MAXLEN}


def test_among_equals_the_newcomer_is_the_youngest() -> None:
    s = Scenario(max_mqueue_len=2).submit("x", "y", "z", qos=0).submit("a").submit("b", qos=2).submit("c")
    assert s.queued == ["b", "c"]
    assert list(s.outcomes) == ["x", "y", "z", "a"]


def test_a_newcomer_that_would_not_fit_even_so_leaves_alone() -> None:
    s = Scenario(max_mqueue_bytes=10).submit("high", priority=9, payload=b"12345").submit("a", "b", payload=b"1")
    s.submit("large", payload=b"123456")
    assert s.queued == ["high", "a", "b"]
    assert s.outcomes == {"large": Outcome.MAXLEN}


def test_a_newcomer_that_was_not_let_in_may_be_sent_again_under_its_id() -> None:
    s = Scenario(max_mqueue_len=1).submit("a", priority=1).submit("b", explicit_id=True)
    assert s.outcomes == {"b": Outcome.MAXLEN}
    s.connect().submit("b", explicit_id=True)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a", "PUBLISH 2 b"]


def test_the_byte_limit_counts_payloads_and_holds_by_itself() -> None:
    s = Scenario(max_mqueue_bytes=12).submit("a", "b", payload=b"12345")
    assert s.queued == ["a", "b"]
    s.submit("c", payload=b"1")
    assert s.queued == ["b", "c"]
    assert s.session.summary().queued_bytes == 6 + 2 * len("t")
    s.submit("d", payload=b"123456789")
    assert s.queued == ["c", "d"]
    s.submit("e", payload=b"1234567")
    assert s.queued == ["e"]


def test_a_message_larger_than_the_whole_queue_is_still_taken() -> None:
    s = Scenario(max_mqueue_bytes=10).submit("a").submit("b", payload=b"x" * 50)
    assert s.queued == ["b"]
    s.connect()
    assert s.packet_ids == [1]


@pytest.mark.parametrize("limits", [{"max_mqueue_bytes": 0}, {}], ids=["both", "max_mqueue_len"])
def test_zero_means_no_limit(limits: dict[str, int]) -> None:
    """`max_mqueue_len = 0` says it alone: no limit of bytes holds then."""
    s = Scenario(max_mqueue_len=0, **limits)
    with s.micro_batch():
        s.submit(*(f"m{i}" for i in range(1_100)), payload=b"x" * 1_000)
    assert s.session.summary().queued == 1_100
    assert s.session.summary().queued_bytes == 1_100 * (1_000 + len("t")) > SessionSettings().max_mqueue_bytes


def test_with_overflow_reject_the_new_message_is_refused() -> None:
    s = Scenario(max_mqueue_len=2, overflow=Overflow.REJECT).submit("a", "b", "c")
    assert s.queued == ["a", "b"]
    assert s.outcomes == {"c": Outcome.MAXLEN}
    assert "overflow = reject" in s.receipt("c").detail


def test_a_message_refused_by_a_full_queue_may_come_again() -> None:
    s = Scenario(max_mqueue_len=1, overflow=Overflow.REJECT).submit("a").submit("b", explicit_id=True)
    assert s.outcomes == {"b": Outcome.MAXLEN}
    s.connect().puback(1).submit("b", explicit_id=True).puback(2)
    assert [(receipt.message_id, receipt.outcome) for receipt in s.receipts] == [
        ("b", Outcome.MAXLEN),
        ("a", Outcome.DELIVERED),
        ("b", Outcome.DELIVERED),
    ]
    s.submit("b", explicit_id=True)
    assert [p.payload for p in s.sent(SendPublish)] == [b"a", b"b"], "taken once, so now it is a repetition"


def test_a_qos_0_message_that_found_nobody_may_be_sent_again_under_its_id() -> None:
    s = Scenario(mqueue_store_qos0=False).submit("x", qos=0, explicit_id=True)
    assert s.outcomes == {"x": Outcome.OFFLINE}
    s.connect().submit("x", qos=0, explicit_id=True)
    assert s.sees()[-1] == "PUBLISH qos0 x"


def test_refused_messages_push_no_ids_out_of_the_deduplication_window() -> None:
    s = Scenario(max_mqueue_len=1, overflow=Overflow.REJECT, deduplication_window=1).submit("a", explicit_id=True)
    s.submit("b", "c", "d", explicit_id=True).submit("a", explicit_id=True)
    assert s.queued == ["a"]
    assert [row.outcome for row in s.sent(RecordTransition) if row.message_id == "a" and row.outcome] == [Outcome.DUPLICATE]


def test_a_slot_freed_in_the_same_batch_is_used_before_anything_is_dropped() -> None:
    s = Scenario(max_inflight=1, max_mqueue_len=1).connect().submit("a", "b")
    s.sees()
    with s.micro_batch():
        s.puback(1)
        s.submit("c")
    assert s.sees() == ["PUBLISH 2 b"]
    assert s.queued == ["c"]
    assert s.outcomes == {"a": Outcome.DELIVERED}


def test_expired_messages_make_room_before_live_ones_are_dropped() -> None:
    s = Scenario(max_mqueue_len=2)
    s.submit("a").submit("old", expires_at_ms=s.now_ms + 1_000).later(2).submit("b")
    assert s.queued == ["a", "b"]
    assert s.outcomes == {"old": Outcome.EXPIRED}


# --- expiry -----------------------------------------------------------------------------------------------------------------


def test_a_queued_message_expires_without_any_traffic() -> None:
    """[MQTT-3.3.2-5]"""
    s = Scenario()
    s.submit("a", expires_at_ms=s.now_ms + 5_000, expiration_ms=5_000).submit("b")
    assert s.session.next_deadline_ms() == s.now_ms + 5_000
    s.after(5)
    assert s.queued == ["b"]
    assert s.outcomes == {"a": Outcome.EXPIRED}
    assert s.dead_letters == [("a", Outcome.EXPIRED)]


def test_a_message_that_arrives_expired_is_not_sent() -> None:
    s = Scenario().connect()
    s.submit("a", expires_at_ms=s.now_ms)
    assert s.sees() == ["CONNACK"]
    assert s.outcomes == {"a": Outcome.EXPIRED}


def test_expiry_is_checked_when_the_client_comes_back_late() -> None:
    """[MQTT-3.3.2-5]"""
    s = Scenario()
    s.submit("a", expires_at_ms=s.now_ms + 5_000).submit("b").later(5).connect()
    assert s.sees() == ["CONNACK", "PUBLISH 1 b"]
    assert s.outcomes == {"a": Outcome.EXPIRED}


def test_the_device_is_told_the_remaining_interval_rounded_up() -> None:
    """[MQTT-3.3.2-6]"""
    s = Scenario()
    s.submit("a", expires_at_ms=s.now_ms + 60_000).submit("b").later(20.5).connect(version=5)
    assert [p.expiry_interval_s for p in s.sent(SendPublish)] == [40, None]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_in_the_window_never_expires(qos: int) -> None:
    """[MQTT-4.3.3-7]; a replay tells the device that a second is left, 0 would mean nothing."""
    s = Scenario().connect(version=5)
    s.submit("a", qos=qos, expires_at_ms=s.now_ms + 1_000).lose_connection()
    s.after(500).connect(version=5)
    assert s.outcomes == {}
    assert [p.expiry_interval_s for p in s.sent(SendPublish)] == [1, 1]


def test_an_expired_message_frees_nothing_but_its_place_in_the_queue() -> None:
    s = Scenario(max_inflight=1).connect().submit("a")
    s.submit("b", expires_at_ms=s.now_ms + 1_000).submit("c").after(1)
    s.sees()
    assert s.puback(1).sees() == ["PUBLISH 2 c"]


# --- priorities -------------------------------------------------------------------------------------------------------------


def test_higher_priorities_first_and_first_in_first_out_within_one() -> None:
    s = Scenario().submit("low-1").submit("high-1", priority=200).submit("mid", priority=7).submit("high-2", priority=200)
    s.submit("low-2").connect()
    assert [p.payload.decode() for p in s.sent(SendPublish)] == ["high-1", "high-2", "mid", "low-1", "low-2"]


def test_a_low_priority_is_not_starved() -> None:
    s = Scenario(max_inflight=1).connect().submit("first").submit("low")
    for number in range(1, 40):
        s.submit(f"high-{number}", priority=9).puback(number)
    sent = [p.payload.decode() for p in s.sent(SendPublish)]
    assert sent.index("low") == 1 + STARVATION_LIMIT


def test_a_refused_message_returns_to_its_place_within_its_priority() -> None:
    s = Scenario(max_inflight=1).connect(version=5).submit("a", priority=5).submit("b", priority=5).submit("c")
    s.sees()
    s.puback(1, reason_code=0x80)
    assert s.sees() == ["PUBLISH 2 a"]


def test_a_full_queue_gives_up_low_priorities_before_high_ones() -> None:
    s = Scenario(max_mqueue_len=2).submit("high", priority=9).submit("low").submit("mid", priority=5)
    assert s.queued == ["high", "mid"]


# --- repetitions and records that break the contract ------------------------------------------------------------------------


@pytest.mark.promise("backend-to-engine")
def test_a_repeated_message_id_within_the_window_is_one_message() -> None:
    s = Scenario().connect().submit("a", "b", "a", explicit_id=True)
    assert [p.payload for p in s.sent(SendPublish)] == [b"a", b"b"]
    s.puback(1, 2)
    assert s.outcomes == {"a": Outcome.DELIVERED, "b": Outcome.DELIVERED}  # the repetition has no receipt of its own
    assert s.ledger.count("finished") == 3  # but a row in the ledger


def test_a_message_id_beyond_the_deduplication_window_is_a_new_message() -> None:
    s = Scenario(deduplication_window=2).connect().submit("a", "b", "c", "a", explicit_id=True)
    assert len(s.sent(SendPublish)) == 4


def test_without_an_explicit_id_nothing_is_a_repetition() -> None:
    s = Scenario().connect().submit("a", "a")
    assert len(s.sent(SendPublish)) == 2


def test_a_deduplication_window_of_zero_is_off() -> None:
    s = Scenario(deduplication_window=0).connect().submit("a", "a", explicit_id=True)
    assert len(s.sent(SendPublish)) == 2


def test_deduplication_survives_a_reconnect() -> None:
    s = Scenario().connect().submit("a", explicit_id=True).puback(1).lose_connection().connect()
    s.submit("a", explicit_id=True)
    assert len(s.sent(SendPublish)) == 1


def test_a_replayed_dead_letter_is_taken_once_for_each_replay() -> None:
    s = Scenario().connect()
    for replay in ("replay-1", "replay-1", "replay-2"):
        s.handle(MessageReturned(message=message("a"), return_id=replay))
    assert [p.payload for p in s.sent(SendPublish)] == [b"a", b"a"]
    assert s.ledger.count("returned") == 2


def test_a_record_that_breaks_the_contract_is_a_dead_letter_that_says_why() -> None:
    s = Scenario().refuse("a", "no mqtt-topic header: set it to the topic")
    assert s.outcomes == {"a": Outcome.INVALID}
    assert s.dead_letters == [("a", Outcome.INVALID)]
    assert s.receipt("a").detail == "no mqtt-topic header: set it to the topic"
    assert s.session.is_empty


def test_a_receipt_tells_the_times_and_the_attempts() -> None:
    s = Scenario().submit("a")
    accepted_ms = s.now_ms
    s.later(10).connect()
    first_sent_ms = s.now_ms
    s.after(30).later(1).puback(1)
    assert s.receipt("a") == Receipt(
        message_id="a",
        client_id="sensor-1",
        outcome=Outcome.DELIVERED,
        reason_code=0,
        attempts=2,
        accepted_ms=accepted_ms,
        first_sent_ms=first_sent_ms,
        outcome_ms=s.now_ms,
        recorded_ms=s.now_ms,
        detail="",
        final=True,
        destinations=(),
        deaths=0,
        correlation_data=None,
        fast_path=False,
        traceparent=None,
    )


def test_a_publish_carries_what_the_backend_wrote() -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    properties = NO_PROPERTIES.__class__(
        payload_format=1, content_type="c", response_topic="r", correlation_data=b"d", user_properties=(("k", "v"), ("k", "w"))
    )
    s = Scenario().connect(version=5).submit("a", topic="x/y", payload=b"\0", retain=True, properties=properties)
    (publish,) = s.sent(SendPublish)
    assert (publish.topic, publish.payload, publish.retain, publish.properties) == ("x/y", b"\0", True, properties)
