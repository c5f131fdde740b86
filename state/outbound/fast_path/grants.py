"""Decides when a gateway may send by the fast path, and what the session may not do meanwhile (protocol.md, section 7).

The path of a connection is closed, open or closing. The last step of an activation decides (`end_of_activation`):

 1. It opens if there is a connection and no backoff runs. A message of this client must have been handled, so that there is a
    position to continue from. It stays closed while the subscriptions are too many for a grant, or too many adopted messages are
    unread. A client with `max_send_rate` has no fast path, because only the session counts what it sends.
 2. Messages that wait in the queue may be sent by the gateway, too, if they are the newest ones that were handled, and
    of one partition: the grant begins before them, and whichever of the two sends a message first counts. So a
    client that gets many messages returns to the fast path. Else the path stays closed while messages wait, and while one with
    a collapse key waits, which the next one may replace.
 3. A grant is renewed when there is something new: messages handled by the slow path, subscriptions, or many FastSent. A late
    grant only costs latency, whereas a grant in each activation would cost a record each.
 4. It closes when rule 1 or 2 no longer holds, when something waits for the fence, when the queue is over its limits, or when
    messages come from another partition.

 5. The connection that begins a session has an open path from the beginning, without a grant. Its gateway sends what is routed to
    the subscriptions of this very connection: nothing that is routed by them is older. Messages that name the client, and those
    of an earlier session, are left to the session. The first grant comes when a message was handled.
 6. So has a connection at the gateway that the client has left (continuing.py).

The fence: what a gateway may be sending does not expire, is not dropped and not given up (`SessionConnection.may_be_sending`).
The session does it when the path has closed: FastPathClosed is read, behind all FastSent, or the connection is over.
"""

from typing import Final

from state.activation import Activation
from state.commands import ClearRoute, CloseFastPath, OpenFastPath, SetRoute
from state.connection import PathState, SessionConnection, SessionFastPath
from state.model import Position
from state.outbound.outbound import SessionOutbound
from state.outbound.packet_ids import fast_ids

MAX_SUBSCRIPTIONS: Final = 32
MAX_SUBSCRIPTION_BYTES: Final = 4_096
"""Size of the encoded subscriptions. A client with more than these two limits has no fast path."""
MAX_UNREAD: Final = 8_192
"""Adopted messages that were not read as messages yet. Their positions are in the stored session."""
GRANT_AFTER: Final = 64
"""FastSent after which a grant is renewed. The gateway remembers each until a grant says that the session has read it."""


def was_adopted(outbound: SessionOutbound, position: Position | None, activation: Activation) -> bool:
    """Marks a message as read.

    Args:
        position: None = it has none, as in tests.

    Returns:
        True if the message was adopted before, so that it must be ignored now.
    """
    if position is None:
        return False
    is_beyond = outbound.positions.is_beyond(position)
    is_new = outbound.positions.mark_read(position)
    if is_new or is_beyond:
        activation.fast_path.has_handled = True
        activation.fast_path.handled.add(position)
    return not is_new


def session_began(outbound: SessionOutbound, connection: SessionConnection) -> None:
    """Opens the path of the connection that has begun a session (rule 5)."""
    settings, path = outbound.settings, connection.fast_path
    if path is not None and settings.routing and settings.fast_path and outbound.rate is None:
        path.state, path.began_session = PathState.OPEN, True


def begin_of_activation(outbound: SessionOutbound, activation: Activation) -> None:
    """Notes what waits in the queue before the events."""
    if outbound.queue:
        activation.fast_path.queued = _queued(outbound)
    else:
        outbound.positions.settled = outbound.positions.latest


def closed(connection: SessionConnection, activation: Activation) -> None:
    """Applies FastPathClosed of this connection. It has no effect unless the session had asked for it."""
    path = connection.fast_path
    if path is not None and path.state is PathState.CLOSING:
        _close(path, activation)


def connection_ended(connection: SessionConnection, activation: Activation) -> None:
    """Closes the path. FastSent of the gateway may still be in the log."""
    path = connection.fast_path
    if path is None:
        return
    _close(path, activation)
    if path.has_route:
        path.has_route = False
        activation.add(ClearRoute())


