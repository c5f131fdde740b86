"""sinks.mqtt.subscribing"""

import pytest

from sinks.mqtt.packets import Subscribe, Unsubscribe
from sinks.mqtt.subscribing import judge_subscribe, judge_unsubscribe
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode, Subscription


def asked(topic_filter: str, qos: int = 1) -> Subscription:
    return Subscription(topic_filter=topic_filter, qos=QoS(qos))


def test_valid_filters_are_granted_at_the_qos_asked_for() -> None:
    answer, granted = judge_subscribe(Subscribe(packet_id=1, subscriptions=(asked("a", 0), asked("b/#", 1), asked("+", 2))))
    assert answer.reason_codes == (0, 1, 2)
    assert granted == (asked("a", 0), asked("b/#", 1), asked("+", 2))


def test_bad_and_shared_filters_are_refused_one_by_one() -> None:
    answer, granted = judge_subscribe(Subscribe(packet_id=1, subscriptions=(asked("a#"), asked("b"), asked("$share/g/b"))))
    assert answer.reason_codes == (0x8F, 1, 0x9E)
    assert granted == (asked("b"),)


def test_a_subscription_identifier_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        judge_subscribe(Subscribe(packet_id=1, subscriptions=(asked("a"),), subscription_id=1))
    assert caught.value.reason_code is ReasonCode.SUBSCRIPTION_IDS_NOT_SUPPORTED


def test_unsubscribe_answers_filter_by_filter() -> None:
    """[MQTT-3.11.3-1]"""
    answer, valid = judge_unsubscribe(Unsubscribe(packet_id=1, topic_filters=("a", "#/a", "$share/g/a")))
    assert answer.reason_codes == (0, 0x8F, 0)
    assert valid == ("a", "$share/g/a")
