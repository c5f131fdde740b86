"""Holds QoS 2 publications of the client that it has not released yet, and remembers abandoned and repeated ones.

`AwaitingRel` owns the phase of every inbound exchange: which of its containers `entries` and `tombstones` has the packet id.
`step` asks the table (state/transitions.py) and moves the id. The caller carries out the action.
"""

import hashlib
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from state.model import PacketId
from state.transitions import InboundAction, InboundEvent, InboundPhase, inbound_step

MAX_REPEATED: Final = 1_024
"""Repeated publications that are remembered, at some 25 bytes each in the stored session."""


def content_hash(topic: str, payload: bytes) -> bytes:
    """Returns eight bytes that distinguish a repetition of a publication from a new one with the same packet id."""
    return hashlib.blake2b(topic.encode() + b"\0" + payload, digest_size=8).digest()


@dataclass(slots=True, kw_only=True)
class AwaitingRelease:
    """A publication that awaits PUBREL.

    Attributes:
        received_ms: `await_rel_timeout` counts from here.
    """

    content: bytes
    received_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Says that a gateway was to hand a publication on, and may have died before.

    Attributes:
        connection_id: The gateway's connection; of repetitions the newest one.
        publication_id: The `inflight-id` of the publication.
        since_ms: Time by the log of its first PUBLISH.
    """

    connection_id: int
    publication_id: str
    since_ms: int


class AwaitingRel:
    """The awaiting-rel set and its tombstones, both in order of arrival.

    A packet id is in one of them or in none, so there are never more than 65,535, at about 20 bytes each in the stored session.

    Attributes:
        repeated: Packet id and content of recent publications with DUP=1, released or not, and the time of the newest repetition;
            oldest first. They identify overtaken publications of an earlier connection.
        hand_overs: By packet id, of entries and tombstones that a gateway was to hand on. Without one the session has done it.
    """

    __slots__ = ("entries", "hand_overs", "repeated", "tombstones")

    def __init__(self) -> None:
        self.entries: dict[PacketId, AwaitingRelease] = {}
        self.tombstones: dict[PacketId, bytes] = {}
        self.repeated: dict[tuple[PacketId, bytes], int] = {}
        self.hand_overs: dict[PacketId, HandOver] = {}

    def content(self, packet_id: PacketId) -> bytes | None:
        """Returns the content of the publication under this packet id; None = there is none."""
        entry = self.entries.get(packet_id)
        return self.tombstones.get(packet_id) if entry is None else entry.content

    def phase(self, packet_id: PacketId) -> InboundPhase:
        if packet_id in self.entries:
            return InboundPhase.AWAITING_PUBREL
        return InboundPhase.TOMBSTONE if packet_id in self.tombstones else InboundPhase.ABSENT

    def is_late_repetition(self, packet_id: PacketId, content: bytes, *, dup: bool) -> bool:
        """Returns True if a publication repeats an abandoned one.

        DUP is required: a client that starts its ids again may publish the same content under the same id as a new publication.
        """
        return dup and self.tombstones.get(packet_id) == content

    def is_other_content(self, packet_id: PacketId, content: bytes, *, dup: bool) -> bool:
        """Returns True if a publication without DUP has an id that awaits PUBREL of another one."""
        entry = self.entries.get(packet_id)
        return entry is not None and not dup and entry.content != content

    def record_repetition(self, packet_id: PacketId, content: bytes, now_ms: int) -> None:
        """Records that the client has sent this publication with DUP=1."""
        self.repeated.pop((packet_id, content), None)
        self.repeated[packet_id, content] = now_ms
        if len(self.repeated) > MAX_REPEATED:
            del self.repeated[next(iter(self.repeated))]

    def was_repeated(self, packet_id: PacketId, content: bytes) -> bool:
        return (packet_id, content) in self.repeated

    def forget_repeated(self, until_ms: int) -> None:
        """Forgets publications that were last repeated at or before that time."""
        for repetition, _ in list(takewhile(lambda item: item[1] <= until_ms, self.repeated.items())):
            del self.repeated[repetition]

    def step(self, packet_id: PacketId, event: InboundEvent, *, content: bytes = b"", now_ms: int = 0) -> InboundAction:
        """Makes one step of the exchange under this packet id, if there is one. Raises SessionMisuse like `inbound_step`.

        Args:
            content: Hash of the publication that enters the set or leaves a tombstone.
            now_ms: Time at which it enters.
        """
        phase = self.phase(packet_id)
        target, action = inbound_step(phase, event)
        if target is phase and event is not InboundEvent.OTHER_CONTENT:
            return action
        self.entries.pop(packet_id, None)
        self.tombstones.pop(packet_id, None)
        if target is InboundPhase.ABSENT or action is InboundAction.FORWARD:
            self.hand_overs.pop(packet_id, None)
        if target is InboundPhase.AWAITING_PUBREL:
            self.entries[packet_id] = AwaitingRelease(content=content, received_ms=now_ms)
        elif target is InboundPhase.TOMBSTONE:
            self.tombstones[packet_id] = content
        return action

    def oldest_received_ms(self) -> int | None:
        oldest = next(iter(self.entries.values()), None)
        return None if oldest is None else oldest.received_ms

    def older_than(self, time_ms: int) -> list[PacketId]:
        """Returns the ids received at or before that time, oldest first."""
        return [packet_id for packet_id, _ in takewhile(lambda item: item[1].received_ms <= time_ms, self.entries.items())]
