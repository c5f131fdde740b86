"""Defines the legal steps of MQTT's delivery handshakes, as three tables: what may follow what, and what the session does then.

Phases are changed by three classes only, and each of them asks its table: `InflightWindow` (state/outbound/inflight_window.py),
`AwaitingRel` (state/inbound/awaiting_rel.py) and `AbandonedExchanges` (state/outbound/packet_ids.py). Nothing else in the
session compares phases: other modules act on actions.

Rules of the outbound exchange (session → client):

 1. The first PUBLISH of a packet id begins an exchange: at QoS 1 it waits for PUBACK; at QoS 2 for PUBREC [MQTT-4.3.3-3], then
    its PUBREL waits for PUBCOMP. A QoS 0 PUBLISH has no packet id and no exchange.
 2. What is sent again is the PUBLISH of rule 1 or the PUBREL, never anything else; after PUBREC never PUBLISH [MQTT-4.3.3-6].
 3. A PUBACK or PUBREC of 0x80 or more ends the exchange: the packet id is free and no PUBREL follows [MQTT-4.4.0-2].
 4. A repeated PUBREC is answered by PUBREL again.
 5. An acknowledgement of the wrong kind for a live packet id is a protocol error.
 6. For an unknown packet id, PUBACK and PUBCOMP are ignored. PUBREC is answered, so that the client can free the id.
 7. An acknowledgement from an earlier connection of the session counts if it advances the exchange by rule 1. A late refusal and
    everything else is ignored (`late_outbound_step`).
 8. A PUBLISH that may not be sent again (`delivery_limit`, `crash_limit`, Maximum Packet Size) ends its exchange. At a retry the
    gateway gets a command, because it may hold the PUBLISH back; at a replay it does not have it yet. A PUBREL has no limit.
 9. A connection that ends before the acknowledgement was due gives the attempt back. A PUBREL is no attempt. The end counts as
    a crash for one message at most: the oldest PUBLISH on the wire that the client has not answered (`crash_limit`). A client
    answers in the order in which it receives [MQTT-4.6.0-2] [MQTT-4.6.0-3], so it had come as far as that message.
10. The end of the session ends every exchange. After PUBREC the client has the message, so nothing is dead-lettered.

Rules of the inbound exchange (client → session, QoS 2):

11. A packet id outside the set is a new publication and is forwarded once, whatever DUP says.
12. A packet id inside the set is a repetition, whatever DUP says [MQTT-4.3.3-10]; it is not forwarded.
13. PUBREL releases the id; so does `await_rel_timeout`, which leaves a tombstone.
14. A tombstone identifies a late repetition (same id, same content, DUP=1). The repetition enters the set again and is not
    forwarded.
15. A late PUBREL removes the tombstone, because the client does not repeat a publication after it. The end of the session
    removes everything.
16. A publication of an earlier connection is overtaken if the client has repeated it since (same id, same content, DUP=1). This
    happens when a gateway was frozen with it in a socket. It is not forwarded and does not enter the set: no PUBREL will follow.

Rules of the exchange of a message that was given up (rule 8). Its slot and its packet id stay occupied until it ends:

17. At QoS 1 any PUBACK ends it, and so does the end of the connection.
18. At QoS 2 a PUBREC is answered by PUBREL, and PUBCOMP ends it, on any connection of the session; so does a PUBREC of 0x80 or
    more. A PUBREL is sent again on reconnect.
19. Rule 5 holds here too. The oldest exchange is forgotten when there are too many, and all are at the end of the session.

Rule of the fast path (protocol.md, section 7):

20. A message that a gateway sent before the session read it continues under the gateway's packet id. An exchange that the
    session has begun for the same message ends: the gateway has written nothing of it.

Theory of operation. An exchange is in exactly one phase. ABSENT is the phase of every packet id without an exchange. So a lookup
never fails, and the tables are total over everything that a peer can send. The step functions return the next phase and the
action that the session carries out. A peer cannot cause a pair that is not in a table (such as a timer of an absent exchange):
it is a bug of the session, and raises SessionMisuse.
"""

