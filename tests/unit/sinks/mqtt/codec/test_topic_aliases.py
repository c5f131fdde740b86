"""sinks.mqtt.codec.topic_aliases; tests/properties/test_topic_aliases.py has any order of publications."""

from sinks.mqtt.codec import v5
from sinks.mqtt.codec.packets import Publish
from sinks.mqtt.codec.topic_aliases import MAX_ALIASES, MAX_TOPIC_LENGTH, TopicAliases
from state.model import QoS
from tests.unit.sinks.mqtt.mqtt_bytes import publish


def written(aliases: TopicAliases, topic: str, payload: bytes = b"") -> bytes:
    return aliases.encode_publish(Publish(topic=topic, payload=payload), qos=QoS(0), packet_id=0)


def alias(number: int) -> bytes:
    return b"\x23" + number.to_bytes(2, "big")


def aliases_of(client_maximum: int = 65_535, max_packet_size_bytes: int | None = None) -> TopicAliases:
    return TopicAliases(client_maximum, v5.encode_publish, max_packet_size_bytes)


def test_the_first_use_has_topic_and_alias_and_later_ones_the_alias() -> None:
    """[MQTT-3.3.2-11]"""
    aliases = aliases_of()
    assert written(aliases, "t/1") == publish("t/1", v5=alias(1))
    assert written(aliases, "t/2") == publish("t/2", v5=alias(2))
    assert written(aliases, "t/1") == publish("", v5=alias(1))
    assert written(aliases, "t/2") == publish("", v5=alias(2))


def test_no_alias_is_above_the_maximum_of_the_client() -> None:
    """[MQTT-3.1.2-26]"""
    aliases = aliases_of(1)
    for topic, expected in (("a", ("a", alias(1))), ("b", ("b", b"")), ("b", ("b", b"")), ("a", ("", alias(1)))):
        assert written(aliases, topic) == publish(expected[0], v5=expected[1])


def test_a_client_gets_few_aliases_whatever_it_takes() -> None:
    aliases = aliases_of()
    for number in range(MAX_ALIASES):
        assert written(aliases, f"t/{number}") == publish(f"t/{number}", v5=alias(number + 1))
    for _ in range(2):
        assert written(aliases, "one more") == publish("one more", v5=b"")


def test_a_long_topic_gets_no_alias() -> None:
    aliases = aliases_of()
    for length, used in ((MAX_TOPIC_LENGTH + 1, b""), (MAX_TOPIC_LENGTH, alias(1))):
        assert written(aliases, "t" * length) == publish("t" * length, v5=used)


def test_an_alias_that_makes_a_packet_too_large_is_left_out() -> None:
    """[MQTT-3.1.2-24]"""
    plain = len(publish("t", b"p", v5=b""))
    aliases = aliases_of(max_packet_size_bytes=plain + 2)
    assert written(aliases, "t", b"p") == publish("t", b"p", v5=b"")
    assert written(aliases, "t") == publish("t", v5=alias(1)), "it was not assigned before"
    assert written(aliases, "t", b"p") == publish("", b"p", v5=alias(1))
    assert written(aliases, "t", b"pp") == publish("t", b"pp", v5=b"")
