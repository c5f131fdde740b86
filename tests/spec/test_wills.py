"""protocol.md, section 1, the will message."""

import pytest

from state.commands import EndSessionMark, ForwardPublication
from state.events import Claim
from state.model import PublishProperties, QoS
from tests.scenarios.scenario import Scenario, will


def test_a_lost_connection_publishes_the_will_with_all_it_carries() -> None:
    """[MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-14] [MQTT-3.1.3-10]"""
    properties = PublishProperties(content_type="text/plain", user_properties=(("b", "1"), ("a", "2"), ("b", "3")))
    message = will("gone", qos=QoS.AT_LEAST_ONCE, retain=True, expiry_interval_s=60, properties=properties)
    s = Scenario().connect(will=message).lose_connection()
    assert s.sent(ForwardPublication) == [
        ForwardPublication(
            publication_id="sensor-1:1:will",
            topic="status",
            payload=b"gone",
            qos=QoS.AT_LEAST_ONCE,
            retain=True,
            expiry_interval_s=60,
            properties=properties,
            will=True,
        )
    ]
    s.lose_connection()
    s.after(10_000)
    assert s.uplink == ["gone"]  # once [MQTT-3.1.2-10]


def test_a_normal_disconnect_withdraws_the_will() -> None:
    """[MQTT-3.14.4-3] [MQTT-3.1.2-8]"""
    s = Scenario().connect(version=5, will=will()).disconnect().after(10_000)
    assert s.uplink == []


@pytest.mark.parametrize("reason_code", [0x04, 0x80, 0x81, 0x82, 0x93, 0x98])
def test_any_other_disconnect_publishes_the_will(reason_code: int) -> None:
    """[MQTT-3.1.2-8] Only DISCONNECT 0x00 withdraws it."""
    s = Scenario().connect(version=5, will=will()).disconnect(reason_code)
    assert s.uplink == ["gone"]


def test_a_connection_closed_for_a_protocol_error_publishes_the_will() -> None:
    """[MQTT-3.1.2-8]"""
    s = Scenario().connect(will=will()).submit("a", qos=2).puback(1)
    assert s.uplink == ["gone"]


def test_a_will_delay_is_waited_for_without_traffic() -> None:
    """[MQTT-3.1.3.2.2]"""
    s = Scenario().connect(version=5, will=will(delay_s=30)).lose_connection()
    assert s.session.next_deadline_ms() == s.now_ms + 30_000
    s.after(29.999)
    assert s.uplink == []
    s.after(0.001)
    assert s.uplink == ["gone"]


def test_a_reconnect_before_the_delay_has_passed_cancels_the_will() -> None:
    """[MQTT-3.1.3-9]"""
    s = Scenario().connect(version=5, will=will(delay_s=30)).lose_connection().after(29).connect(version=5).after(3_600)
    assert s.uplink == []


def test_a_takeover_cancels_a_delayed_will_and_publishes_one_without_delay() -> None:
    """[MQTT-3.1.3-9] and MQTT 5, 3.1.4"""
    s = Scenario().connect(version=5, will=will("delayed", delay_s=30)).connect(version=5, will=will("at once"))
    s.connect(version=5)
    assert s.uplink == ["at once"]


def test_the_end_of_the_session_publishes_a_delayed_will_early() -> None:
    """[MQTT-3.1.2-8] whichever comes first: the delay or the end of the session"""
    s = Scenario().connect(version=5, expiry_s=10, will=will(delay_s=30)).lose_connection()
    s.after(10)
    assert s.uplink == ["gone"]
    assert s.session.is_empty


def test_a_session_without_expiry_publishes_its_will_at_once() -> None:
    s = Scenario().connect(version=5, expiry_s=0, will=will(delay_s=30)).lose_connection()
    assert s.uplink == ["gone"]


def test_a_clean_start_publishes_a_delayed_will() -> None:
    """[MQTT-3.1.2-8]"""
    s = Scenario().connect(version=5, will=will(delay_s=30)).lose_connection().connect(version=5, clean_start=True)
    assert s.uplink == ["gone"]
    s.after(60)
    assert s.uplink == ["gone"]


