"""Classifies messages of the broker by their topics. Pure."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from sinks.bridge.broker.paho_properties import BrokerLimits
from sinks.bridge.settings import Acknowledgement, BridgeSettings, PresenceSource
from sinks.bridge.topics import CLIENT_ID, MESSAGE_ID, TOPIC, TopicTemplate
from sinks.mqtt_topics import is_topic_filter
from state.inbound.subscriptions import SHARE_PREFIX
from state.model import ClientId

_V5: Final = 5


class RouteKind(Enum):
    ACKNOWLEDGEMENT = auto()
    PRESENCE = auto()
    CONNECTED = auto()
    DISCONNECTED = auto()
    UPLINK = auto()


class Routes:
    """The checked templates and topics of the settings. Raises ValueError, which names the key and what is allowed."""

    def __init__(self, settings: BridgeSettings) -> None:
        self.outbound = TopicTemplate(settings.topic_template, required=(CLIENT_ID, TOPIC), optional=(MESSAGE_ID,))
        self.ack = TopicTemplate(settings.ack_topic_template, required=(CLIENT_ID,))
        self._templates: list[tuple[RouteKind, TopicTemplate]] = []
        if settings.acknowledgement is Acknowledgement.DEVICE:
            self._templates.append((RouteKind.ACKNOWLEDGEMENT, self.ack))
            if settings.mqtt_version < _V5 and not self.outbound.names_message:
                raise ValueError(
                    f"topic_template {settings.topic_template!r}: with MQTT 3.1.1 only the topic can tell a device the message "
                    "id to acknowledge; use MQTT 5, put {message_id} in the template, or choose acknowledgement = broker"
                )
        if settings.presence is PresenceSource.TOPIC:
            self._templates.append((RouteKind.PRESENCE, TopicTemplate(settings.presence_topic_template, required=(CLIENT_ID,))))
        self._uplink = [TopicTemplate(text, required=(CLIENT_ID,), optional=(TOPIC,)) for text in settings.uplink_topic_templates]
        self._templates += [(RouteKind.UPLINK, template) for template in self._uplink]
        self._events: dict[str, RouteKind] = {}
        if settings.presence is PresenceSource.EVENTS:
            self._events |= dict.fromkeys(settings.connected_topics, RouteKind.CONNECTED)
            self._events |= dict.fromkeys(settings.disconnected_topics, RouteKind.DISCONNECTED)
            wrong = [topic for topic in self._events if not is_topic_filter(topic)]
            if wrong:
                raise ValueError(f"{', '.join(wrong)}: not a topic filter")
        self._group = settings.uplink_group

    def subscriptions(self, limits: BrokerLimits) -> Sequence[str]:
        """Returns topic filters. Publications for backends go to one bridge if the broker can share, the rest to every bridge."""
        share = f"{SHARE_PREFIX}{self._group}/" if self._group and limits.shared_subscriptions else ""
        own = [template.filter for route, template in self._templates if route is not RouteKind.UPLINK]
        return [*own, *self._events, *(share + template.filter for template in self._uplink)]

    def route(self, topic: str) -> tuple[RouteKind, ClientId, str] | None:
        """Returns kind, client id and the device's own topic of a message; None = it is not for a bridge."""
        for route, template in self._templates:
            found = template.match(topic)
            if found is not None:
                return route, *found
        for topic_filter, route in self._events.items():
            if _matches(topic_filter, topic):
                return route, "", topic
        return None


def _matches(topic_filter: str, topic: str) -> bool:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2]"""
    if topic_filter == topic:
        return True
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(level in ("+", name) for level, name in zip(wanted, levels, strict=True))
