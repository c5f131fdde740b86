"""Keeps an MQTT client's session, QoS 2 in both directions, and makes its answers. No sockets, no clock of its own.

It is written from the standard alone, like tests/integration/engine/strict_device.py, without the product's codecs. It notes
what the standard forbids (`DeviceFacts.oddities`) instead of raising, so that a run continues to its end.
"""

from dataclasses import dataclass, field
from enum import Enum

from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish
from trials.faults.account.facts import DeviceFacts, Publication

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, PINGRESP, DISCONNECT = 2, 3, 4, 5, 6, 7, 13, 14
_ERROR = 0x80
_DUP = 0x08


class Awaited(Enum):
    PUBACK = PUBACK
    PUBREC = PUBREC
    PUBCOMP = PUBCOMP


@dataclass(slots=True)
class Outgoing:
    publication: Publication
    awaited: Awaited


@dataclass(slots=True, kw_only=True)
class DeviceSession:
    """facts: written to. awaiting_pubrel: messages by packet id. outgoing: own publications by packet id, oldest first."""

    facts: DeviceFacts
    awaiting_pubrel: dict[int, bytes] = field(default_factory=dict)
    outgoing: dict[int, Outgoing] = field(default_factory=dict)
    packet_id_of: dict[bytes, int] = field(default_factory=dict)
    released: set[bytes] = field(default_factory=set)
    last_packet_id: int = 0

    @property
    def is_idle(self) -> bool:
        return not self.awaiting_pubrel and not self.outgoing

    def forget(self) -> None:
        """The session has ended: what is unfinished stays so."""
        for outgoing in self.outgoing.values():
            outgoing.publication.given_up = True
        self.outgoing.clear()
        self.awaiting_pubrel.clear()

    def resume(self) -> bytes:
        """Returns what has to be sent again on a new connection, in the original order [MQTT-4.4.0-1] [MQTT-4.6.0-1]."""
        return b"".join(
            _pubrel(packet_id)
            if outgoing.awaited is Awaited.PUBCOMP
            else self._publish(packet_id, outgoing.publication, flags=_DUP)
            for packet_id, outgoing in self.outgoing.items()
        )

    def publish(self, publication: Publication) -> bytes:
        """The PUBLISH of a new publication."""
        self.facts.publications.append(publication)
        if not publication.qos:
            return self._publish(0, publication)
        packet_id = self._next_packet_id()
        awaited = Awaited.PUBACK if publication.qos == 1 else Awaited.PUBREC
        self.outgoing[packet_id] = Outgoing(publication, awaited)
        return self._publish(packet_id, publication)

    def _next_packet_id(self) -> int:
        self.last_packet_id = self.last_packet_id % 65_535 + 1
        return self.last_packet_id

    def _publish(self, packet_id: int, publication: Publication, *, flags: int = 0) -> bytes:
        first_byte = 0x30 | publication.qos << 1 | flags
        v5 = b"" if self.facts.character.level == 5 else None
        publication.transmissions += 1
        return publish(publication.topic, publication.payload, first_byte=first_byte, packet_id=packet_id or None, v5=v5)

    def receive(self, kind: int, flags: int, body: bytes, now_s: float) -> bytes:
        """A packet of the server, CONNACK excepted. Returns the answer."""
        if kind == PUBLISH:
            return self._message(flags, body, now_s)
        if kind == PUBREL:
            return self._message_released(flags, body)
        if kind in (PUBACK, PUBREC, PUBCOMP):
            return self._acknowledged(kind, body)
        if kind not in (PINGRESP, DISCONNECT):
            self._odd(f"unexpected packet type {kind}")
        return b""

    # --- messages of the server ---------------------------------------------------------------------------------------------

    def _message(self, flags: int, body: bytes, now_s: float) -> bytes:
        qos, packet_id = flags >> 1 & 3, 0
        position = 2 + int.from_bytes(body[:2], "big")
        topic = body[2:position].decode()
        if qos:
            packet_id = int.from_bytes(body[position : position + 2], "big")
            position += 2
        if self.facts.character.level == 5:
            position += 1 + body[position]  # few properties or none: the length fits a byte
        payload = body[position:]
        if qos and not packet_id:
            self._odd(f"QoS {qos} and packet id 0 [MQTT-2.2.1-3]", payload)
            return b""
        return self._arrived(packet_id, topic, payload, flags, now_s)

    def _arrived(self, packet_id: int, topic: str, payload: bytes, flags: int, now_s: float) -> bytes:
        """Notes a message. packet_id: 0 at QoS 0. Returns the answer."""
        qos = flags >> 1 & 3
        if not qos:
            self._odd(f"came at QoS 0 for {topic}", payload)
            return b""
        self._check_repetition(packet_id, payload, qos=qos, dup=bool(flags & _DUP), now_s=now_s)
        if qos == 1:
            self.facts.taken[payload] += 1
            self.facts.handed[payload] += 1
        elif self._is_new(packet_id, payload):
            self.facts.taken[payload] += 1
        return acknowledgement(PUBACK if qos == 1 else PUBREC, packet_id)

    def _is_new(self, packet_id: int, payload: bytes) -> bool:
        """Begins the handshake of a QoS 2 message, unless it has begun."""
        known = self.awaiting_pubrel.get(packet_id)
        if known is None:
            self.awaiting_pubrel[packet_id] = payload
        elif known != payload:
            self._odd(f"id {packet_id} of an unfinished QoS 2 message was given to it [MQTT-2.2.1-4]", payload)
        return known is None

    def _check_repetition(self, packet_id: int, payload: bytes, *, qos: int, dup: bool, now_s: float) -> None:
        known_id = self.packet_id_of.get(payload)
        if known_id is None:
            self.packet_id_of[payload] = packet_id
            self.facts.order[qos].append(payload)
            self.facts.first_s[payload] = now_s
            return
        if not dup:
            self._odd("came again without DUP [MQTT-3.3.1-1]", payload)
        if known_id != packet_id:
            self._odd(f"came again under id {packet_id}, first {known_id}", payload)
        if payload in self.released:
            self._odd("PUBLISH after its PUBREL [MQTT-4.3.3-6]", payload)

    def _message_released(self, flags: int, body: bytes) -> bytes:
        packet_id = int.from_bytes(body[:2], "big")
        if flags != 2:
            self._odd(f"PUBREL with flags {flags} [MQTT-3.6.1-1]")
        payload = self.awaiting_pubrel.pop(packet_id, None)
        if payload is not None:
            self._completed(payload)
        return acknowledgement(PUBCOMP, packet_id)

    def _completed(self, payload: bytes) -> None:
        self.facts.handed[payload] += 1
        self.released.add(payload)

    # --- answers to own publications ----------------------------------------------------------------------------------------

    def _acknowledged(self, kind: int, body: bytes) -> bytes:
        """Unknown ids are ignored, but for PUBREC [MQTT-4.3.3-4]."""
        packet_id, reason_code = int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0
        outgoing = self.outgoing.get(packet_id)
        if reason_code >= _ERROR and kind != PUBCOMP:
            self._odd(f"packet type {kind} with reason code 0x{reason_code:02X}")
            self.outgoing.pop(packet_id, None)
            return b""
        if outgoing is not None and outgoing.awaited.value == kind:
            outgoing.publication.answered = True
            if kind == PUBREC:
                outgoing.awaited = Awaited.PUBCOMP
            else:
                del self.outgoing[packet_id]
        elif outgoing is not None and (outgoing.awaited, kind) != (Awaited.PUBCOMP, PUBREC):
            self._odd(f"packet type {kind} where {outgoing.awaited.name} is due", outgoing.publication.payload)
        return _pubrel(packet_id) if kind == PUBREC else b""

    def _odd(self, what: str, payload: bytes = b"") -> None:
        self.facts.oddities.append((what, payload))


def acknowledgement(kind: int, packet_id: int) -> bytes:
    return packet(kind << 4, packet_id.to_bytes(2, "big"))


def _pubrel(packet_id: int) -> bytes:
    return packet(PUBREL << 4 | 2, packet_id.to_bytes(2, "big"))
