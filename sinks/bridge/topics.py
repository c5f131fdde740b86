"""Converts between topic templates such as `devices/{client_id}/{topic}` and topics or subscriptions. Pure.

`{client_id}` stands for one level of a topic, `{topic}` for one or more at the end, `{message_id}` for one level,
percent-encoded, because a message id may be any text. Templates for receiving have no `{message_id}`.
"""

import re
from functools import cached_property
from typing import Final
from urllib.parse import quote

from sinks.mqtt_topics import is_topic_name
from state.model import ClientId, MessageId

CLIENT_ID: Final = "{client_id}"
TOPIC: Final = "{topic}"
MESSAGE_ID: Final = "{message_id}"
MAX_TOPIC_BYTES: Final = 65_535

_PLACEHOLDER: Final = re.compile(r"\{[^/]*\}?")


class TopicTemplate:
    """A template that is matched and filled without ambiguity. For others it raises ValueError, which says what is allowed."""

    def __init__(self, text: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        levels = text.split("/")
        found = _PLACEHOLDER.findall(text)
        for name in required:
            if found.count(name) != 1:
                raise ValueError(f"{text!r}: {name} must stand in it once, as a level of its own")
        for name in found:
            if name not in (*required, *optional) or found.count(name) > 1:
                known = ", ".join((*required, *optional))
                raise ValueError(f"{text!r}: {name} does not belong here; known are {known}, each once")
            if name not in levels:
                raise ValueError(f"{text!r}: {name} must be a whole level, between slashes")
        if TOPIC in levels[:-1]:
            raise ValueError(f"{text!r}: {TOPIC} may only stand at the end, because it may have several levels")
        if not is_topic_name(text):
            raise ValueError(f"{text!r}: write a topic name, without the wildcards + and #")
        self.text = text

    @property
    def names_message(self) -> bool:
        return MESSAGE_ID in self.text

    @cached_property
    def filter(self) -> str:
        """Returns the subscription for every client and every topic."""
        return self.text.replace(CLIENT_ID, "+").replace(MESSAGE_ID, "+").replace(TOPIC, "#")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        levels = {CLIENT_ID: "(?P<client_id>[^/]+)", TOPIC: "(?P<topic>.+)", MESSAGE_ID: "[^/]+"}
        return re.compile("/".join(levels.get(level) or re.escape(level) for level in self.text.split("/")), re.DOTALL)

    def fill(self, client_id: ClientId, topic: str = "", message_id: MessageId = "") -> str:
        """Returns the topic. `client_id` must be `is_addressable`."""
        values = {CLIENT_ID: client_id, TOPIC: topic, MESSAGE_ID: quote(message_id, safe="")}
        return "/".join(values.get(level, level) for level in self.text.split("/"))

    def match(self, topic: str) -> tuple[ClientId, str] | None:
        """Returns the client id and the text of {topic}, or else the whole topic, of a topic made by this template."""
        found = self._pattern.fullmatch(topic)
        if found is None:
            return None
        parts = found.groupdict()
        return parts["client_id"], parts.get("topic") or topic


def is_addressable(client_id: ClientId) -> bool:
    """Returns True if a topic can have a level of this name: no `/`, no wildcard."""
    return is_topic_name(client_id) and "/" not in client_id
