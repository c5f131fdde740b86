"""Converts sessions to and from the `blob` column of the Spark state. The stored form is separate from the classes.

A blob is one version byte and the msgpack of that version's record, in arrays. Rules for a change:

 1. `Session…V1` never changes its fields, except by new ones at the end with a default.
 2. Any other change makes a V2 beside it, a reader for both, and a fixture of V1 (tests/unit/state/fixtures).
 3. The immutable values of state/model.py are stored as they are; rule 1 holds for them too.
 4. A V2, and a field that an older version must not forget, raises the format of the checkpoint (docs/decisions/0024), so that
    older versions refuse it.
 5. Settings are not stored: a session uses the limits and timers that are configured when it is next called.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final

import msgspec

from state.commands import HeldCommand
from state.connection import PathState, SessionConnection, SessionFastPath
from state.errors import UNDECODABLE, UnreadableRecord
from state.inbound.awaiting_rel import AwaitingRel, AwaitingRelease, HandOver
from state.inbound.subscriptions import Subscriptions
from state.inbound.wills import PendingWill
from state.model import ClientId, Message, Position, QoS, Will
from state.outbound.backlog import Backlog
from state.outbound.deduplication import DIGEST_BYTES, RecentMessageIds, ReturnsOfBatch
from state.outbound.inflight_window import Delivery, InflightEntry
from state.outbound.outbound import SessionOutbound
from state.outbound.routing.session_routing import EarlyMessage, ListId, SessionRouting
from state.session import Session
from state.settings import SessionSettings
from state.transitions import AbandonedPhase, OutboundPhase

STATE_VERSION: Final = 1


class _StoredStruct(msgspec.Struct, array_like=True, kw_only=True, frozen=True):
    pass


class DeliveryV1(_StoredStruct, frozen=True):
    """A stored Delivery.

    Attributes:
        qos: None = written by a version that decided the QoS later; it is decided when the blob is read.
    """

    message: Message
    order: int
    attempts: int
    first_sent_ms: int | None
    queue_ttl_ends_ms: int | None = None
    last_refusal: int = 0
    qos: QoS | None = None
    position: Position | None = None
    fast_path: bool = False
    crashes: Annotated[int, msgspec.Meta(ge=0)] = 0


class InflightEntryV1(_StoredStruct, frozen=True):
    packet_id: int
    phase: Annotated[int, msgspec.Meta(ge=1, le=3)]
    delivery: DeliveryV1
    sent_ms: int
    timeouts: Annotated[int, msgspec.Meta(ge=0)] = 0
    first_connection_id: int = 0
    given_back_by: int = 0
    overdue: bool = False


class FastPathV1(_StoredStruct, frozen=True):
    state: Annotated[int, msgspec.Meta(ge=0, le=2)]
    opened_after: Position | None
    adopted: int
    since_grant: int
    digests_sent: int
    has_route: bool
    over_limit: bool
    began_session: bool = False


class ConnectionV1(_StoredStruct, frozen=True):
    """A stored SessionConnection.

    Attributes:
        receive_maximum: None = written by a version that did not store it; `send_quota` stands in for it.
    """

    connection_id: int
    partition: int
    protocol_version: int
    send_quota: int
    maximum_packet_size_bytes: int | None
    will: Will | None
    sequence: int
    receive_maximum: int | None = None
    lease_id: str = ""
    fast_path: FastPathV1 | None = None


class PendingWillV1(_StoredStruct, frozen=True):
    will: Will
    connection_id: int
    due_ms: int


class EarlyMessageV1(_StoredStruct, frozen=True):
    message: Message
    position: Position | None
    since_ms: int


class SessionRoutingV1(_StoredStruct, frozen=True):
    """A stored SessionRouting.

    Attributes:
        marks: (source, mark), the least recently used source first.
        digests: (source, digests of the messages with its mark, concatenated).
    """

    list_connection_id: int
    list_version: int
    marks: tuple[tuple[int, int], ...]
    digests: tuple[tuple[int, bytes], ...]
    early: tuple[EarlyMessageV1, ...]
    kept_until_ms: int | None


class ScheduleV1(_StoredStruct, frozen=True):
    """Stores what only some sessions have.

    Attributes:
        scheduled: In the order of their times.
        cancels: Ids of messages.
        rate: (level, at_ms) of SendRate; None = nothing was sent under a rate.
        held: In the order of the commands.
        backlog: (keeps_up_until_ms, is_doubted, lead_until_ms, told_progress) of Backlog; None = as of a client without a queue.
    """

    scheduled: tuple[Message, ...] = ()
    cancels: tuple[str, ...] = ()
    rate: tuple[int, int] | None = None
    backlog: tuple[int, bool, int, bool] | None = None
    held: tuple[HeldCommand, ...] = ()
    held_since_ms: int = 0


class UnscheduledSessionV1(_StoredStruct, frozen=True):
    """A stored Session without a `ScheduleV1`, which costs it no byte. It is read as a `SessionV1`.

    Attributes:
        awaiting_rel, repeated: (packet id, content hash, received_ms), oldest first.
        tombstones: (packet id, content hash), oldest first.
        subscriptions: An array of state.model.Subscription, read and written by state/inbound/subscriptions.py when needed.
        abandoned: (packet id, phase, whether it holds a slot of the connection), oldest first.
        handled: (partition, offset); the partition of the newest handled message is the last one.
        unread: In the order of adoption.
        settled: None = nothing waits in the queue, or a version has written it that did not store this. (-1, -1) = nothing is
            settled, and messages wait.
        routing: None = no routed message has come, and the list is the empty one of the connection `started_by`, or the version
            that wrote it knew no lists.
    """

    connection: ConnectionV1 | None
    established: bool
    started_by: int
    offline_since_ms: int | None
    session_expiry_interval_s: int
    pending_will: PendingWillV1 | None
    last_packet_id: int
    next_order: int
    quota_refusals: int
    blocked_until_ms: int | None
    window_limit: int
    window: tuple[InflightEntryV1, ...]
    queue: tuple[DeliveryV1, ...]
    passed_over: tuple[tuple[int, int], ...]
    subscriptions: msgspec.Raw
    recent_ids: bytes
    awaiting_rel: tuple[tuple[int, bytes, int], ...]
    tombstones: tuple[tuple[int, bytes], ...]
    throttled_since_ms: int | None = None
    returns_batch_ms: int = 0
    returns: bytes = b""
    abandoned: tuple[tuple[int, Annotated[int, msgspec.Meta(ge=1, le=3)], bool], ...] = ()
    newest_connection_id: int = 0
    repeated: tuple[tuple[int, bytes, int], ...] = ()
    handled: tuple[tuple[int, int], ...] = ()
    unread: tuple[Position, ...] = ()
    last_fast_packet_id: int = 0
    close_unconfirmed: bool = False
    routing: SessionRoutingV1 | None = None
    settled: Position | None = None


class ScheduledSessionV1(UnscheduledSessionV1, frozen=True):
    """A stored Session without publications that gateways hand on. It is read as a `SessionV1`."""

    schedule: ScheduleV1 | None = None


class SessionV1(ScheduledSessionV1, frozen=True):
    """A stored Session.

    Attributes:
        hand_overs: (packet id, connection id, publication id, since_ms), by packet id.
    """

    hand_overs: tuple[tuple[int, int, str, int], ...] = ()


class _ConnectionOnlyV1(_StoredStruct, frozen=True):
    """The first field of SessionV1."""

    connection: ConnectionV1 | None


_NOTHING_SETTLED: Final = Position(-1, -1)
_VERSION_BYTE: Final = bytes([STATE_VERSION])
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SessionV1)
_connection_decoder: Final = msgspec.msgpack.Decoder(_ConnectionOnlyV1)


def encode_session(session: Session) -> bytes:
    """Returns the blob of a session. Equal sessions give equal bytes."""
    outbound, awaiting = session.outbound, session.inbound.awaiting_rel
    connection, pending = session.connection, session.pending_will
    has_schedule = outbound.scheduled.waiting or outbound.cancels or outbound.rate is not None or outbound.backlog.is_stored
    schedule = _pack_schedule(session) if has_schedule or session.held else None
    record_type: type[UnscheduledSessionV1] | partial[ScheduledSessionV1] | partial[SessionV1]
    record_type = UnscheduledSessionV1 if schedule is None else partial(ScheduledSessionV1, schedule=schedule)
    if awaiting.hand_overs:
        record_type = partial(SessionV1, schedule=schedule, hand_overs=_pack_hand_overs(awaiting))
    record = record_type(
        connection=None
        if connection is None
        else ConnectionV1(
            connection_id=connection.connection_id,
            partition=connection.partition,
            protocol_version=connection.protocol_version,
            send_quota=connection.send_quota,
            maximum_packet_size_bytes=connection.maximum_packet_size_bytes,
            will=connection.will,
            sequence=connection.sequence,
            receive_maximum=connection.receive_maximum,
            lease_id=connection.lease_id,
            fast_path=_pack_path(connection.fast_path),
        ),
        established=session.established,
        started_by=session.started_by,
        offline_since_ms=session.offline_since_ms,
        session_expiry_interval_s=session.session_expiry_interval_s,
        pending_will=None
        if pending is None
        else PendingWillV1(will=pending.will, connection_id=pending.connection_id, due_ms=pending.due_ms),
        last_packet_id=outbound.packet_ids.last,
        next_order=outbound.next_order,
        quota_refusals=outbound.quota_refusals,
        blocked_until_ms=outbound.blocked_until_ms,
        window_limit=outbound.window.limit,
        window=tuple(
            InflightEntryV1(
                packet_id=entry.packet_id,
                phase=entry.phase.value,
                delivery=_pack(entry.delivery),
                sent_ms=entry.sent_ms,
                timeouts=entry.timeouts,
                first_connection_id=entry.first_connection_id,
                given_back_by=entry.given_back_by,
                overdue=entry.overdue,
            )
            for entry in outbound.window
        ),
        queue=tuple(_pack(delivery) for delivery in outbound.queue),
        passed_over=tuple(sorted(outbound.queue.passed_over.items())),
        subscriptions=msgspec.Raw(outbound.subscriptions.encoded()),
        recent_ids=b"".join(outbound.recent_ids.digests),
        awaiting_rel=tuple((packet_id, entry.content, entry.received_ms) for packet_id, entry in awaiting.entries.items()),
        tombstones=tuple(awaiting.tombstones.items()),
        throttled_since_ms=outbound.throttled_since_ms,
        returns_batch_ms=outbound.returns.batch_ms,
        returns=b"".join(outbound.returns.digests),
        abandoned=tuple(
            (id_, abandoned.value, id_ in outbound.abandoned.slots) for id_, abandoned in outbound.abandoned.phases.items()
        ),
        newest_connection_id=session.newest_connection_id,
        repeated=tuple((*repetition, received_ms) for repetition, received_ms in awaiting.repeated.items()),
        handled=tuple(outbound.positions.handled.items()),
        unread=tuple(outbound.positions.unread),
        settled=(outbound.positions.settled or _NOTHING_SETTLED) if outbound.queue else None,
        last_fast_packet_id=outbound.packet_ids.last_fast,
        close_unconfirmed=session.close_unconfirmed,
        routing=_pack_routing(outbound.routing, session.started_by),
    )
    return _VERSION_BYTE + _encoder.encode(record)


def connection_of(blob: bytes) -> tuple[int, str] | None:
    """Returns (connection id, lease id) of the connection in a blob; None if there is none or the blob is unreadable."""
    try:
        record = _connection_decoder.decode(memoryview(blob)[1:]) if blob[:1] == _VERSION_BYTE else None
    except UNDECODABLE:
        return None
    connection = None if record is None else record.connection
    return None if connection is None else (connection.connection_id, connection.lease_id)


def decode_session(blob: bytes, *, client_id: ClientId, settings: SessionSettings) -> Session:
    """Returns the session that `encode_session` got, with the current settings.

    Raises:
        UnreadableRecord: The blob is damaged or of a newer version. A damaged session is never guessed at.
    """
    if blob[:1] != _VERSION_BYTE:
        found = blob[0] if blob else "nothing"
        raise UnreadableRecord(
            f"the state of client {client_id!r} has version {found}, this Inflight reads {STATE_VERSION}: "
            "start the version that wrote the checkpoint, or a newer one"
        )
    try:
        record = _decoder.decode(memoryview(blob)[1:])
    except UNDECODABLE as error:
        raise UnreadableRecord(f"the state of client {client_id!r} is damaged: {error}") from error
    session = Session(client_id=client_id, settings=settings)
    if record.connection is not None:
        stored = record.connection
        session.connection = SessionConnection(
            connection_id=stored.connection_id,
            partition=stored.partition,
            protocol_version=stored.protocol_version,
            send_quota=stored.send_quota,
            receive_maximum=stored.send_quota if stored.receive_maximum is None else stored.receive_maximum,
            maximum_packet_size_bytes=stored.maximum_packet_size_bytes,
            will=stored.will,
            sequence=stored.sequence,
            lease_id=stored.lease_id,
            fast_path=_unpack_path(stored.fast_path),
        )
    session.established = record.established
    session.started_by = record.started_by
    session.newest_connection_id = max(  # a blob without this field has the other two
        record.newest_connection_id,
        record.started_by,
        0 if record.connection is None else record.connection.connection_id,
    )
    session.offline_since_ms = record.offline_since_ms
    session.session_expiry_interval_s = record.session_expiry_interval_s
    if record.pending_will is not None:
        pending = record.pending_will
        session.pending_will = PendingWill(will=pending.will, connection_id=pending.connection_id, due_ms=pending.due_ms)
    outbound, awaiting = session.outbound, session.inbound.awaiting_rel
    outbound.packet_ids.last = record.last_packet_id
    outbound.packet_ids.last_fast = record.last_fast_packet_id
    session.close_unconfirmed = record.close_unconfirmed
    outbound.positions.handled.update(record.handled)
    outbound.positions.unread.update(dict.fromkeys(record.unread))
    settled = record.settled or outbound.positions.latest
    outbound.positions.settled = None if settled == _NOTHING_SETTLED else settled
    outbound.routing.list_id = ListId(record.started_by)
    if record.routing is not None:
        _unpack_routing(record.routing, outbound.routing)
    if record.schedule is not None:
        _unpack_schedule(record.schedule, outbound)
        session.held, session.held_since_ms = record.schedule.held, record.schedule.held_since_ms
    for packet_id, connection_id, publication_id, since_ms in record.hand_overs:
        awaiting.hand_overs[packet_id] = HandOver(connection_id=connection_id, publication_id=publication_id, since_ms=since_ms)
    outbound.next_order = record.next_order
    outbound.quota_refusals = record.quota_refusals
    outbound.blocked_until_ms = record.blocked_until_ms
    outbound.throttled_since_ms = record.throttled_since_ms
    outbound.window.limit = record.window_limit
    outbound.subscriptions = Subscriptions(bytes(record.subscriptions))
    for entry in record.window:
        outbound.window.restore(
            InflightEntry(
                packet_id=entry.packet_id,
                phase=OutboundPhase(entry.phase),
                delivery=_unpack(entry.delivery, outbound.subscriptions),
                sent_ms=entry.sent_ms,
                timeouts=entry.timeouts,
                first_connection_id=entry.first_connection_id,
                given_back_by=entry.given_back_by,
                overdue=entry.overdue,
            )
        )
    for delivery in record.queue:
        outbound.queue.append(_unpack(delivery, outbound.subscriptions))
    outbound.queue.passed_over.update(record.passed_over)
    for packet_id, phase, holds_slot in record.abandoned:
        outbound.abandoned.restore(packet_id, AbandonedPhase(phase), holds_slot=holds_slot)
    outbound.recent_ids = RecentMessageIds(settings.deduplication_window, _digests(record.recent_ids))
    outbound.returns = ReturnsOfBatch(record.returns_batch_ms, _digests(record.returns))
    for packet_id, content, received_ms in record.awaiting_rel:
        awaiting.entries[packet_id] = AwaitingRelease(content=content, received_ms=received_ms)
    awaiting.tombstones.update(record.tombstones)
    for packet_id, content, received_ms in record.repeated:
        awaiting.repeated[packet_id, content] = received_ms
    return session


def _digests(joined: bytes) -> Iterator[bytes]:
    return (joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES))


def _pack(delivery: Delivery) -> DeliveryV1:
    return DeliveryV1(
        message=delivery.message,
        order=delivery.order,
        attempts=delivery.attempts,
        first_sent_ms=delivery.first_sent_ms,
        queue_ttl_ends_ms=delivery.queue_ttl_ends_ms,
        last_refusal=delivery.last_refusal,
        qos=delivery.qos,
        position=delivery.position,
        fast_path=delivery.fast_path,
        crashes=delivery.crashes,
    )


def _unpack(delivery: DeliveryV1, subscriptions: Subscriptions) -> Delivery:
    message, qos = delivery.message, delivery.qos
    return Delivery(
        message=message,
        qos=subscriptions.capped_qos(message.topic, message.qos) if qos is None else qos,
        order=delivery.order,
        attempts=delivery.attempts,
        first_sent_ms=delivery.first_sent_ms,
        queue_ttl_ends_ms=delivery.queue_ttl_ends_ms,
        last_refusal=delivery.last_refusal,
        position=delivery.position,
        fast_path=delivery.fast_path,
        crashes=delivery.crashes,
    )


def _pack_path(path: SessionFastPath | None) -> FastPathV1 | None:
    if path is None:
        return None
    return FastPathV1(
        state=path.state.value,
        opened_after=path.opened_after,
        adopted=path.adopted,
        since_grant=path.since_grant,
        digests_sent=path.digests_sent,
        has_route=path.has_route,
        over_limit=path.over_limit,
        began_session=path.began_session,
    )


def _unpack_path(stored: FastPathV1 | None) -> SessionFastPath | None:
    if stored is None:
        return None
    return SessionFastPath(
        state=PathState(stored.state),
        opened_after=stored.opened_after,
        adopted=stored.adopted,
        since_grant=stored.since_grant,
        digests_sent=stored.digests_sent,
        has_route=stored.has_route,
        over_limit=stored.over_limit,
        began_session=stored.began_session,
    )


def _pack_hand_overs(awaiting: AwaitingRel) -> tuple[tuple[int, int, str, int], ...]:
    return tuple(
        (packet_id, hand_over.connection_id, hand_over.publication_id, hand_over.since_ms)
        for packet_id, hand_over in sorted(awaiting.hand_overs.items())
    )


def _pack_schedule(session: Session) -> ScheduleV1 | None:
    outbound = session.outbound
    rate, backlog = outbound.rate, outbound.backlog
    is_plain = not backlog.is_stored
    has_rate = rate is not None and rate.at_ms
    if not (outbound.scheduled.waiting or outbound.cancels or has_rate or session.held) and is_plain:
        return None
    return ScheduleV1(
        scheduled=tuple(outbound.scheduled),
        cancels=tuple(outbound.cancels),
        rate=None if rate is None else (rate.level, rate.at_ms),
        backlog=None
        if is_plain
        else (backlog.keeps_up_until_ms, backlog.is_doubted, backlog.lead_until_ms, backlog.told_progress),
        held=session.held,
        held_since_ms=session.held_since_ms if session.held else 0,
    )


def _unpack_schedule(stored: ScheduleV1, outbound: SessionOutbound) -> None:
    for message in stored.scheduled:
        outbound.scheduled.add(message)
    outbound.cancels.update(dict.fromkeys(stored.cancels))
    if outbound.rate is not None and stored.rate is not None:
        outbound.rate.restore(*stored.rate)
    if stored.backlog is not None:
        outbound.backlog = Backlog(*stored.backlog)


def _pack_routing(routing: SessionRouting, started_by: int) -> SessionRoutingV1 | None:
    list_id, marks = routing.list_id, routing.marks
    if not marks.newest and not routing.is_needed and list_id == (started_by, 0):
        return None
    return SessionRoutingV1(
        list_connection_id=list_id.connection_id,
        list_version=list_id.version,
        marks=tuple(marks.newest.items()),
        digests=tuple((source, b"".join(digests)) for source, digests in marks.digests.items()),
        early=tuple(
            EarlyMessageV1(message=early.message, position=early.position, since_ms=early.since_ms) for early in routing.early
        ),
        kept_until_ms=routing.kept_until_ms,
    )


def _unpack_routing(stored: SessionRoutingV1, routing: SessionRouting) -> None:
    routing.list_id = ListId(stored.list_connection_id, stored.list_version)
    routing.marks.newest.update(stored.marks)
    routing.marks.digests.update((source, dict.fromkeys(_digests(joined))) for source, joined in stored.digests)
    routing.early = [
        EarlyMessage(message=early.message, position=early.position, since_ms=early.since_ms) for early in stored.early
    ]
    routing.kept_until_ms = stored.kept_until_ms
