"""Decides about routed messages: which ones the session accepts, and which go back to their group (protocol.md, section 8).

The matcher has found the client in a list of subscriptions, the *entry* (`Routing.connection_id` and `version`). The session has
read its own list by another topic. So either may be the newer one. A message is treated by the first rule that applies:

1. A copy is ignored (state/outbound/routing/marks.py).
2. The entry is of a connection whose CONNECT the session has not read: the message waits for it, over the end of the present
   session. It is decided on when a connection with that id or a later one was accepted. After an hour it ends with
   `session_ended`.
3. There is no session: a ledger row counts the message, and nothing else happens. A routed message begins no session.
4. The entry is of an earlier session: as rule 3. What the client subscribes to now, it did not when the message was matched.
5. The session's own list is newer, and none of its filters matches: the client has unsubscribed. As rule 3.
6. The session's own list is newer: its best matching filter lowers the QoS.
7. Otherwise the entry holds. The QoS is the entry's, whatever other filters say.

A message of a shared subscription that ends by rules 2 to 5 is returned to its group (`ReturnToGroup`). Only the filter of that
shared subscription matches it in rules 5 and 6. When a session ends, what its client has not got is returned too: messages in the
queue, and those of QoS 1 that are not acknowledged. A QoS 2 message in flight is not [MQTT-4.8.2-5].

A message of a shared subscription that is too large for the client is returned if it was not sent, with the names of the members
for which it was. The matcher chooses one of these if there is no other, and its session ends the message with `too_large`. A
session that would name one too many ends it, too.

Marks. Gateways know by them which clients have a session (state/records/session_marks.py). The gateway writes one before CONNACK.
The session writes one if its gateway has not known that there is none: the end of an earlier session may be behind the gateway's.

Lists. When a session ends and no other one begins, `EndSubscriptions` removes its list. Rule 3 says it again, because the list
that the matcher used may have been written after that. A session with a shared subscription announces whether it is online. One
that returns a message by rule 4 or 5 writes its own list again, else the matcher would choose the same client for ever. One that
refuses a connection does so too, above the lists of that connection.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from state.activation import Activation
from state.commands import AnnounceSubscriptions, EndSessionMark, EndSubscriptions, MarkSession, ReturnToGroup, Transition
from state.events import MessageSubmitted, Subscribed, Unsubscribed
from state.model import ClientId, Message, Outcome, QoS, Routing
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.outbound.routing.session_routing import EarlyMessage, ListId, SessionRouting
from state.records.messages import message_bytes
from state.settings import SessionSettings
from state.transitions import OutboundAction

WAIT_MS: Final = 3_600_000
"""Time for which a message waits for a CONNECT, and for which a client is remembered after the end of its session."""


MOST_TRIED: Final = 16
"""Members for which a message may be too large before it ends."""
_ABOVE_ALL: Final = 2**31 - 1
"""A version above those of all lists that a connection writes."""


def is_new(outbound: SessionOutbound, message: Message, activation: Activation) -> bool:
    """Applies rule 1. Returns False if the message is a copy, which must be ignored."""
    routing = _routing_of(message)
    if not outbound.routing.marks.admit(routing.source, routing.mark, message.message_id):
        return False
    activation.fast_path.marks_changed = True
    return True


def admissible(
    outbound: SessionOutbound,
    event: MessageSubmitted,
    activation: Activation,
    *,
    newest_connection_id: int,
    started_by: int,
    has_session: bool,
) -> MessageSubmitted | None:
    """Applies rules 2 to 7.

    Args:
        started_by: The connection that began the present session, if there is one.

    Returns:
        The message to accept; None if it waits, or if a ledger row counts it.
    """
    routing, own = _routing_of(event.message), outbound.routing.list_id
    if routing.connection_id > newest_connection_id:  # step 2
        _wait(outbound, event, activation)
        return None
    if not has_session:  # step 3
        activation.lists_end = max(activation.lists_end, newest_connection_id)
        _count(outbound, event.message, "the client has no session", activation)
        return None
    if routing.connection_id < started_by:  # step 4
        activation.corrects_list |= bool(routing.share)
        _count(outbound, event.message, "the client had subscribed in an earlier session", activation)
        return None
    if own <= ListId(routing.connection_id, routing.version):  # step 7
        return event
    granted = _granted(outbound, event.message, routing)
    if granted is None:  # step 5
        activation.corrects_list |= bool(routing.share)
        _count(outbound, event.message, "the client has unsubscribed", activation)
        return None
    if granted >= event.message.qos:
        return event
    return msgspec.structs.replace(event, message=msgspec.structs.replace(event.message, qos=granted))  # step 6


def pop_early(outbound: SessionOutbound, connection_id: int) -> Iterator[MessageSubmitted]:
    """Yields the messages that waited for this connection or an earlier one."""
    waiting = outbound.routing.early
    outbound.routing.early = [early for early in waiting if _routing_of(early.message).connection_id > connection_id]
    for early in waiting:
        routing = _routing_of(early.message)
        if routing.connection_id <= connection_id:
            yield MessageSubmitted(message=early.message, explicit_id=routing.is_named, position=early.position)


def next_end_ms(routing: SessionRouting, *, has_session: bool) -> int | None:
    """Returns when `pass_time` has something to do; None = never."""
    kept_until_ms = None if has_session else routing.kept_until_ms
    if not routing.early:
        return kept_until_ms
    early_ends_ms = routing.early[0].since_ms + WAIT_MS
    return early_ends_ms if kept_until_ms is None else min(early_ends_ms, kept_until_ms)


def pass_time(outbound: SessionOutbound, activation: Activation, *, has_session: bool) -> None:
    """Ends messages whose CONNECT has not come in time (rule 2), and forgets what is kept of a client without a session."""
    routing, now_ms = outbound.routing, activation.now_ms
    while routing.early and routing.early[0].since_ms + WAIT_MS <= now_ms:
        early = routing.early.pop(0)
        entry = _routing_of(early.message)
        activation.lists_end = max(activation.lists_end, entry.connection_id)
        if entry.share:
            give_back(outbound, _unsent(early), "its CONNECT did not come", activation)
        else:
            activation.finish(_unsent(early), Outcome.SESSION_ENDED, detail="the CONNECT of its connection did not come")
    if not has_session and routing.kept_until_ms is not None and routing.kept_until_ms <= now_ms:
        early_messages = routing.early
        outbound.routing = SessionRouting()
        outbound.routing.early = early_messages


def goes_back(delivery: Delivery, ended_by: OutboundAction | None = None) -> bool:
    """Returns True if a message goes back to its group when its session ends.

    Args:
        ended_by: The action that has ended its exchange; None = it was in the queue.
    """
    if delivery.message.routing is None or not delivery.message.routing.share:
        return False
    return ended_by is None or (ended_by is OutboundAction.END and delivery.qos != QoS.EXACTLY_ONCE)


def suits_another_member(delivery: Delivery, client_id: ClientId) -> bool:
    """Returns True if a message that is too large for the client should go back to its group. The client must not have got it."""
    routing = delivery.message.routing
    if routing is None or not routing.share or delivery.first_sent_ms is not None:
        return False
    return client_id not in routing.tried and len(routing.tried) < MOST_TRIED


def give_back(
    outbound: SessionOutbound, delivery: Delivery, reason: str, activation: Activation, *, is_too_large: bool = False
) -> None:
    """Returns a message of a shared subscription to its group, and records it.

    The client may become the member for it again, so its id is forgotten. A copy of the message must not be returned again, so
    the marks outlive the session.

    Args:
        is_too_large: The next member should be one for which it is not.
    """
    message = delivery.message
    routing = _routing_of(message)
    if is_too_large:
        routing = msgspec.structs.replace(routing, tried=(*routing.tried, activation.client_id))
        message = msgspec.structs.replace(message, routing=routing)
    activation.add(ReturnToGroup(message=message, time_ms=activation.now_ms))
    detail = f"returned to {routing.share}: {reason}"
    activation.record(Transition.ROUTED_NOWHERE, message.message_id, attempt=delivery.transmissions, detail=detail)
    if routing.is_named:
        outbound.recent_ids.forget(message.message_id)
    outbound.routing.kept_until_ms = activation.now_ms + WAIT_MS


def session_began(outbound: SessionOutbound, connection_id: int) -> None:
    outbound.routing.list_id = ListId(connection_id)


def session_resumed(outbound: SessionOutbound, connection_id: int, activation: Activation) -> None:
    """Numbers the list anew if the session is going to announce that it is online."""
    if outbound.settings.routing and outbound.subscriptions.has_shared:
        outbound.routing.list_id = ListId(connection_id)
        activation.announces = True


def connection_refused(outbound: SessionOutbound, connection_id: int, newest_connection_id: int, activation: Activation) -> None:
    """Overrules the lists of a connection that the session refuses.

    Its gateway may have written some before it knew. They stand above the list of a session that an earlier connection has begun.
    """
    if outbound.settings.routing and outbound.routing.list_id.connection_id < connection_id:
        outbound.routing.list_id = ListId(newest_connection_id)
        activation.corrects_list = True
        activation.lists_end = max(activation.lists_end, newest_connection_id)


def claim_refused(outbound: SessionOutbound, connection_id: int, activation: Activation) -> None:
    """Overrules the lists of a connection whose gateway did not know the session: it may have written some, or may yet.

    What the client has subscribed to on that connection does not count: it was not acknowledged, or the connection ends.
    """
    if outbound.settings.routing:
        outbound.routing.list_id = ListId(connection_id, _ABOVE_ALL)
        activation.corrects_list = True


def session_ends(outbound: SessionOutbound, newest_connection_id: int, activation: Activation) -> None:
    """Prepares the end of the client's list. Call it while the session still has its subscriptions."""
    if outbound.settings.routing and (outbound.subscriptions or outbound.routing.list_id.version):
        activation.lists_end = max(activation.lists_end, newest_connection_id)
        outbound.routing.kept_until_ms = activation.now_ms + WAIT_MS