def test_a_shorter_expiry_in_disconnect_shortens_the_will_delay() -> None:
    s = Scenario().connect(version=5, expiry_s=100, will=will(delay_s=30)).disconnect(0x04, expiry_s=5)
    assert s.session.next_deadline_ms() == s.now_ms + 5_000


def test_each_connection_has_its_own_will() -> None:
    s = Scenario().connect(will=will("one")).lose_connection().connect(will=will("two")).lose_connection()
    assert s.uplink == ["one", "two"]
    assert len({w.publication_id for w in s.sent(ForwardPublication)}) == 2


def test_the_will_of_a_repeated_batch_has_the_same_id() -> None:
    s = Scenario().connect(will=will()).lose_connection()
    assert s.sent(ForwardPublication)[0].publication_id == "sensor-1:1:will"


class TestGrace:
    """A gateway that ends a connection for a reason of its own may defer the will (MQTT 5, 3.1.2.5)."""

    @pytest.mark.promise("gateway-stop")
    def test_a_client_that_is_back_in_time_has_no_will_published(self) -> None:
        s = Scenario().connect(will=will()).lose_connection(reconnect_grace_ms=30_000).after(29.999).connect().after(3_600)
        assert s.uplink == []

    def test_nor_has_one_whose_session_has_ended_with_the_connection(self) -> None:
        s = Scenario().connect(version=5, expiry_s=0, clean_start=True, will=will()).lose_connection(reconnect_grace_ms=30_000)
        assert not s.session.established
        s.after(29.999).connect(version=5, expiry_s=0, clean_start=True).after(3_600)
        assert s.uplink == []

    def test_the_will_of_who_stays_away_is_published_after_it_without_traffic(self) -> None:
        for expiry_s in 0, 3_600:
            s = Scenario().connect(version=5, expiry_s=expiry_s, will=will()).lose_connection(reconnect_grace_ms=30_000)
            assert s.session.next_deadline_ms() == s.now_ms + 30_000
            s.after(29.999)
            assert s.uplink == []
            assert not s.session.is_empty, "it has a will to publish"
            s.after(0.001)
            assert s.uplink == ["gone"]
            assert s.session.is_empty is (expiry_s == 0)

    def test_a_longer_delay_of_the_will_holds(self) -> None:
        s = Scenario().connect(version=5, will=will(delay_s=60)).lose_connection(reconnect_grace_ms=30_000).after(59.999)
        assert s.uplink == []
        assert s.after(0.001).uplink == ["gone"]

    def test_the_end_of_a_kept_session_publishes_the_will_before_it(self) -> None:
        """[MQTT-3.1.2-8]"""
        s = Scenario().connect(version=5, expiry_s=10, will=will()).lose_connection(reconnect_grace_ms=30_000).after(10)
        assert s.uplink == ["gone"]

    def test_a_clean_start_of_a_kept_session_publishes_it(self) -> None:
        """[MQTT-3.1.2-8]"""
        s = Scenario().connect(version=5, will=will()).lose_connection(reconnect_grace_ms=30_000)
        assert s.connect(version=5, clean_start=True).uplink == ["gone"]

    def test_messages_that_come_for_who_is_away_meanwhile_end_without_it(self) -> None:
        s = Scenario(session_expiry_interval_s=10).connect(version=5, expiry_s=0, will=will())
        s.lose_connection(reconnect_grace_ms=30_000).submit("a").after(10)
        assert (set(s.outcomes), s.uplink) == ({"a"}, [])
        assert s.after(20).uplink == ["gone"]