def end_of_activation(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> None:
    """Opens the path, renews the grant or closes the path."""
    outbound.positions.forget_recreated(outbound.settings.messages_generation)
    _settle(outbound, activation)
    path = None if connection is None else connection.fast_path
    if connection is None or path is None or path.state is PathState.CLOSING:
        return
    may_open, after = _may_open(outbound, path, activation), outbound.positions.settled
    if path.state is PathState.CLOSED or (not path.has_route and may_open):
        if may_open and after is not None:
            _open(outbound, connection, path, after, activation)
    elif not may_open or after is None or path.opened_after is None or after.partition != path.opened_after.partition:
        path.state = PathState.CLOSING
        activation.add(
            CloseFastPath(
                connection_id=connection.connection_id, partition=connection.partition, sequence=connection.next_sequence()
            )
        )
    elif activation.fast_path.changes_grant or path.since_grant >= GRANT_AFTER:
        _grant(outbound, connection, path, after, activation)


def _queued(outbound: SessionOutbound) -> set[Position]:
    return {delivery.position for delivery in outbound.queue if delivery.position is not None}


def _settle(outbound: SessionOutbound, activation: Activation) -> None:
    """Notes which messages the gateway may not send any more."""
    changes, positions = activation.fast_path, outbound.positions
    before = positions.settled
    if outbound.queue:
        positions.settle((changes.queued | changes.handled) - _queued(outbound))
    else:
        positions.settled = positions.latest
    if changes.queued:
        changes.has_handled |= positions.settled != before


def _may_open(outbound: SessionOutbound, path: SessionFastPath, activation: Activation) -> bool:
    """Applies rules 1 and 2, all but that there has to be a position."""
    if not outbound.settings.fast_path or outbound.rate is not None or outbound.blocked(activation.now_ms):
        return False
    if outbound.queue and (path.over_limit or outbound.queue.has_keys or not _is_first_of_queue(outbound)):
        return False
    if activation.fast_path.waits_for_fence or len(outbound.positions.unread) > MAX_UNREAD:
        return False
    if path.state is PathState.CLOSED or activation.fast_path.subscriptions_changed:
        subscriptions = outbound.subscriptions
        return len(subscriptions.encoded()) <= MAX_SUBSCRIPTION_BYTES and len(subscriptions) <= MAX_SUBSCRIPTIONS
    return True


def _is_first_of_queue(outbound: SessionOutbound) -> bool:
    """Returns True if the queue has exactly the handled messages beyond `settled`. So none of them was ever sent."""
    after, latest = outbound.positions.settled, outbound.positions.latest
    return (
        after is not None
        and latest is not None
        and all(
            delivery.position is not None
            and delivery.position.partition == after.partition == latest.partition
            and delivery.position.offset > after.offset
            for delivery in outbound.queue
        )
    )


def _open(
    outbound: SessionOutbound, connection: SessionConnection, path: SessionFastPath, after: Position, activation: Activation
) -> None:
    if path.opened_after is not None and path.opened_after.partition != after.partition:
        path.adopted = -1
    path.state, path.opened_after = PathState.OPEN, after
    if not path.has_route:
        path.has_route = True
        activation.add(SetRoute(connection_id=connection.connection_id, partition=connection.partition))
    _grant(outbound, connection, path, after, activation, is_first=True)


def _grant(
    outbound: SessionOutbound,
    connection: SessionConnection,
    path: SessionFastPath,
    after: Position,
    activation: Activation,
    *,
    is_first: bool = False,
) -> None:
    changes, recent = activation.fast_path, outbound.recent_ids
    # A periodic snapshot lets the gateway forget the ids that the session has forgotten.
    is_snapshot = is_first or path.since_grant >= GRANT_AFTER or path.digests_sent + len(changes.new_digests) > recent.window
    path.digests_sent = 0 if is_snapshot else path.digests_sent + len(changes.new_digests)
    path.since_grant = 0
    activation.add(
        OpenFastPath(
            connection_id=connection.connection_id,
            partition=connection.partition,
            sequence=connection.next_sequence(),
            after=after,
            queued_to=outbound.positions.handled_in(after.partition) if outbound.queue else -1,
            adopted=path.adopted,
            ids_in_use=fast_ids((entry.packet_id for entry in outbound.window), outbound.abandoned.phases),
            last_id=outbound.packet_ids.last_fast,
            recent_ids=b"".join(recent.digests if is_snapshot else changes.new_digests),
            is_snapshot=is_snapshot,
            subscriptions=tuple(outbound.subscriptions) if is_first or changes.subscriptions_changed else None,
            marks=outbound.routing.marks.for_grant() or None if is_first or changes.marks_changed else None,
        )
    )


def _close(path: SessionFastPath, activation: Activation) -> None:
    path.state = PathState.CLOSED
    path.since_grant, path.began_session = 0, False
    activation.fast_path.fence_lifted |= path.over_limit
    path.over_limit = False