from enum import Enum, auto
from typing import Final, TypeAlias

from state.errors import SessionMisuse


class OutboundPhase(Enum):
    ABSENT = 0
    AWAITING_PUBACK = 1
    AWAITING_PUBREC = 2
    AWAITING_PUBCOMP = 3


class OutboundEvent(Enum):
    """Events of an outbound exchange. The first five are packets of the client; `…_REFUSED` has a reason code of 0x80 or more.

    RETRY_OVER_LIMIT, REPLAY_OVER_LIMIT: the PUBLISH that was due may not be sent again.
    CONNECTION_ENDED_EARLY: before the acknowledgement was due, or before the gateway had written the packet.
    CLIENT_CRASHED: the gateway reports that the client had the packet when a connection ended early.
    FAST_SENT: the gateway has sent the message under another packet id.
    """

    PUBACK = auto()
    PUBACK_REFUSED = auto()
    PUBREC = auto()
    PUBREC_REFUSED = auto()
    PUBCOMP = auto()
    SEND_QOS_1 = auto()
    SEND_QOS_2 = auto()
    RETRY_DUE = auto()
    RETRY_OVER_LIMIT = auto()
    REPLAY = auto()
    REPLAY_OVER_LIMIT = auto()
    CONNECTION_ENDED_EARLY = auto()
    CLIENT_CRASHED = auto()
    FAST_SENT = auto()
    SESSION_ENDED = auto()


class OutboundAction(Enum):
    """Actions of the session. END_RECEIVED is END for a message that the client has already received."""

    SEND_PUBLISH = auto()
    COMPLETE = auto()
    RELEASE = auto()
    REFUSE = auto()
    RESEND_QOS_1 = auto()
    RESEND_QOS_2 = auto()
    RESEND_PUBREL = auto()
    ANSWER_PUBREL = auto()
    ANSWER_UNKNOWN_PUBREC = auto()
    GIVE_UP = auto()
    WITHDRAW = auto()
    GIVE_ATTEMPT_BACK = auto()
    COUNT_CRASH = auto()
    MOVE = auto()
    END = auto()
    END_RECEIVED = auto()
    IGNORE = auto()
    PROTOCOL_ERROR = auto()


class InboundPhase(Enum):
    ABSENT = auto()
    AWAITING_PUBREL = auto()
    TOMBSTONE = auto()


class InboundEvent(Enum):
    """Events of an inbound exchange.

    OVERTAKEN: a PUBLISH of an earlier connection that the client has repeated on a later one (rule 16).
    OTHER_CONTENT: a PUBLISH without DUP under an id that awaits PUBREL of another content. The client uses the id too early.
    """

    PUBLISH = auto()
    OTHER_CONTENT = auto()
    LATE_REPETITION = auto()
    OVERTAKEN = auto()
    PUBREL = auto()
    TIMEOUT = auto()
    SESSION_ENDED = auto()


class InboundAction(Enum):
    FORWARD = auto()
    RECOGNISE = auto()
    RELEASE = auto()
    ABANDON = auto()
    FORGET = auto()
    IGNORE = auto()


class AbandonedPhase(Enum):
    ABSENT = 0
    AWAITING_PUBACK = 1
    AWAITING_PUBREC = 2
    AWAITING_PUBCOMP = 3


class AbandonedEvent(Enum):
    """Events of an exchange whose message was given up. The first five are those of OutboundEvent.

    DISPLACED: there are too many, and this one is the oldest.
    """

    PUBACK = auto()
    PUBACK_REFUSED = auto()
    PUBREC = auto()
    PUBREC_REFUSED = auto()
    PUBCOMP = auto()
    GIVEN_UP_QOS_1 = auto()
    GIVEN_UP_QOS_2 = auto()
    CONNECTION_ENDED = auto()
    REPLAY = auto()
    DISPLACED = auto()
    SESSION_ENDED = auto()