def is_overtaken(outbound: SessionOutbound, event: Subscribed | Unsubscribed) -> bool:
    """Returns True if a later list of the client has been read, which was made without this change: of two lists the higher one
    counts."""
    return event.version > 0 and ListId(event.connection_id, event.version) < outbound.routing.list_id


def list_read(outbound: SessionOutbound, event: Subscribed | Unsubscribed, activation: Activation, *, is_late: bool) -> None:
    """Records which list the session has now.

    Args:
        is_late: The connection of the event is over. The list that the gateway wrote says that the client is online.
    """
    outbound.routing.list_read(event.connection_id, event.version)
    activation.announces |= is_late


def end_of_activation(
    outbound: SessionOutbound,
    activation: Activation,
    *,
    has_session: bool,
    is_kept: bool,
    is_online: bool,
    has_will: bool,
    newest_connection_id: int,
) -> None:
    """Writes the list of a session with a shared subscription or a refused connection, or the end of a list; and marks.

    Args:
        is_kept: There is a session, and it outlives its connection.
        has_will: A will is going to be published, unless the client withdraws or cancels it.
    """
    if is_kept and activation.marks_session:
        activation.add(MarkSession(connection_id=newest_connection_id))
    elif not is_kept and activation.mark_ends:
        activation.add(EndSessionMark(connection_id=activation.mark_ends, has_will=has_will))
    if has_session:
        if activation.corrects_list or (activation.announces and outbound.subscriptions.has_shared):
            list_id, subscriptions = outbound.routing.list_id, tuple(outbound.subscriptions)
            activation.add(
                AnnounceSubscriptions(
                    connection_id=list_id.connection_id,
                    version=list_id.version,
                    subscriptions=subscriptions,
                    is_online=is_online,
                )
            )
    elif activation.lists_end:
        activation.add(EndSubscriptions(connection_id=activation.lists_end))


