"""Offers of routers to one connection: each is taken by the session's grant, or left to the session (docs/protocol.md, 7).

Taking an offer: 1. it is the next one of the chain, and nothing of `Refusal` holds; 2. a slot on the wire and a packet id are its
own; 3. `FastSent`, with the whole message, is on its way into the log; 4. `Outbound` writes it when Kafka has confirmed that.

A refusal costs latency and nothing else. So whatever the session might decide in another way than this is refused.
"""

from contextlib import suppress
from enum import StrEnum
from typing import Final

from sinks.fast_path.chain import Link
from sinks.mqtt.codec.packets import Connect, EncodePublish
from sinks.mqtt.connection.fast_path import FastPath
from sinks.mqtt.connection.outbound import FastSend, Outbound
from sinks.mqtt.connection.output import ConnectionOutput
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import OfferPublish, OpenFastPath, SendPublish
from state.events import FastPathClosed, FastSent, MessageRefused, MessageSubmitted
from state.model import Message, PacketId, QoS
from state.records.messages import BCC, CC, message_event
from state.records.record import Header, accepted_at, position

_MOST_UNADOPTED: Final = 32_768
_ROUTED: Final = frozenset((CC, BCC))


class Refusal(StrEnum):
    """Why an offer is left to the session."""

    PARTITION = "partition"
    """The grant is for another one."""
    BROKEN = "broken"
    """A message before it was refused, and the session has not handled that yet."""
    GAP = "gap"
    """The gateway does not know of a message before it."""
    PRESSURE = "pressure"
    UNREAD = "unread"
    """The device does not read."""
    WAITING = "waiting"
    """Something waits for a slot, or all slots are taken."""
    UNADOPTED = "unadopted"
    """Too much was sent that the session has not read about."""
    SIZE = "size"
    INVALID = "invalid"
    """It breaks the contract of `inflight.messages`, or MQTT cannot carry it."""
    PRIORITY = "priority"
    ROUTED = "routed"
    """It has CC or BCC."""
    EXPIRED = "expired"
    REPETITION = "repetition"
    PACKET_IDS = "packet_ids"


