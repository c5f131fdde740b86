"""What is a topic name, a topic filter, a client id. The same rules in MQTT 3.1.1 and 5 (chapters 1.5.4 and 4.7)."""

from typing import Final

SHARED_SUBSCRIPTION_PREFIX: Final = "$share/"


def is_topic_name(topic: str) -> bool:
    """At least one character [MQTT-4.7.3-1], no wildcard [MQTT-3.3.2-2], no U+0000 [MQTT-4.7.3-2]."""
    return topic != "" and "#" not in topic and "+" not in topic and "\0" not in topic


def is_topic_filter(topic_filter: str) -> bool:
    """Wildcards occupy a whole level, `#` only the last one [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    if topic_filter == "" or "\0" in topic_filter:
        return False
    if "#" not in topic_filter and "+" not in topic_filter:
        return True
    levels = topic_filter.split("/")
    if any("#" in level for level in levels[:-1]):
        return False
    return all(len(level) == 1 or ("#" not in level and "+" not in level) for level in levels)


def is_shared(topic_filter: str) -> bool:
    return topic_filter.startswith(SHARED_SUBSCRIPTION_PREFIX)


def has_control_character(text: str) -> bool:
    """U+0000…U+001F, U+007F…U+009F: allowed to be refused [MQTT-1.5.4], and poison in logs and Kafka tools."""
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def topic_levels(topic: str) -> int:
    """Of a topic name or a topic filter."""
    return topic.count("/") + 1
