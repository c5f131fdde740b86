"""Scenarios about order and loss, as transcripts. protocol.md, sections 2 and 3."""

import pytest

from state.model import Outcome
from state.settings import RetryMqtt5
from tests.scenarios.scenario import Scenario


def test_the_documented_example_keeps_first_occurrences_in_order() -> None:
    """[MQTT-4.6.0-1] Window 2, messages 1 to 4, the PUBACKs of 2 and 3 are lost: the device sees 1,2,3,2,3,4."""
    s = Scenario(max_inflight=2).connect()
    s.submit("1", "2", "3", "4")
    s.puback(1)
    s.lose_connection()  # the acknowledgements of 2 and 3 go down with it
    s.connect()
    s.puback(2, 3)
    s.puback(4)

    assert s.sees() == [
        "CONNACK",
        "PUBLISH 1 1",
        "PUBLISH 2 2",
        "PUBLISH 3 3",
        "CONNACK present",
        "PUBLISH 2 2 DUP",
        "PUBLISH 3 3 DUP",
        "PUBLISH 4 4",
    ]
    assert s.outcomes == dict.fromkeys("1234", Outcome.DELIVERED)


def test_a_window_of_one_is_strict_order_even_with_repetitions() -> None:
    s = Scenario(max_inflight=1).connect()
    s.submit("a", "b", "c")
    s.after(30)  # a again
    s.puback(1)
    s.lose_connection().connect()  # b again
    s.puback(2).puback(3)
    published = [line.split()[2] for line in s.sees() if line.startswith("PUBLISH")]
    assert published == ["a", "a", "b", "b", "c"]
    assert s.outcomes == dict.fromkeys("abc", Outcome.DELIVERED)


def test_out_of_order_pubacks_free_their_own_slots_only() -> None:
    s = Scenario(max_inflight=3).connect()
    s.submit("a", "b", "c", "d", "e")
    s.sees()
    s.puback(3)
    assert s.sees() == ["PUBLISH 4 d"]
    s.puback(2)
    assert s.sees() == ["PUBLISH 5 e"]
    s.lose_connection().connect()
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP", "PUBLISH 4 d DUP", "PUBLISH 5 e DUP"]


def test_a_qos_2_message_survives_a_crash_at_every_point_of_its_handshake() -> None:
    """The DSL executes each step twice; here the connection breaks at each step, too."""
    s = Scenario().connect()
    s.submit("a", qos=2)
    s.lose_connection().connect()
    s.pubrec(1)
    s.lose_connection().connect()
    s.lose_connection().connect()
    s.pubcomp(1)
    assert s.sees() == [
        "CONNACK",
        "PUBLISH 1 a",
        "CONNACK present",
        "PUBLISH 1 a DUP",
        "PUBREL 1",
        "CONNACK present",
        "PUBREL 1",
        "CONNACK present",
        "PUBREL 1",
    ]
    assert s.outcomes == {"a": Outcome.DELIVERED}


@pytest.mark.parametrize("version", [4, 5])
def test_an_acknowledgement_beside_a_passed_deadline_prevents_the_resend(version: int) -> None:
    s = Scenario(retry_mqtt5=RetryMqtt5.TIMER).connect(version=version).submit("a")
    s.sees()
    s.later(31).puback(1)
    assert s.sees() == []
    assert s.outcomes == {"a": Outcome.DELIVERED}


@pytest.mark.promise("direct-order")
def test_resends_are_not_overtaken_by_messages_from_the_queue() -> None:
    s = Scenario(max_inflight=2).connect().submit("a", "b", "c")
    s.sees()
    s.later(30)
    with s.micro_batch():
        s.puback(1)
        s.submit("d")
    assert s.sees() == ["PUBLISH 2 b DUP", "PUBLISH 3 c"]
