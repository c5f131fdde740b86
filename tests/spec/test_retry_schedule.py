"""`retry_interval` as a schedule: one wait after the other, the last one repeats. protocol.md, section 2, trigger 1."""

from state.events import PubRecReceived
from state.session_codec import decode_session, encode_session
from state.settings import RetryMqtt5
from tests.scenarios.scenario import CLIENT, Scenario

SCHEDULE = {"retry_interval_ms": 30_000, "later_retry_intervals_ms": (60_000, 300_000)}


def connected(version: int = 4, **changes: object) -> Scenario:
    return Scenario(**SCHEDULE, **changes).connect(version=version)


def next_wait(s: Scenario) -> tuple[int, list[str]]:
    """Calls the session at its own deadline: (how long that took, what was sent then)."""
    s.sees()
    before_ms, deadline_ms = s.now_ms, s.session.next_deadline_ms()
    assert deadline_ms is not None
    return deadline_ms - before_ms, s.after((deadline_ms - before_ms) / 1_000).sees()


def test_each_wait_is_that_of_the_schedule_and_the_last_repeats() -> None:
    s = connected().submit("a")
    assert [next_wait(s) for _ in range(4)] == [
        (30_000, ["PUBLISH 1 a DUP"]),
        (60_000, ["PUBLISH 1 a DUP"]),
        (300_000, ["PUBLISH 1 a DUP"]),
        (300_000, ["PUBLISH 1 a DUP"]),
    ]


def test_the_pubrel_begins_the_schedule_anew_and_follows_it() -> None:
    """The client has answered: what is waited for now is another packet."""
    s = connected().submit("a", qos=2)
    assert [next_wait(s)[0] for _ in range(2)] == [30_000, 60_000]
    assert s.pubrec(1).sees() == ["PUBREL 1"]
    assert [next_wait(s) for _ in range(3)] == [(30_000, ["PUBREL 1"]), (60_000, ["PUBREL 1"]), (300_000, ["PUBREL 1"])]


def test_so_does_a_pubrec_that_comes_after_the_connection_was_closed() -> None:
    s = connected(version=5, retry_mqtt5=RetryMqtt5.RECONNECT).submit("a", qos=2)
    assert next_wait(s) == (30_000, ["CLOSE 0x83"])
    s.handle(PubRecReceived(connection_id=1, packet_id=1, pubrel_sent=True))
    assert s.connect(version=5).sees() == ["CONNACK present", "PUBREL 1"]
    assert next_wait(s) == (30_000, ["CLOSE 0x83"])


def test_each_message_has_its_own_place_in_the_schedule() -> None:
    s = connected().submit("a")
    next_wait(s)
    s.submit("b")
    assert next_wait(s) == (30_000, ["PUBLISH 2 b DUP"])
    assert next_wait(s) == (30_000, ["PUBLISH 1 a DUP"])  # 60 s after its first repetition


def test_what_is_due_together_is_resent_in_the_order_of_first_transmission() -> None:
    """[MQTT-4.6.0-1]"""
    s = connected().submit("a", "b", "c")
    assert [next_wait(s)[1] for _ in range(2)] == [["PUBLISH 1 a DUP", "PUBLISH 2 b DUP", "PUBLISH 3 c DUP"]] * 2


def test_an_mqtt_5_connection_that_stalls_again_waits_longer() -> None:
    """[MQTT-4.4.0-1] A device that never answers is not made to reconnect every 30 s for ever."""
    s = connected(version=5, retry_mqtt5=RetryMqtt5.RECONNECT).submit("a")
    for wait_ms in (30_000, 60_000, 300_000, 300_000):
        assert next_wait(s) == (wait_ms, ["CLOSE 0x83"])
        assert s.connect(version=5).sees() == ["CONNACK present", "PUBLISH 1 a DUP"]


def test_a_connection_that_ends_before_its_time_is_no_step_of_the_schedule() -> None:
    s = connected().submit("a")
    s.later(29).lose_connection().connect()
    assert [next_wait(s)[0] for _ in range(2)] == [30_000, 60_000]
    s.later(299).lose_connection().connect()
    assert [next_wait(s)[0] for _ in range(2)] == [300_000, 300_000]


def test_a_refusal_begins_the_schedule_anew() -> None:
    s = connected(version=5, retry_mqtt5=RetryMqtt5.TIMER).submit("a")
    assert [next_wait(s)[0] for _ in range(2)] == [30_000, 60_000]
    assert s.puback(1, reason_code=0x80).sees() == ["PUBLISH 2 a"]
    assert next_wait(s) == (30_000, ["PUBLISH 2 a DUP"])


def test_the_delivery_limit_counts_attempts_whatever_the_waits() -> None:
    s = connected(delivery_limit=3).submit("a")
    assert [next_wait(s) for _ in range(3)] == [
        (30_000, ["PUBLISH 1 a DUP"]),
        (60_000, ["PUBLISH 1 a DUP"]),
        (300_000, ["WITHDRAW (1,)"]),
    ]


def test_a_new_schedule_holds_for_what_is_waited_for_already() -> None:
    """The state has the number of waits without an answer; their lengths come from the current settings."""
    before = Scenario().connect().submit("a")
    assert [next_wait(before)[0] for _ in range(2)] == [30_000, 30_000]
    s = connected()
    s.session = decode_session(encode_session(before.session), client_id=CLIENT, settings=s.settings)
    s.now_ms = before.now_ms
    assert next_wait(s) == (300_000, ["PUBLISH 1 a DUP"])
