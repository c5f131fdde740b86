"""Validates topic names, topic filters and client ids. MQTT 3.1.1 and 5 have the same rules (chapters 1.5.4 and 4.7)."""

from typing import Final

from state.inbound.subscriptions import SHARE_PREFIX

_SYS: Final = "$SYS"


def is_topic_name(topic: str) -> bool:
    """Returns True for at least one character [MQTT-4.7.3-1], no wildcard [MQTT-3.3.2-2] and no U+0000 [MQTT-4.7.3-2]."""
    return topic != "" and "#" not in topic and "+" not in topic and "\0" not in topic


def is_topic_filter(topic_filter: str) -> bool:
    """Returns True if wildcards occupy a whole level, and `#` only the last one [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    if topic_filter == "" or "\0" in topic_filter:
        return False
    if "#" not in topic_filter and "+" not in topic_filter:
        return True
    levels = topic_filter.split("/")
    if any("#" in level for level in levels[:-1]):
        return False
    return all(len(level) == 1 or ("#" not in level and "+" not in level) for level in levels)


def is_of_the_server(topic: str) -> bool:
    """Returns True for a topic on which only the server publishes. Other topics with `$` are anybody's (MQTT 5, 4.7.2)."""
    return topic == _SYS or topic.startswith(_SYS + "/")


def is_shared(topic_filter: str) -> bool:
    return topic_filter.startswith(SHARE_PREFIX)


def filter_of_shared(topic_filter: str) -> str:
    """Returns FILTER of `$share/GROUP/FILTER`. It is empty, and so no topic filter, if the group is not valid [MQTT-4.8.2-1]
    [MQTT-4.8.2-2]."""
    group, _, shared = topic_filter.removeprefix(SHARE_PREFIX).partition("/")
    return shared if group and "+" not in group and "#" not in group else ""


def has_control_character(text: str) -> bool:
    """Returns True for U+0000…U+001F and U+007F…U+009F: MQTT allows refusing them [MQTT-1.5.4], and they corrupt logs and
    terminals."""
    return any(character < " " or "\x7f" <= character <= "\x9f" for character in text)


def topic_levels(topic: str) -> int:
    """Returns the number of levels of a topic name or topic filter."""
    return topic.count("/") + 1
