"""Handles messages of the broker: acknowledgements of devices, their publications and their presence.

A message is acknowledged to the broker when its record is in the log, or when it needs none. Publications become the same records
of `inflight.uplink` as a gateway writes, and reach subscribers like those. So what a bridge has published is ignored here.
Otherwise a message would go round for ever between two bridges with different topics, or two brokers that forward to each other.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from sinks.bridge.broker.incoming import Incoming
from sinks.bridge.envelope import BRIDGE_PROPERTY, UnreadableAcknowledgement, read_acknowledgement
from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.presence import read_client_event
from sinks.bridge.routes import RouteKind, Routes
from sinks.bridge.settings import BridgeSettings, PresenceSource
from sinks.bridge.topics import is_addressable
from sinks.kafka.append import Confirmation, Headers, RecordTooLarge
from sinks.log_throttle import LogThrottle
from sinks.mqtt_topics import is_of_the_server
from state.model import ClientId, MessageId, PublishProperties, QoS
from state.records.uplink import uplink_headers

_log: Final = structlog.get_logger(__name__)


class DevicesOfBridge(Protocol):
    def device_answered(self, client_id: ClientId, message_id: MessageId, reason_code: int, done: Confirmation) -> bool:
        """Handles an acknowledgement of a device.

        Args:
            done: Called once, when the answer is in the log.

        Returns:
            False if no exchange is open for the message.
        """

    def came_online(self, client_id: ClientId, *, is_birth: bool = False) -> None:
        """Notes that a device is online.

        Args:
            is_birth: True if the device has just connected to the broker.
        """

    def went_offline(self, client_id: ClientId) -> None: ...

    def append_uplink(self, key: bytes, value: bytes, headers: Headers, done: Confirmation) -> None:
        """Appends a record for backends.

        Args:
            done: Called once, with the outcome.
        """

    def deliver_again(self, reason: str) -> None:
        """Makes the broker deliver unacknowledged messages again."""


class Ignored(NamedTuple):
    """Says why a publication is not handed on.

    Attributes:
        reason: For the metrics.
    """

    reason: str
    action: str


_RETURNED: Final = Ignored(
    "returned", "a bridge has published it: give all bridges of a broker topics that none of them reads as publications"
)
_OF_THE_SERVER: Final = Ignored("server_topic", "only gateways publish to $SYS: let the device use another topic")


def _why_ignored(topic: str, properties: PublishProperties) -> Ignored | None:
    if any(name == BRIDGE_PROPERTY for name, _ in properties.user_properties):
        return _RETURNED
    return _OF_THE_SERVER if is_of_the_server(topic) else None


@dataclass(slots=True, eq=False)
class BridgeInbound:
    """Handles the messages of one bridge. run_id: of this process; with a number it makes each `inflight-id` unique."""

    _settings: BridgeSettings
    _routes: Routes
    _counters: BridgeCounters
    _bridge: DevicesOfBridge
    _run_id: int
    _publications: int = 0
    _unreadable: LogThrottle = field(
        default_factory=lambda: LogThrottle(_log.warning, "unreadable_acknowledgement", "more_unreadable_acknowledgements")
    )
    _ignored: LogThrottle = field(
        default_factory=lambda: LogThrottle(_log.warning, "publication_ignored", "more_publications_ignored")
    )
    _too_large: LogThrottle = field(
        default_factory=lambda: LogThrottle(_log.warning, "publication_too_large", "more_publications_too_large")
    )

    def received(self, incoming: Incoming) -> None:
        found = self._routes.route(incoming.topic or "")
        if found is None:
            incoming.confirm()
            return
        route, client_id, topic = found
        match route:
            case RouteKind.ACKNOWLEDGEMENT:
                self._acknowledged(client_id, incoming)
            case RouteKind.UPLINK:
                self._uplink(client_id, topic, incoming)
            case RouteKind.PRESENCE:
                self._presence_changed(client_id, incoming)
            case RouteKind.CONNECTED | RouteKind.DISCONNECTED:
                event_client_id = read_client_event(incoming.payload)
                if event_client_id is not None and is_addressable(event_client_id):
                    if route is RouteKind.CONNECTED:
                        self._bridge.came_online(event_client_id, is_birth=True)
                    else:
                        self._bridge.went_offline(event_client_id)
                incoming.confirm()

    def _acknowledged(self, client_id: ClientId, incoming: Incoming) -> None:
        try:
            answer = read_acknowledgement(incoming.payload, incoming.properties.correlation_data)
        except UnreadableAcknowledgement as error:
            self._counters.acknowledgements_unreadable += 1
            self._unreadable.line(client_id=client_id, error=str(error))
            incoming.confirm()
            return
        self._mark_online(client_id)
        if self._bridge.device_answered(client_id, answer.message_id, answer.reason_code, partial(self._confirm, incoming)):
            self._counters.acknowledgements[answer.reason_code] += 1
        else:
            self._counters.acknowledgements_unknown += 1
            incoming.confirm()

    def _uplink(self, client_id: ClientId, topic: str, incoming: Incoming) -> None:
        if (ignored := _why_ignored(topic, incoming.properties)) is not None:
            self._counters.publications_ignored[ignored.reason] += 1
            self._ignored.line(topic=incoming.topic, reason=ignored.reason, action=ignored.action)
            incoming.confirm()
            return
        self._mark_online(client_id)
        self._counters.publications_received += 1
        self._publications += 1
        message = incoming.message
        headers = uplink_headers(
            client_id=client_id,
            inflight_id=f"{client_id}:{self._run_id}:{self._publications}",
            topic=topic,
            qos=QoS(message.qos),
            retain=message.retain,
            expiry_interval_s=incoming.expiry_interval_s,
            properties=incoming.properties,
        )
        self._bridge.append_uplink(client_id.encode(), incoming.payload, headers, partial(self._confirm, incoming))

    def _confirm(self, incoming: Incoming, error: Exception | None) -> None:
        if error is None:
            incoming.confirm()
        elif isinstance(error, RecordTooLarge):
            self._counters.publications_too_large += 1
            action = "raise max.message.bytes of the topic, or lower bridge.max_packet_size_bytes"
            self._too_large.line(topic=incoming.topic, action=action)
            incoming.confirm()  # otherwise it would come again for ever
        else:
            self._bridge.deliver_again("Kafka did not take a record")

    def _presence_changed(self, client_id: ClientId, incoming: Incoming) -> None:
        payload = incoming.payload.decode(errors="replace").strip().lower()
        if payload in self._settings.presence_online:
            self._bridge.came_online(client_id, is_birth=not incoming.message.retain)
        else:
            self._bridge.went_offline(client_id)
        incoming.confirm()

    def _mark_online(self, client_id: ClientId) -> None:
        if self._settings.presence is PresenceSource.ALWAYS and is_addressable(client_id):
            self._bridge.came_online(client_id)
