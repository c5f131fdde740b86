"""The legal steps of one packet id on one connection to a device, as a table. Nothing else of the sinks compares these phases.

Rules:

 1. The first PUBLISH of an exchange goes out when a slot of the device's Receive Maximum is free [MQTT-4.9.0-2]; it holds the
    slot in the phases of `HOLDS_SLOT` and in no other.
 2. PUBACK, PUBCOMP and a PUBREC of 0x80 and above finish the exchange and free the slot; a PUBREC below 0x80 keeps it.
 3. A PUBREC that may be answered is answered by PUBREL at once, even if it is repeated. All others are left to the session.
 4. After PUBREC no PUBLISH is sent again [MQTT-4.3.3-6], nor after the end of the exchange: a completed QoS 2 message that is
    sent again would be delivered twice. The session retries by its own clock and cannot know of either yet.
 5. A PUBREL that the session sends again on a new connection takes no slot.
 6. An acknowledgement of the wrong kind, or for an unknown packet id, changes nothing: the session judges it.
 7. A message of the fast path is counted with the slots when the gateway takes it, and is written when Kafka has it and a slot is
    free (protocol.md, 7; sinks/host/outbox.py, rule 3). Its id must be free for that. Between the two, whatever the session sends
    under the id is the same message, and is dropped.

Theory of operation. A packet id is in exactly one phase; ABSENT is the phase of every id that nothing has been sent for on this
connection. A message that waits for a slot has not changed anything on the wire yet: it stands in a queue (`Outbox`), and the
phase of its id is still that of the exchange before it. A packet id stays FINISHED until its next message goes out, so that a
resend that comes too late is recognised. Every event can happen in every phase; what is not in the table changes nothing.
"""

from enum import IntEnum
from typing import Final, TypeAlias


class WirePhase(IntEnum):
    """The open step of a packet id. Integers, because the table is read for every packet."""

    ABSENT = 0
    AWAITING_PUBACK = 1
    AWAITING_PUBREC = 2
    AWAITING_PUBCOMP = 3
    RELEASED = 4
    """The session has sent PUBREL for a PUBLISH of an earlier connection."""
    FINISHED = 5
    """The exchange ended on this connection."""
    RESERVED = 6
    """A message of the fast path is taken, and is not written yet."""


class WireEvent(IntEnum):
    PUBLISH = 0
    """The session sends a message for the first time on any connection."""
    RESEND = 1
    """The session sends it again: DUP is set."""
    SLOT_FOR_QOS1 = 2
    """The message is next, and a slot is free for it."""
    SLOT_FOR_QOS2 = 3
    PUBACK = 4
    PUBREC = 5
    PUBREC_REFUSED = 6
    PUBREL = 7
    """The session sends PUBREL."""
    PUBCOMP = 8
    WITHDRAW = 9
    """The session has given the message up, and the client has no Receive Maximum or was not sent it."""
    TAKE = 10
    """The gateway has taken a message of the fast path."""
    CONFIRM_QOS1 = 11
    """Kafka has the record that says so."""
    CONFIRM_QOS2 = 12


class WireAction(IntEnum):
    NOTHING = 0
    WAIT_FOR_SLOT = 1
    WRITE_PUBLISH = 2
    DROP = 3
    ANSWER_PUBREL = 4
    TAKE_SLOT = 5


WireTable: TypeAlias = dict[tuple[WirePhase, WireEvent], tuple[WirePhase, WireAction]]

HOLDS_SLOT: Final = frozenset(
    {WirePhase.AWAITING_PUBACK, WirePhase.AWAITING_PUBREC, WirePhase.AWAITING_PUBCOMP, WirePhase.RESERVED}
)

AWAITS_ANSWER: Final = frozenset({WirePhase.AWAITING_PUBACK, WirePhase.AWAITING_PUBREC})
"""The PUBLISH was written, and the device has not answered it."""

_P, _E, _A = WirePhase, WireEvent, WireAction