class AbandonedAction(Enum):
    KEEP = auto()
    SETTLE = auto()
    SEND_PUBREL = auto()
    FORGET = auto()
    PROTOCOL_ERROR = auto()


OutboundTable: TypeAlias = dict[tuple[OutboundPhase, OutboundEvent], tuple[OutboundPhase, OutboundAction]]
InboundTable: TypeAlias = dict[tuple[InboundPhase, InboundEvent], tuple[InboundPhase, InboundAction]]
AbandonedTable: TypeAlias = dict[tuple[AbandonedPhase, AbandonedEvent], tuple[AbandonedPhase, AbandonedAction]]

_P, _E, _A = OutboundPhase, OutboundEvent, OutboundAction

OUTBOUND: Final[OutboundTable] = {
    (_P.ABSENT, _E.SEND_QOS_1): (_P.AWAITING_PUBACK, _A.SEND_PUBLISH),
    (_P.ABSENT, _E.SEND_QOS_2): (_P.AWAITING_PUBREC, _A.SEND_PUBLISH),
    (_P.ABSENT, _E.PUBACK): (_P.ABSENT, _A.IGNORE),
    (_P.ABSENT, _E.PUBACK_REFUSED): (_P.ABSENT, _A.IGNORE),
    (_P.ABSENT, _E.PUBREC): (_P.ABSENT, _A.ANSWER_UNKNOWN_PUBREC),
    (_P.ABSENT, _E.PUBREC_REFUSED): (_P.ABSENT, _A.IGNORE),
    (_P.ABSENT, _E.PUBCOMP): (_P.ABSENT, _A.IGNORE),
    (_P.AWAITING_PUBACK, _E.PUBACK): (_P.ABSENT, _A.COMPLETE),  # [MQTT-4.3.2-3]
    (_P.AWAITING_PUBACK, _E.PUBACK_REFUSED): (_P.ABSENT, _A.REFUSE),  # [MQTT-4.4.0-2]
    (_P.AWAITING_PUBACK, _E.PUBREC): (_P.AWAITING_PUBACK, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBACK, _E.PUBREC_REFUSED): (_P.AWAITING_PUBACK, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBACK, _E.PUBCOMP): (_P.AWAITING_PUBACK, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBACK, _E.RETRY_DUE): (_P.AWAITING_PUBACK, _A.RESEND_QOS_1),
    (_P.AWAITING_PUBACK, _E.RETRY_OVER_LIMIT): (_P.ABSENT, _A.WITHDRAW),
    (_P.AWAITING_PUBACK, _E.REPLAY): (_P.AWAITING_PUBACK, _A.RESEND_QOS_1),  # [MQTT-4.4.0-1]
    (_P.AWAITING_PUBACK, _E.REPLAY_OVER_LIMIT): (_P.ABSENT, _A.GIVE_UP),
    (_P.AWAITING_PUBACK, _E.CONNECTION_ENDED_EARLY): (_P.AWAITING_PUBACK, _A.GIVE_ATTEMPT_BACK),
    (_P.AWAITING_PUBACK, _E.CLIENT_CRASHED): (_P.AWAITING_PUBACK, _A.COUNT_CRASH),
    (_P.AWAITING_PUBACK, _E.FAST_SENT): (_P.ABSENT, _A.MOVE),
    (_P.AWAITING_PUBACK, _E.SESSION_ENDED): (_P.ABSENT, _A.END),
    (_P.AWAITING_PUBREC, _E.PUBREC): (_P.AWAITING_PUBCOMP, _A.RELEASE),  # [MQTT-4.3.3-4]
    (_P.AWAITING_PUBREC, _E.PUBREC_REFUSED): (_P.ABSENT, _A.REFUSE),  # [MQTT-4.4.0-2]
    (_P.AWAITING_PUBREC, _E.PUBACK): (_P.AWAITING_PUBREC, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBREC, _E.PUBACK_REFUSED): (_P.AWAITING_PUBREC, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBREC, _E.PUBCOMP): (_P.AWAITING_PUBREC, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBREC, _E.RETRY_DUE): (_P.AWAITING_PUBREC, _A.RESEND_QOS_2),
    (_P.AWAITING_PUBREC, _E.RETRY_OVER_LIMIT): (_P.ABSENT, _A.WITHDRAW),
    (_P.AWAITING_PUBREC, _E.REPLAY): (_P.AWAITING_PUBREC, _A.RESEND_QOS_2),  # [MQTT-4.4.0-1]
    (_P.AWAITING_PUBREC, _E.REPLAY_OVER_LIMIT): (_P.ABSENT, _A.GIVE_UP),
    (_P.AWAITING_PUBREC, _E.CONNECTION_ENDED_EARLY): (_P.AWAITING_PUBREC, _A.GIVE_ATTEMPT_BACK),
    (_P.AWAITING_PUBREC, _E.CLIENT_CRASHED): (_P.AWAITING_PUBREC, _A.COUNT_CRASH),
    (_P.AWAITING_PUBREC, _E.FAST_SENT): (_P.ABSENT, _A.MOVE),
    (_P.AWAITING_PUBREC, _E.SESSION_ENDED): (_P.ABSENT, _A.END),
    (_P.AWAITING_PUBCOMP, _E.PUBCOMP): (_P.ABSENT, _A.COMPLETE),  # [MQTT-4.3.3-5]
    (_P.AWAITING_PUBCOMP, _E.PUBREC): (_P.AWAITING_PUBCOMP, _A.ANSWER_PUBREL),
    (_P.AWAITING_PUBCOMP, _E.PUBREC_REFUSED): (_P.ABSENT, _A.COMPLETE),  # received before, and the client has freed the id
    (_P.AWAITING_PUBCOMP, _E.PUBACK): (_P.AWAITING_PUBCOMP, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBCOMP, _E.PUBACK_REFUSED): (_P.AWAITING_PUBCOMP, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBCOMP, _E.RETRY_DUE): (_P.AWAITING_PUBCOMP, _A.RESEND_PUBREL),  # [MQTT-4.3.3-6]
    (_P.AWAITING_PUBCOMP, _E.REPLAY): (_P.AWAITING_PUBCOMP, _A.RESEND_PUBREL),  # [MQTT-4.4.0-1]
    (_P.AWAITING_PUBCOMP, _E.CONNECTION_ENDED_EARLY): (_P.AWAITING_PUBCOMP, _A.IGNORE),
    (_P.AWAITING_PUBCOMP, _E.CLIENT_CRASHED): (_P.AWAITING_PUBCOMP, _A.IGNORE),
    (_P.AWAITING_PUBCOMP, _E.SESSION_ENDED): (_P.ABSENT, _A.END_RECEIVED),
}