class TestTheNextConnection:
    """The session accepts a connection when the wills of earlier ones are in the log: with the next micro-batch.

    A micro-batch writes its records in any order, and may write them twice.
    """

    def test_a_connection_is_accepted_when_the_will_before_it_is_in_the_log(self) -> None:
        s = Scenario().connect(will=will()).subscribe("t", 1)
        with s.micro_batch():
            s.lose_connection().connect().submit("a")
        assert (s.uplink, s.sees()) == (["gone"], ["CONNACK"])
        assert s.after(0.001).sees() == ["CONNACK present", "PUBLISH 1 a"]

    def test_a_connection_that_takes_over_is_accepted_behind_the_will(self) -> None:
        """[MQTT-3.1.4-3] The old connection is closed at once."""
        s = Scenario().connect(version=5, will=will())
        assert s.connect(version=5, clean_start=True).sees() == ["CONNACK", "CLOSE 0x8E"]
        assert s.uplink == ["gone"]
        assert s.after(0.001).sees() == ["CONNACK"]

    def test_what_it_is_sent_meanwhile_follows_in_order(self) -> None:
        s = Scenario().connect(will=will()).connect(clean_start=True).subscribe("t", 1).submit("a")
        assert s.sees() == ["CONNACK", "CLOSE 0x8E", "CONNACK", "PUBLISH 1 a"]

    def test_each_of_several_takeovers_waits_for_the_will_before_it(self) -> None:
        s = Scenario().connect(will=will("one")).connect(will=will("two")).connect()
        assert s.sees() == ["CONNACK", "CLOSE 0x8E", "CONNACK present", "CLOSE 0x8E"]
        assert (s.uplink, s.after(0.001).sees()) == (["one", "two"], ["CONNACK present"])

    def test_a_connection_with_nothing_before_it_in_the_log_is_accepted_at_once(self) -> None:
        """A will that was withdrawn, cancelled, or written by an earlier micro-batch."""
        withdrawn = Scenario().connect(will=will())
        with withdrawn.micro_batch():
            withdrawn.disconnect().connect()
        assert withdrawn.sees() == ["CONNACK", "CONNACK present"]
        cancelled = Scenario().connect(version=5, will=will(delay_s=30)).connect(version=5)
        assert cancelled.sees() == ["CONNACK", "CLOSE 0x8E", "CONNACK present"]
        written = Scenario().connect(will=will()).lose_connection().connect()
        assert written.sees() == ["CONNACK", "CONNACK present"]

    def test_the_mark_of_a_will_ends_when_the_will_is_in_the_log(self) -> None:
        s = Scenario(routing=True).connect(expiry_s=0, clean_start=True, will=will()).lose_connection()
        assert (s.uplink, s.sent(EndSessionMark), s.session.is_empty) == (["gone"], [], False)
        s.after(0.001)
        assert (s.sent(EndSessionMark), s.session.is_empty) == ([EndSessionMark(connection_id=1)], True)

    def test_the_mark_of_a_kept_session_outlives_the_will(self) -> None:
        s = Scenario(routing=True).connect(will=will()).lose_connection().after(1)
        assert s.sent(EndSessionMark) == []

    def test_the_end_of_a_session_leaves_the_mark_of_a_will_that_waits(self) -> None:
        s = Scenario(routing=True).connect().connect(expiry_s=0, will=will()).lose_connection(reconnect_grace_ms=30_000)
        assert s.sent(EndSessionMark)[-1] == EndSessionMark(connection_id=2, has_will=True)
        s.after(31)
        assert (s.uplink, s.sent(EndSessionMark)[-1]) == (["gone"], EndSessionMark(connection_id=2))

    def test_the_end_of_a_session_leaves_the_mark_of_the_next_will(self) -> None:
        s = Scenario(routing=True).connect().connect(clean_start=True, expiry_s=0, version=5, will=will())
        assert s.sent(EndSessionMark) == [EndSessionMark(connection_id=2, has_will=True)]

    def test_a_claim_that_is_refused_leaves_the_mark_of_a_will_that_waits(self) -> None:
        s = Scenario(routing=True).connect(expiry_s=0, will=will()).lose_connection(reconnect_grace_ms=30_000)
        s.connect(claim=Claim.RESUMED)
        assert s.sent(EndSessionMark) == [EndSessionMark(connection_id=2, has_will=True)]
        s.after(31)
        assert (s.uplink, s.sent(EndSessionMark)[-1]) == (["gone"], EndSessionMark(connection_id=2))
