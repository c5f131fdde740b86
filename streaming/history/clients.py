"""Shows the session of one client as the checkpoint has it, with window and queue."""

import base64
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from state.dead_letters.quarantine import decode_quarantine
from state.errors import UnreadableRecord
from state.model import Subscription
from state.outbound.cancellation import unsent
from state.outbound.inflight_window import Delivery, InflightEntry
from state.records.scheduling import deliver_at_ms
from state.session import Session
from state.session_codec import decode_session
from state.settings import SessionSettings
from streaming.config.units import format_size
from streaming.engine.operator.state_row import check_version
from streaming.history.output import beginning_of

_PAYLOAD_BYTES: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message in the window, in the queue, or waiting for its `deliver-at`. Times are ms since 1970.

    Attributes:
        size_bytes: Of payload, properties and headers.
        payload: Its beginning, for people.
        packet_id, phase: None outside of the window.
        deliver_at_ms: Its `deliver-at`; None = it has none.
    """

    message_id: str
    topic: str
    qos: int
    priority: int
    attempts: int
    size_bytes: int
    payload: str
    accepted_ms: int
    first_sent_ms: int | None
    expires_at_ms: int | None
    fast_path: bool
    packet_id: int | None = None
    phase: str | None = None
    deliver_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSession:
    """The contents of a session.

    Attributes:
        has_connected: A client has connected, and its session has not ended since.
        lease_id: The lease of the gateway or bridge that holds the connection; None = not connected.
        protocol_version, send_quota: None = not connected.
        subscriptions, queue: The first ones.
        scheduled: The first that wait for their `deliver-at`.
        queue_limit: Which limit of the queue holds now, and why, for people.
    """

    has_connected: bool
    lease_id: str | None

    protocol_version: int | None
    send_quota: int | None
    offline_since_ms: int | None
    session_expiry_interval_s: int
    awaiting_rel: int
    subscription_count: int
    subscriptions: tuple[Subscription, ...]
    window: tuple[HeldMessage, ...]
    queue: tuple[HeldMessage, ...]
    scheduled_count: int = 0
    scheduled: tuple[HeldMessage, ...] = ()
    queue_limit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClient:
    """A client in the checkpoint.

    Attributes:
        summary: A row of `LiveSessions.client`.
        session: None = it cannot be shown, see `why_not`.
    """

    summary: dict[str, Any]
    session: HeldSession | None
    why_not: str = ""


def stored_in(row: dict[str, Any], settings: SessionSettings, *, most: int) -> StoredClient:
    """Returns the client of a row of `LiveSessions.client` that has its blob."""
    summary, client_id = dict(row), row["client_id"]
    version, blob = summary.pop("version"), base64.b64decode(summary.pop("blob") or "")
    try:
        if summary["quarantined"]:
            why_not = f"the client is quarantined: {decode_quarantine(blob).error}"
            return StoredClient(summary=summary, session=None, why_not=why_not)
        check_version(version)
        session = decode_session(blob, client_id=client_id, settings=settings)
    except UnreadableRecord as error:
        return StoredClient(summary=summary, session=None, why_not=str(error))
    return StoredClient(summary=summary, session=_held(session, most))


def _held(session: Session, most: int) -> HeldSession:
    connection, outbound = session.connection, session.outbound
    return HeldSession(
        has_connected=session.established,
        lease_id=None if connection is None else connection.lease_id,
        protocol_version=None if connection is None else connection.protocol_version,
        send_quota=None if connection is None else connection.send_quota,
        offline_since_ms=session.offline_since_ms,
        session_expiry_interval_s=session.session_expiry_interval_s,
        awaiting_rel=len(session.inbound.awaiting_rel.entries),
        subscription_count=len(outbound.subscriptions),
        subscriptions=tuple(islice(outbound.subscriptions, most)),
        window=tuple(_message(entry.delivery, entry) for entry in outbound.window),
        queue=tuple(_message(delivery) for delivery in islice(outbound.queue, most)),
        scheduled_count=len(outbound.scheduled),
        scheduled=tuple(_message(unsent(message)) for message in islice(outbound.scheduled, most)),
        queue_limit=_queue_limit(session),
    )


def _queue_limit(session: Session) -> str:
    settings, outbound = session.settings, session.outbound
    if not settings.max_mqueue_len:
        return "none (max_mqueue_len = 0)"
    is_connected = session.connection is not None
    # Without a queue a connected client keeps up: nothing waits for it.
    if settings.max_backlog_bytes and (outbound.backlog.keeps_up or (is_connected and not outbound.queue)):
        if not settings.max_mqueue_bytes:
            return "none (max_mqueue_bytes = 0), because it acknowledges"
        limit = format_size(max(settings.max_backlog_bytes, settings.max_mqueue_bytes))
        why = "it is connected and acknowledges" if is_connected else "it acknowledged until it went away"
        return f"{limit} (max_backlog_bytes), because {why}"
    by_bytes = f" or {format_size(settings.max_mqueue_bytes)}" if settings.max_mqueue_bytes else ""
    why = "it stands still" if is_connected and settings.max_backlog_bytes else "it is away"
    if is_connected and not settings.max_backlog_bytes:
        why = "max_backlog_bytes is 0"
    return f"{settings.max_mqueue_len} messages{by_bytes} (max_mqueue_len, max_mqueue_bytes), because {why}"


def _message(delivery: Delivery, entry: InflightEntry | None = None) -> HeldMessage:
    message = delivery.message
    return HeldMessage(
        message_id=message.message_id,
        topic=message.topic,
        qos=delivery.qos.value,
        priority=message.priority,
        attempts=delivery.transmissions,
        size_bytes=delivery.size_bytes,
        payload=beginning_of(message.payload, _PAYLOAD_BYTES),
        accepted_ms=message.accepted_ms,
        first_sent_ms=delivery.first_sent_ms,
        expires_at_ms=delivery.expires_at_ms,
        fast_path=delivery.fast_path,
        packet_id=None if entry is None else entry.packet_id,
        phase=None if entry is None else entry.phase.name,
        deliver_at_ms=deliver_at_ms(message),
    )