WIRE: Final[WireTable] = {
    # A new message under an id waits for a slot, whatever the exchange before it has come to, and then goes out.
    **{(phase, _E.PUBLISH): (phase, _A.WAIT_FOR_SLOT) for phase in _P if phase is not _P.RESERVED},
    **{(phase, _E.SLOT_FOR_QOS1): (_P.AWAITING_PUBACK, _A.WRITE_PUBLISH) for phase in _P if phase is not _P.RESERVED},
    **{(phase, _E.SLOT_FOR_QOS2): (_P.AWAITING_PUBREC, _A.WRITE_PUBLISH) for phase in _P if phase is not _P.RESERVED},
    #
    (_P.ABSENT, _E.RESEND): (_P.ABSENT, _A.WAIT_FOR_SLOT),  # the session replays it after a reconnect
    (_P.ABSENT, _E.PUBREL): (_P.RELEASED, _A.NOTHING),
    (_P.ABSENT, _E.TAKE): (_P.RESERVED, _A.TAKE_SLOT),
    #
    (_P.AWAITING_PUBACK, _E.RESEND): (_P.AWAITING_PUBACK, _A.WRITE_PUBLISH),
    (_P.AWAITING_PUBACK, _E.PUBACK): (_P.FINISHED, _A.NOTHING),  # [MQTT-4.9.0-2]
    (_P.AWAITING_PUBACK, _E.PUBREL): (_P.AWAITING_PUBCOMP, _A.NOTHING),
    (_P.AWAITING_PUBACK, _E.WITHDRAW): (_P.ABSENT, _A.NOTHING),
    #
    (_P.AWAITING_PUBREC, _E.RESEND): (_P.AWAITING_PUBREC, _A.WRITE_PUBLISH),
    (_P.AWAITING_PUBREC, _E.PUBREC): (_P.AWAITING_PUBCOMP, _A.ANSWER_PUBREL),  # [MQTT-4.3.3-4]
    (_P.AWAITING_PUBREC, _E.PUBREC_REFUSED): (_P.FINISHED, _A.NOTHING),  # [MQTT-4.4.0-2] [MQTT-4.9.0-2]
    (_P.AWAITING_PUBREC, _E.PUBREL): (_P.AWAITING_PUBCOMP, _A.NOTHING),
    (_P.AWAITING_PUBREC, _E.WITHDRAW): (_P.ABSENT, _A.NOTHING),
    #
    (_P.AWAITING_PUBCOMP, _E.RESEND): (_P.AWAITING_PUBCOMP, _A.DROP),  # [MQTT-4.3.3-6]
    (_P.AWAITING_PUBCOMP, _E.PUBREC): (_P.AWAITING_PUBCOMP, _A.ANSWER_PUBREL),
    (_P.AWAITING_PUBCOMP, _E.PUBCOMP): (_P.FINISHED, _A.NOTHING),  # [MQTT-4.9.0-2]
    (_P.AWAITING_PUBCOMP, _E.WITHDRAW): (_P.ABSENT, _A.NOTHING),
    #
    (_P.RELEASED, _E.RESEND): (_P.RELEASED, _A.DROP),  # [MQTT-4.3.3-6]
    (_P.RELEASED, _E.PUBREC): (_P.RELEASED, _A.ANSWER_PUBREL),
    (_P.RELEASED, _E.PUBCOMP): (_P.FINISHED, _A.NOTHING),
    (_P.RELEASED, _E.WITHDRAW): (_P.ABSENT, _A.NOTHING),
    #
    (_P.FINISHED, _E.RESEND): (_P.FINISHED, _A.DROP),
    (_P.FINISHED, _E.PUBREL): (_P.RELEASED, _A.NOTHING),
    (_P.FINISHED, _E.TAKE): (_P.RESERVED, _A.TAKE_SLOT),
    #
    (_P.RESERVED, _E.PUBLISH): (_P.RESERVED, _A.DROP),
    (_P.RESERVED, _E.RESEND): (_P.RESERVED, _A.DROP),
    (_P.RESERVED, _E.WITHDRAW): (_P.ABSENT, _A.NOTHING),
    (_P.RESERVED, _E.CONFIRM_QOS1): (_P.AWAITING_PUBACK, _A.WRITE_PUBLISH),
    (_P.RESERVED, _E.CONFIRM_QOS2): (_P.AWAITING_PUBREC, _A.WRITE_PUBLISH),
}
