"""The legal steps of MQTT's delivery handshakes, as two tables. Nothing else in Inflight compares phases.

Rules of the outbound exchange (session → client), one row each below:

 1. A QoS 1 PUBLISH waits for PUBACK; a QoS 2 PUBLISH waits for PUBREC [MQTT-4.3.3-3], then its PUBREL waits for PUBCOMP.
 2. What is sent again is the PUBLISH of rule 1 or the PUBREL, never anything else; after PUBREC never PUBLISH [MQTT-4.3.3-6].
 3. A PUBACK or PUBREC of 0x80 or more ends the exchange: the packet id is free and no PUBREL follows [MQTT-4.4.0-2].
 4. A PUBREC that comes again is answered by PUBREL again.
 5. An acknowledgement of the wrong kind for a live packet id is a protocol error.
 6. An unknown packet id is nobody's exchange: PUBACK and PUBCOMP are ignored, PUBREC is answered so that the client can let go.

Rules of the inbound exchange (client → session, QoS 2):

 7. A packet id outside the set is a new publication and is handed on once, whatever DUP says.
 8. A packet id inside the set is a repetition, whatever DUP says [MQTT-4.3.3-10]; it is not handed on.
 9. PUBREL releases the id; so does `await_rel_timeout`, which leaves a tombstone.
10. A tombstone recognises a late repetition (same id, same content, DUP=1); that one enters the set again but is not handed on.

Theory of operation. An exchange is in exactly one phase; ABSENT is the phase of every packet id that no exchange holds, so that
a lookup never fails and the tables are total over what a peer can send. The step functions return the next phase and the action
that the session carries out. A pair that is not in a table cannot be caused by a peer (a timer of an absent exchange, say): it is
ours, and raises SessionMisuse.
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
    PUBACK = auto()
    PUBACK_REFUSED = auto()
    PUBREC = auto()
    PUBREC_REFUSED = auto()
    PUBCOMP = auto()
    RETRY_DUE = auto()
    REPLAY = auto()


class OutboundAction(Enum):
    COMPLETE = auto()
    RELEASE = auto()
    REFUSE = auto()
    RESEND_PUBLISH = auto()
    RESEND_PUBREL = auto()
    ANSWER_PUBREL = auto()
    ANSWER_UNKNOWN_PUBREC = auto()
    IGNORE = auto()
    PROTOCOL_ERROR = auto()


class InboundPhase(Enum):
    ABSENT = auto()
    AWAITING_PUBREL = auto()
    TOMBSTONE = auto()


class InboundEvent(Enum):
    PUBLISH = auto()
    LATE_REPETITION = auto()
    PUBREL = auto()
    TIMEOUT = auto()


class InboundAction(Enum):
    HAND_ON = auto()
    RECOGNISE = auto()
    RELEASE = auto()
    ABANDON = auto()
    IGNORE = auto()


OutboundTable: TypeAlias = dict[tuple[OutboundPhase, OutboundEvent], tuple[OutboundPhase, OutboundAction]]
InboundTable: TypeAlias = dict[tuple[InboundPhase, InboundEvent], tuple[InboundPhase, InboundAction]]

_P, _E, _A = OutboundPhase, OutboundEvent, OutboundAction

OUTBOUND: Final[OutboundTable] = {
    (_P.AWAITING_PUBACK, _E.PUBACK): (_P.ABSENT, _A.COMPLETE),  # [MQTT-4.3.2-3]
    (_P.AWAITING_PUBACK, _E.PUBACK_REFUSED): (_P.ABSENT, _A.REFUSE),  # [MQTT-4.4.0-2]
    (_P.AWAITING_PUBACK, _E.PUBREC): (_P.AWAITING_PUBACK, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBACK, _E.PUBREC_REFUSED): (_P.AWAITING_PUBACK, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBACK, _E.PUBCOMP): (_P.AWAITING_PUBACK, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBACK, _E.RETRY_DUE): (_P.AWAITING_PUBACK, _A.RESEND_PUBLISH),
    (_P.AWAITING_PUBACK, _E.REPLAY): (_P.AWAITING_PUBACK, _A.RESEND_PUBLISH),  # [MQTT-4.4.0-1]
    (_P.AWAITING_PUBREC, _E.PUBREC): (_P.AWAITING_PUBCOMP, _A.RELEASE),  # [MQTT-4.3.3-4]
    (_P.AWAITING_PUBREC, _E.PUBREC_REFUSED): (_P.ABSENT, _A.REFUSE),  # [MQTT-4.4.0-2]
    (_P.AWAITING_PUBREC, _E.PUBACK): (_P.AWAITING_PUBREC, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBREC, _E.PUBACK_REFUSED): (_P.AWAITING_PUBREC, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBREC, _E.PUBCOMP): (_P.AWAITING_PUBREC, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBREC, _E.RETRY_DUE): (_P.AWAITING_PUBREC, _A.RESEND_PUBLISH),
    (_P.AWAITING_PUBREC, _E.REPLAY): (_P.AWAITING_PUBREC, _A.RESEND_PUBLISH),  # [MQTT-4.4.0-1]
    (_P.AWAITING_PUBCOMP, _E.PUBCOMP): (_P.ABSENT, _A.COMPLETE),  # [MQTT-4.3.3-5]
    (_P.AWAITING_PUBCOMP, _E.PUBREC): (_P.AWAITING_PUBCOMP, _A.ANSWER_PUBREL),
    (_P.AWAITING_PUBCOMP, _E.PUBREC_REFUSED): (_P.ABSENT, _A.COMPLETE),  # accepted once, and the client has let the id go
    (_P.AWAITING_PUBCOMP, _E.PUBACK): (_P.AWAITING_PUBCOMP, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBCOMP, _E.PUBACK_REFUSED): (_P.AWAITING_PUBCOMP, _A.PROTOCOL_ERROR),
    (_P.AWAITING_PUBCOMP, _E.RETRY_DUE): (_P.AWAITING_PUBCOMP, _A.RESEND_PUBREL),  # [MQTT-4.3.3-6]
    (_P.AWAITING_PUBCOMP, _E.REPLAY): (_P.AWAITING_PUBCOMP, _A.RESEND_PUBREL),  # [MQTT-4.4.0-1]
    (_P.ABSENT, _E.PUBACK): (_P.ABSENT, _A.IGNORE),
    (_P.ABSENT, _E.PUBACK_REFUSED): (_P.ABSENT, _A.IGNORE),
    (_P.ABSENT, _E.PUBREC): (_P.ABSENT, _A.ANSWER_UNKNOWN_PUBREC),
    (_P.ABSENT, _E.PUBREC_REFUSED): (_P.ABSENT, _A.IGNORE),
    (_P.ABSENT, _E.PUBCOMP): (_P.ABSENT, _A.IGNORE),
}

INBOUND: Final[InboundTable] = {
    (InboundPhase.ABSENT, InboundEvent.PUBLISH): (InboundPhase.AWAITING_PUBREL, InboundAction.HAND_ON),  # [MQTT-4.3.3-12]
    (InboundPhase.ABSENT, InboundEvent.PUBREL): (InboundPhase.ABSENT, InboundAction.IGNORE),
    (InboundPhase.AWAITING_PUBREL, InboundEvent.PUBLISH): (InboundPhase.AWAITING_PUBREL, InboundAction.IGNORE),  # [MQTT-4.3.3-10]
    (InboundPhase.AWAITING_PUBREL, InboundEvent.PUBREL): (InboundPhase.ABSENT, InboundAction.RELEASE),  # [MQTT-4.3.3-11]
    (InboundPhase.AWAITING_PUBREL, InboundEvent.TIMEOUT): (InboundPhase.TOMBSTONE, InboundAction.ABANDON),
    (InboundPhase.TOMBSTONE, InboundEvent.PUBLISH): (InboundPhase.AWAITING_PUBREL, InboundAction.HAND_ON),
    (InboundPhase.TOMBSTONE, InboundEvent.LATE_REPETITION): (InboundPhase.AWAITING_PUBREL, InboundAction.RECOGNISE),
    (InboundPhase.TOMBSTONE, InboundEvent.PUBREL): (InboundPhase.TOMBSTONE, InboundAction.IGNORE),
}

FIRST_PHASE: Final = {1: OutboundPhase.AWAITING_PUBACK, 2: OutboundPhase.AWAITING_PUBREC}
"""The phase in which a PUBLISH starts, by its QoS."""


def outbound_step(phase: OutboundPhase, event: OutboundEvent) -> tuple[OutboundPhase, OutboundAction]:
    """The next phase of an exchange to the client, and what to do. Raises SessionMisuse for what only we could have caused."""
    try:
        return OUTBOUND[phase, event]
    except KeyError:
        raise SessionMisuse(f"{event.name} for a packet id in phase {phase.name}") from None


def inbound_step(phase: InboundPhase, event: InboundEvent) -> tuple[InboundPhase, InboundAction]:
    """The next phase of a QoS 2 exchange from the client, and what to do. Raises SessionMisuse like `outbound_step`."""
    try:
        return INBOUND[phase, event]
    except KeyError:
        raise SessionMisuse(f"{event.name} for a publication in phase {phase.name}") from None