class FastSender:
    """Times are milliseconds: now_ms of a monotonic clock, wall_ms since 1970."""

    __slots__ = ("_connect", "_connection_id", "_counters", "_encode", "_outbound", "_output", "_settings", "path")

    def __init__(
        self,
        connect: Connect,
        connection_id: int,
        *,
        encode: EncodePublish,
        outbound: Outbound,
        output: ConnectionOutput,
        counters: GatewayCounters,
        settings: GatewaySettings,
    ) -> None:
        self._connect = connect
        self._connection_id = connection_id
        self._encode = encode
        self._outbound = outbound
        self._output = output
        self._counters = counters
        self._settings = settings
        self.path = FastPath()

    # --- from the session -----------------------------------------------------------------------------------------------------

    def open(self, grant: OpenFastPath, now_ms: int) -> None:
        adopted = self.path.open(grant, now_ms)
        self._counters.adoptions += adopted.messages
        self._counters.adoption_delay_ms += adopted.delay_ms

    def close(self) -> None:
        """The grant is over; the session hears that behind what was taken under it."""
        self.path.close()
        self._output.tell(FastPathClosed(connection_id=self._connection_id))

    def has_sent(self, publish: SendPublish) -> bool:
        """Whether this is a message that was taken here, so that it must not be sent again."""
        if publish.position is None:
            return False
        if self.path.was_taken(publish.position):
            self._counters.copies_dropped += 1
            return True
        if not publish.dup:
            self.path.sent_by_session(publish.position)
        return False

    # --- from routers ---------------------------------------------------------------------------------------------------------

    def offer(self, offer: OfferPublish, now_ms: int, wall_ms: int, *, under_pressure: bool) -> None:
        path, counters = self.path, self._counters
        if not path.is_open:
            counters.offers_ignored += 1
            return
        link = path.link(offer.position, offer.previous)
        if link is Link.KNOWN:
            counters.offers_ignored += 1
            return
        refusal = _OF_LINK.get(link) or self._refusal(under_pressure=under_pressure) or self._take(offer, now_ms, wall_ms)
        if refusal is None:
            counters.offers_taken += 1
            return
        counters.offers_refused[refusal] += 1
        if refusal is not Refusal.BROKEN:
            path.refuse(offer.position)

    def _refusal(self, *, under_pressure: bool) -> Refusal | None:
        """Whatever the message is."""
        if under_pressure or self._output.records.is_full:
            return Refusal.PRESSURE
        if self._outbound.is_blocked:
            return Refusal.UNREAD
        if self._outbound.meter.held:
            return Refusal.WAITING
        return Refusal.UNADOPTED if self.path.unadopted >= _MOST_UNADOPTED else None

    def _take(self, offer: OfferPublish, now_ms: int, wall_ms: int) -> Refusal | None:
        """None: it is taken."""
        settings = self._settings
        if len(offer.payload) > settings.fast_path.max_payload_bytes:
            return Refusal.SIZE
        event = message_event(
            [Header(name, value) for name, value in offer.headers],
            offer.payload,
            accepted_ms=accepted_at(offer.timestamp_ms, now_ms=wall_ms),
            default_message_id=position(settings.fast_path.messages_topic, *offer.position),
            limits=settings.limits,
        )
        if isinstance(event, MessageRefused):
            return Refusal.INVALID
        return self._not_this(event, wall_ms) or self._send(offer, event, now_ms, wall_ms)

    def _not_this(self, event: MessageSubmitted, wall_ms: int) -> Refusal | None:
        message = event.message
        if message.priority:
            return Refusal.PRIORITY
        if any(name in _ROUTED for name, _ in message.headers):
            return Refusal.ROUTED
        # What has a time to live of 0 may be sent if that is possible at once, and this is.
        if message.expires_at_ms is not None and message.expires_at_ms <= wall_ms and message.expiration_ms != 0:
            return Refusal.EXPIRED
        if event.explicit_id and self.path.knows(message):
            return Refusal.REPETITION
        return None

    def _send(self, offer: OfferPublish, event: MessageSubmitted, now_ms: int, wall_ms: int) -> Refusal | None:
        message, qos = event.message, self.path.qos_of(event.message)
        if qos and not self._outbound.meter.has_free_slot:
            return Refusal.WAITING
        packet_id = self.path.packet_ids.next(self._outbound.meter.is_free) if qos else 0
        if packet_id is None:
            return Refusal.PACKET_IDS
        expiry_s = _left_s(message, wall_ms)
        data = self._encoded(message, qos, packet_id, expiry_s)
        if data is None:
            return Refusal.INVALID
        limit_bytes = self._connect.maximum_packet_size_bytes
        if limit_bytes is not None and len(data) > limit_bytes:  # [MQTT-3.1.2-24]
            return Refusal.SIZE
        fast_send = FastSend(message, qos, packet_id, expiry_s, data, now_ms)
        if not self._outbound.take(fast_send):
            return Refusal.WAITING
        previous = self.path.take(offer.position, message, packet_id, explicit_id=event.explicit_id, now_ms=now_ms)
        append = self._output.tell(
            FastSent(
                connection_id=self._connection_id,
                position=offer.position,
                previous=previous,
                packet_id=packet_id,
                qos=qos,
                message=message,
                sent_ms=wall_ms,
                explicit_id=event.explicit_id,
            )
        )
        append.fast_send = fast_send
        return None

    def _encoded(self, message: Message, qos: QoS, packet_id: PacketId, expiry_interval_s: int | None) -> bytes | None:
        with suppress(ValueError, OverflowError):
            return self._encode(message, qos=qos, packet_id=packet_id, expiry_interval_s=expiry_interval_s)
        return None


_OF_LINK: Final = {None: Refusal.PARTITION, Link.GAP: Refusal.GAP, Link.BROKEN: Refusal.BROKEN}


def _left_s(message: Message, wall_ms: int) -> int | None:
    """As the session says it [MQTT-3.3.2-6]: rounded up, because 0 would mean "already over" (MQTT 5, 3.3.2.3.3)."""
    expires_at_ms = message.expires_at_ms
    return None if expires_at_ms is None else max(1, -(-(expires_at_ms - wall_ms) // 1_000))
