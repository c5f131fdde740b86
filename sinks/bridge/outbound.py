"""Publishes messages of sessions to the broker, and returns its answers.

It implements rule 5 of sinks/bridge/bridge.py. The broker's 0x97 goes to the session of the device. Until the backoff is over,
further QoS 1 and 2 messages are refused with 0x97 without asking the broker.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from sinks.bridge.broker.connection import BrokerConnection
from sinks.bridge.broker.paho_properties import BrokerLimits
from sinks.bridge.broker.throttle import BrokerThrottle
from sinks.bridge.device import DeviceConnection, broker_reason
from sinks.bridge.envelope import properties_for_device
from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.routes import Routes
from sinks.bridge.settings import Acknowledgement, BridgeSettings
from sinks.bridge.topics import MAX_TOPIC_BYTES
from state.commands import SendPublish
from state.model import ClientId, QoS, ReasonCode

_log: Final = structlog.get_logger(__name__)
_REFUSED_FROM: Final = 0x80
_ENVELOPE_BYTES: Final = 2_048
"""Upper bound of the bytes that message id, Correlation Data and the names of our properties add to a PUBLISH."""


class BridgeOutbound:
    """Publishes messages of sessions to the broker, with a wait after refusals.

    Args:
        answered: Called for each QoS 1 and 2 publication that the broker answers, never from inside `publish`.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        routes: Routes,
        counters: BridgeCounters,
        *,
        answered: Callable[[DeviceConnection, SendPublish, int], None],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._counters = counters
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._throttle = BrokerThrottle(settings.backoff, key=settings.name)

    def largest_message(self, client_id: ClientId, limits: BrokerLimits) -> int | None:
        """Returns the Maximum Packet Size for the session, which does not count the envelope; None = no limit."""
        if limits.maximum_packet_size_bytes is None:
            return None
        around = len(self._routes.outbound.text) + len(self._routes.ack.text) + 2 * len(client_id.encode()) + _ENVELOPE_BYTES
        return max(1, limits.maximum_packet_size_bytes - around)

    def publish(self, broker: BrokerConnection, device: DeviceConnection, command: SendPublish) -> None:
        """Publishes a message, or refuses it in the broker's name. Call `pop_events` of the device afterwards."""
        topic = self._routes.outbound.fill(device.client_id, command.topic, command.message_id)
        if len(topic.encode()) > MAX_TOPIC_BYTES or self._routes.route(topic) is not None:
            self._unsendable(device, command, topic)
            return
        if command.qos != QoS.AT_MOST_ONCE and self._throttle.is_active(self._loop.time()):
            self._counters.publishes_held_off += 1
            device.broker_answered(command, ReasonCode.QUOTA_EXCEEDED)
            return
        is_device_mode = self._settings.acknowledgement is Acknowledgement.DEVICE
        ack_topic = self._routes.ack.fill(device.client_id) if is_device_mode else None
        self._counters.publishes_sent += 1
        broker.publish(
            topic,
            command.payload,
            qos=command.qos,
            retain=command.retain,
            expiry_interval_s=command.expiry_interval_s,
            properties=properties_for_device(command, ack_topic, bridge=self._settings.name),
            done=partial(self._broker_answered, device, command),
        )

    def _unsendable(self, device: DeviceConnection, command: SendPublish, topic: str) -> None:
        self._counters.unsendable += 1
        _log.warning(
            "unsendable",
            client_id=device.client_id,
            topic=topic[:200],
            action="it is too long, or the bridge itself subscribes it: choose another mqtt-topic or bridge.topic_template",
        )
        if command.qos != QoS.AT_MOST_ONCE:
            device.broker_answered(command, ReasonCode.TOPIC_NAME_INVALID)

    def _broker_answered(self, device: DeviceConnection, command: SendPublish, reason_code: int) -> None:
        if command.qos == QoS.AT_MOST_ONCE:
            return
        reason_code = broker_reason(command, reason_code)
        if reason_code >= _REFUSED_FROM:
            self._counters.publishes_refused[reason_code] += 1
        if reason_code == ReasonCode.QUOTA_EXCEEDED:
            wait_ms = self._throttle.refused(self._loop.time())
            if wait_ms is not None:
                _log.warning("broker_throttles", wait_ms=wait_ms)
        else:
            self._throttle.answered(self._loop.time())
        self._answered(device, command, reason_code)