INBOUND: Final[InboundTable] = {
    (InboundPhase.ABSENT, InboundEvent.PUBLISH): (InboundPhase.AWAITING_PUBREL, InboundAction.FORWARD),  # [MQTT-4.3.3-12]
    (InboundPhase.ABSENT, InboundEvent.OVERTAKEN): (InboundPhase.ABSENT, InboundAction.IGNORE),
    (InboundPhase.ABSENT, InboundEvent.PUBREL): (InboundPhase.ABSENT, InboundAction.IGNORE),
    (InboundPhase.AWAITING_PUBREL, InboundEvent.PUBLISH): (InboundPhase.AWAITING_PUBREL, InboundAction.IGNORE),  # [MQTT-4.3.3-10]
    (InboundPhase.AWAITING_PUBREL, InboundEvent.OTHER_CONTENT): (InboundPhase.AWAITING_PUBREL, InboundAction.FORWARD),
    (InboundPhase.AWAITING_PUBREL, InboundEvent.OVERTAKEN): (InboundPhase.AWAITING_PUBREL, InboundAction.IGNORE),
    (InboundPhase.AWAITING_PUBREL, InboundEvent.PUBREL): (InboundPhase.ABSENT, InboundAction.RELEASE),  # [MQTT-4.3.3-11]
    (InboundPhase.AWAITING_PUBREL, InboundEvent.TIMEOUT): (InboundPhase.TOMBSTONE, InboundAction.ABANDON),
    (InboundPhase.AWAITING_PUBREL, InboundEvent.SESSION_ENDED): (InboundPhase.ABSENT, InboundAction.FORGET),
    (InboundPhase.TOMBSTONE, InboundEvent.PUBLISH): (InboundPhase.AWAITING_PUBREL, InboundAction.FORWARD),
    (InboundPhase.TOMBSTONE, InboundEvent.LATE_REPETITION): (InboundPhase.AWAITING_PUBREL, InboundAction.RECOGNISE),
    (InboundPhase.TOMBSTONE, InboundEvent.OVERTAKEN): (InboundPhase.TOMBSTONE, InboundAction.IGNORE),
    (InboundPhase.TOMBSTONE, InboundEvent.PUBREL): (InboundPhase.ABSENT, InboundAction.RELEASE),  # [MQTT-4.3.3-12]
    (InboundPhase.TOMBSTONE, InboundEvent.SESSION_ENDED): (InboundPhase.ABSENT, InboundAction.FORGET),
}

