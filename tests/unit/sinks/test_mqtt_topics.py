import pytest

from sinks.mqtt_topics import has_control_character, is_topic_filter, is_topic_name


@pytest.mark.parametrize("topic", ["a", "/", "a/b", "a//b", "$SYS/x", "ü/日本", " ", "a\x01"])
def test_topic_names(topic: str) -> None:
    assert is_topic_name(topic)
    assert is_topic_filter(topic)


@pytest.mark.parametrize("topic", ["", "#", "a/+", "a+b", "a\0b"])
def test_what_is_no_topic_name(topic: str) -> None:
    assert not is_topic_name(topic)


@pytest.mark.parametrize("topic_filter", ["#", "+", "a/#", "+/a", "a/+/b", "+/+/#", "/+", "$share/g/a"])
def test_topic_filters(topic_filter: str) -> None:
    assert is_topic_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/b+", "a/##", "a\0"])
def test_what_is_no_topic_filter(topic_filter: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2]"""
    assert not is_topic_filter(topic_filter)


def test_control_characters_are_found() -> None:
    assert has_control_character("a\nb")
    assert has_control_character("\x7f")
    assert has_control_character("\x85")
    assert not has_control_character("sensor-ü 1")