def _wait(outbound: SessionOutbound, event: MessageSubmitted, activation: Activation) -> None:
    """Stores an early message. The limits of the queue hold for them too; the oldest leave."""
    early, settings = outbound.routing.early, outbound.settings
    early.append(EarlyMessage(message=event.message, position=event.position, since_ms=activation.now_ms))
    size_bytes = sum(message_bytes(waiting.message) for waiting in early)
    while len(early) > 1 and settings.max_mqueue_len and _is_over(len(early), size_bytes, settings):
        dropped = early.pop(0)
        size_bytes -= message_bytes(dropped.message)
        activation.finish(_unsent(dropped), Outcome.MAXLEN, detail="too many messages wait for the CONNECT of their connection")


def _is_over(length: int, size_bytes: int, settings: SessionSettings) -> bool:
    return length > settings.max_mqueue_len or 0 < settings.max_mqueue_bytes < size_bytes


def _count(outbound: SessionOutbound, message: Message, reason: str, activation: Activation) -> None:
    if _routing_of(message).share:
        give_back(outbound, Delivery(message=message, qos=message.qos, order=0), reason, activation)
    else:
        activation.record(Transition.ROUTED_NOWHERE, message.message_id, detail=reason)


def _granted(outbound: SessionOutbound, message: Message, routing: Routing) -> QoS | None:
    """Returns the QoS that the session's own filters grant; None = none of them matches."""
    if not routing.share:
        return outbound.subscriptions.granted_qos(message.topic)
    shared = outbound.subscriptions.get(routing.share)
    return None if shared is None else shared.qos


def _unsent(early: EarlyMessage) -> Delivery:
    return Delivery(message=early.message, qos=early.message.qos, order=0)


def _routing_of(message: Message) -> Routing:
    assert message.routing is not None, "the caller has seen that the message was routed"
    return message.routing