_AP, _AE, _AA = AbandonedPhase, AbandonedEvent, AbandonedAction

ABANDONED: Final[AbandonedTable] = {
    (_AP.ABSENT, _AE.GIVEN_UP_QOS_1): (_AP.AWAITING_PUBACK, _AA.KEEP),
    (_AP.ABSENT, _AE.GIVEN_UP_QOS_2): (_AP.AWAITING_PUBREC, _AA.KEEP),
    (_AP.AWAITING_PUBACK, _AE.PUBACK): (_AP.ABSENT, _AA.SETTLE),
    (_AP.AWAITING_PUBACK, _AE.PUBACK_REFUSED): (_AP.ABSENT, _AA.SETTLE),
    (_AP.AWAITING_PUBACK, _AE.PUBREC): (_AP.AWAITING_PUBACK, _AA.PROTOCOL_ERROR),
    (_AP.AWAITING_PUBACK, _AE.PUBREC_REFUSED): (
        _AP.AWAITING_PUBACK,
        _AA.PROTOCOL_ERROR,
    ),
    (_AP.AWAITING_PUBACK, _AE.PUBCOMP): (_AP.AWAITING_PUBACK, _AA.PROTOCOL_ERROR),
    (_AP.AWAITING_PUBACK, _AE.CONNECTION_ENDED): (_AP.ABSENT, _AA.FORGET),
    (_AP.AWAITING_PUBREC, _AE.PUBREC): (
        _AP.AWAITING_PUBCOMP,
        _AA.SEND_PUBREL,
    ),  # [MQTT-4.3.3-4]
    (_AP.AWAITING_PUBREC, _AE.PUBREC_REFUSED): (
        _AP.ABSENT,
        _AA.SETTLE,
    ),  # [MQTT-4.4.0-2]
    (_AP.AWAITING_PUBREC, _AE.PUBACK): (_AP.AWAITING_PUBREC, _AA.PROTOCOL_ERROR),
    (_AP.AWAITING_PUBREC, _AE.PUBACK_REFUSED): (
        _AP.AWAITING_PUBREC,
        _AA.PROTOCOL_ERROR,
    ),
    (_AP.AWAITING_PUBREC, _AE.PUBCOMP): (_AP.AWAITING_PUBREC, _AA.PROTOCOL_ERROR),
    (_AP.AWAITING_PUBREC, _AE.CONNECTION_ENDED): (_AP.AWAITING_PUBREC, _AA.KEEP),
    (_AP.AWAITING_PUBREC, _AE.REPLAY): (_AP.AWAITING_PUBREC, _AA.KEEP),
    (_AP.AWAITING_PUBREC, _AE.DISPLACED): (_AP.ABSENT, _AA.FORGET),
    (_AP.AWAITING_PUBREC, _AE.SESSION_ENDED): (_AP.ABSENT, _AA.FORGET),
    (_AP.AWAITING_PUBCOMP, _AE.PUBREC): (_AP.AWAITING_PUBCOMP, _AA.SEND_PUBREL),
    (_AP.AWAITING_PUBCOMP, _AE.PUBREC_REFUSED): (_AP.ABSENT, _AA.SETTLE),
    (_AP.AWAITING_PUBCOMP, _AE.PUBCOMP): (_AP.ABSENT, _AA.SETTLE),
    (_AP.AWAITING_PUBCOMP, _AE.PUBACK): (_AP.AWAITING_PUBCOMP, _AA.PROTOCOL_ERROR),
    (_AP.AWAITING_PUBCOMP, _AE.PUBACK_REFUSED): (
        _AP.AWAITING_PUBCOMP,
        _AA.PROTOCOL_ERROR,
    ),
    (_AP.AWAITING_PUBCOMP, _AE.CONNECTION_ENDED): (_AP.AWAITING_PUBCOMP, _AA.KEEP),
    (_AP.AWAITING_PUBCOMP, _AE.REPLAY): (
        _AP.AWAITING_PUBCOMP,
        _AA.SEND_PUBREL,
    ),  # [MQTT-4.4.0-1]
    (_AP.AWAITING_PUBCOMP, _AE.DISPLACED): (_AP.ABSENT, _AA.FORGET),
    (_AP.AWAITING_PUBCOMP, _AE.SESSION_ENDED): (_AP.ABSENT, _AA.FORGET),
}


