"""Lets the gateway that a client has left serve it again before the session has read its CONNECT (protocol.md, 7).

1. The gateway may hold what comes for a client that is away, as long as the queue surely has it, too: so many messages that no
   limit drops one, of a client for which nothing else becomes due (`max_left`).
2. It goes on where it had stopped. The path of the new connection is open from its CONNECT on, and what the gateway may be
   sending is fenced as ever.
3. The session agrees if nothing was unfinished there, and nothing of what came since has ended. Else the gateway ends the
   connection, unless it has sent nothing yet. It ends it, too, if it was wrong about the client's subscriptions.
"""

from typing import Final

from state.activation import Activation
from state.connection import PathState, SessionConnection
from state.events import Continued
from state.model import Position
from state.outbound.outbound import SessionOutbound
from state.outbound.routing.session_routing import ListId

_UNLIMITED: Final = 1 << 20
_PART: Final = 2
"""The other half of the limits is for dead letters that return: no gateway sees these."""


def max_left(outbound: SessionOutbound) -> tuple[int, int]:
    """Returns how many messages, and bytes of them, surely stay in an empty queue while the client is away (rule 1)."""
    settings = outbound.settings
    drops_some = settings.policy.message_ttl_ms is not None or not settings.mqueue_store_qos0
    if not settings.fast_path or outbound.rate is not None or drops_some or outbound.scheduled.waiting:
        return 0, 0
    if not settings.max_mqueue_len:
        return _UNLIMITED, _UNLIMITED
    return settings.max_mqueue_len // _PART, settings.max_mqueue_bytes // _PART if settings.max_mqueue_bytes else _UNLIMITED


def continue_path(
    outbound: SessionOutbound, connection: SessionConnection, continued: Continued, newest: int, activation: Activation
) -> bool:
    """Opens the path of a new connection if the session is as its gateway says (rules 2 and 3).

    Args:
        newest: Id of the client's connection before it.

    Returns:
        True if it does.
    """
    path, settings = connection.fast_path, outbound.settings
    if path is None or not settings.fast_path or outbound.rate is not None or continued.connection_id != newest:
        return False
    is_unfinished = outbound.window or outbound.abandoned or outbound.blocked(activation.now_ms)
    if is_unfinished or not _all_wait(outbound, continued, activation):
        return False
    path.state = PathState.OPEN
    if continued.is_granted:
        path.opened_after = continued.after
    else:
        path.began_session = True
    return True


def is_known_list(outbound: SessionOutbound, continued: Continued) -> bool:
    """Returns False if the gateway knows another list of the client's subscriptions. It ends the connection then, and the list of
    the session has to stand above those that it has written."""
    known = ListId(continued.list_connection_id, continued.list_version)
    return not outbound.settings.routing or known == outbound.routing.list_id


def _all_wait(outbound: SessionOutbound, continued: Continued, activation: Activation) -> bool:
    """Returns True if the queue has all messages beyond a position that were handled, and no other one."""
    partition, offset = continued.after

    def is_beyond(position: Position | None) -> bool:
        return position is not None and position.partition == partition and position.offset > offset

    settled, changes = outbound.positions.settled, activation.fast_path
    if settled is not None and (settled.partition != partition or settled.offset > offset):
        return False
    queued = {delivery.position for delivery in outbound.queue}
    has_ended = (changes.queued | changes.handled) - queued  # in this activation; `settled` says what had before
    return all(map(is_beyond, queued)) and not any(map(is_beyond, has_ended))
