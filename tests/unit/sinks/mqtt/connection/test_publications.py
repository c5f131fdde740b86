"""sinks.mqtt.connection.publications"""

from collections.abc import Callable

import pytest

from sinks.mqtt.access.grant import EVERYTHING
from sinks.mqtt.codec.packets import Publish, PubRec
from sinks.mqtt.connection.append_queue import Append
from sinks.mqtt.connection.publications import Publications
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters
from state.errors import ProtocolViolation
from state.model import QoS, ReasonCode


def publications(*, v5: bool = True, awaiting_rel: tuple[int, ...] = (), limit: int = 2, rate: int = 0) -> Publications:
    return Publications(
        client_id="c",
        connection_id=7,
        is_v5=v5,
        grant=EVERYTHING,
        counters=GatewayCounters(),
        publish_rate=TokenBucket(rate, 0),
        max_topic_levels=3,
        topic_alias_maximum=2,
        awaiting_rel=dict.fromkeys(awaiting_rel),
        max_awaiting_rel=limit,
    )


def publish(topic: str = "t", alias: int | None = None) -> Publish:
    return Publish(topic=topic, payload=b"", topic_alias=alias)


def test_an_alias_stands_for_its_last_topic() -> None:
    """[MQTT-3.3.2-12]"""
    known = publications()
    assert known.topic_of(publish("a")) == "a"
    assert known.topic_of(publish("a", 1)) == "a"
    assert known.topic_of(publish("b", 2)) == "b"
    assert known.topic_of(publish("", 1)) == "a"
    known.topic_of(publish("c", 1))
    assert known.topic_of(publish("", 1)) == "c"
    assert known.topic_of(publish("", 2)) == "b"


def test_an_alias_above_the_maximum_is_invalid() -> None:
    """[MQTT-3.3.2-9]"""
    with pytest.raises(ProtocolViolation) as caught:
        publications().topic_of(publish("a", 3))
    assert caught.value.reason_code is ReasonCode.TOPIC_ALIAS_INVALID


def test_an_alias_that_was_never_set_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        publications().topic_of(publish("", 1))
    assert caught.value.reason_code is ReasonCode.PROTOCOL_ERROR


def exceeds(action: Callable[..., None], *args: int) -> bool:
    try:
        action(*args)
    except ProtocolViolation as violation:
        return violation.reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    return False


def test_qos_1_and_2_share_the_receive_maximum_of_mqtt_5() -> None:
    """[MQTT-3.3.4-7]"""
    known = publications(awaiting_rel=(9,))
    assert not exceeds(known.admit_qos1, 0)
    assert exceeds(known.admit_qos1, 1)
    assert exceeds(known.admit_qos2, 1, 1)
    assert not exceeds(known.admit_qos2, 1, 0)
    assert exceeds(known.admit_qos2, 2, 0)


def test_a_repeated_id_is_no_overflow() -> None:
    known = publications(awaiting_rel=(1, 2))
    assert not exceeds(known.admit_qos2, 1, 0)
    assert exceeds(known.admit_qos2, 3, 0)


def test_mqtt_3_1_1_has_no_receive_maximum() -> None:
    known = publications(v5=False, awaiting_rel=(1, 2))
    assert not exceeds(known.admit_qos1, 500)
    assert not any(exceeds(known.admit_qos2, packet_id, 500) for packet_id in range(1, 65_536))
    assert known.release(65_535)


@pytest.mark.parametrize(("v5", "counting"), [(True, [False, True, False]), (False, [False, False, True])])
def test_unanswered_publications_count_where_nothing_else_counts_them(v5: bool, counting: list[bool]) -> None:
    """A QoS 2 publication counts until PUBREL in MQTT 5, until PUBREC in MQTT 3.1.1, where QoS 1 needs no limit."""
    known = publications(v5=v5)
    taken = [known.judge(Publish(topic="t", payload=b"", qos=qos, packet_id=min(qos, 1)), 0, 0) for qos in QoS]
    assert [isinstance(append, Append) and append.counts for append in taken] == counting


def test_zero_is_no_limit() -> None:
    known = publications(limit=0)
    assert not any(exceeds(known.admit_qos2, packet_id, 0) for packet_id in range(1, 1_000))


def test_released_and_forgotten_ids_are_unknown() -> None:
    known = publications(awaiting_rel=(1, 2))
    assert known.release(1)
    assert not known.release(1)
    known.forget((2, 3))
    assert not known.release(2)


def test_each_publication_has_an_id_of_its_own() -> None:
    known = publications()
    qos1 = Publish(topic="", payload=b"", qos=QoS.AT_LEAST_ONCE, packet_id=1)
    ids = [dict(known.headers(qos1, "t"))["inflight-id"] for _ in range(2)]
    assert ids == [b"c:7:1", b"c:7:2"]
    assert dict(known.headers(qos1, "t"))["mqtt-topic"] == b"t"


def test_after_a_refusing_pubrec_the_same_id_is_a_new_publication() -> None:
    """[MQTT-4.3.3-9]"""
    known = publications(rate=1)
    qos2 = Publish(topic="t", payload=b"x", qos=QoS.EXACTLY_ONCE, packet_id=5)
    assert isinstance(known.judge(qos2, 0, 0), Append)
    other = Publish(topic="t", payload=b"x", qos=QoS.EXACTLY_ONCE, packet_id=6)
    assert known.judge(other, 0, 0) == PubRec(packet_id=6, reason_code=0x97)
    assert 6 not in known.awaiting_rel
    assert isinstance(known.judge(qos2, 0, 0), Append), "a repetition was accepted before"
    assert isinstance(known.judge(other, 0, 1_000), Append)
    assert 6 in known.awaiting_rel


def test_without_a_way_to_refuse_nothing_is_refused() -> None:
    at_qos_0, limited = Publish(topic="t", payload=b"x"), publications(rate=1)
    assert all(isinstance(limited.judge(at_qos_0, 0, 0), Append) for _ in range(3))
    old = publications(v5=False, rate=1)
    assert all(isinstance(old.judge(Publish(topic="t", payload=b"", qos=QoS(1), packet_id=1), 0, 0), Append) for _ in range(3))


def test_dup_decides_about_an_id_whose_content_is_not_known() -> None:
    """It is of an earlier connection."""
    known = publications(awaiting_rel=(1,))
    repeated, other = (Publish(topic="t", payload=b"", qos=QoS.EXACTLY_ONCE, packet_id=1, dup=dup) for dup in (True, False))
    assert known.is_repetition(repeated, "t")
    assert not known.is_repetition(other, "t")


def test_other_content_under_one_id_does_not_pass_the_publish_rate() -> None:
    known = publications(rate=1)
    answers = [
        known.judge(Publish(topic="t", payload=payload, qos=QoS.EXACTLY_ONCE, packet_id=1), 0, 0)
        for payload in (b"a", b"a", b"b", b"c")
    ]
    assert [isinstance(answer, Append) for answer in answers] == [True, True, False, False]