def outbound_step(phase: OutboundPhase, event: OutboundEvent) -> tuple[OutboundPhase, OutboundAction]:
    """Returns the next phase of an outbound exchange and the action of the session.

    Raises:
        SessionMisuse: A peer cannot have caused this event in this phase.
    """
    try:
        return OUTBOUND[phase, event]
    except KeyError:
        raise SessionMisuse(f"{event.name} for a packet id in phase {phase.name}") from None


def late_outbound_step(phase: OutboundPhase, event: OutboundEvent) -> tuple[OutboundPhase, OutboundAction]:
    """Acts like `outbound_step`, for an acknowledgement from an earlier connection of the session (rule 7).

    The action is RELEASE, COMPLETE or IGNORE. Ignoring is safe because the replay asks again. A late refusal must not send the
    message under another packet id: that could deliver it twice.
    """
    target, action = outbound_step(phase, event)
    return (target, action) if action in (OutboundAction.RELEASE, OutboundAction.COMPLETE) else (phase, OutboundAction.IGNORE)


def inbound_step(phase: InboundPhase, event: InboundEvent) -> tuple[InboundPhase, InboundAction]:
    """Returns the next phase of a QoS 2 exchange from the client and the action of the session.

    Raises:
        SessionMisuse: A peer cannot have caused this event in this phase.
    """
    try:
        return INBOUND[phase, event]
    except KeyError:
        raise SessionMisuse(f"{event.name} for a publication in phase {phase.name}") from None


def abandoned_step(phase: AbandonedPhase, event: AbandonedEvent) -> tuple[AbandonedPhase, AbandonedAction]:
    """Returns the next phase of the exchange of a message that was given up, and the action of the session.

    Raises:
        SessionMisuse: A peer cannot have caused this event in this phase.
    """
    try:
        return ABANDONED[phase, event]
    except KeyError:
        raise SessionMisuse(f"{event.name} for a given-up message in phase {phase.name}") from None
