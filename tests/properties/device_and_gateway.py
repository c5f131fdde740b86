"""A device, its gateways and the log, as small as the properties of a session need them.

The wire is ordered, and what is on it is lost with the connection. Both follow the rules that the session relies on:

 1. A gateway applies each command of its connection once, in order, and drops commands of connections that it does not hold.
 2. It meters the wire and drops resends that have come too late, by the gateway's own code (sinks/host/outbox.py).
 3. What the device says is in the log before the device is answered.
 4. A device keeps its half of the session for as long as the session lives.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from sinks.host.outbox import FastPublish, Outbox
from sinks.host.wire_table import WireAction
from state.commands import (
    AcceptConnection,
    CloseConnection,
    DropAwaitingRel,
    GatewayCommand,
    SendPublish,
    SendPubRel,
    WithdrawPublish,
)
from state.events import (
    ConnectionLost,
    GatewayEvent,
    PubAckReceived,
    PubCompReceived,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
)
from state.model import QoS

HandOn = Literal["at PUBLISH", "at PUBREL"]


@dataclass(frozen=True)
class PubRecToDevice:
    """The gateway's answer to a QoS 2 publication of the device."""

    packet_id: int


@dataclass(frozen=True)
class PubCompToDevice:
    packet_id: int


ToDevice = GatewayCommand | PubRecToDevice | PubCompToDevice


@dataclass
class Publication:
    """A QoS 2 publication of the device; content is unique."""

    packet_id: int
    content: bytes
    sent: bool = False
    received: bool = False  # PUBREC has come: what is resent is PUBREL


@dataclass
class Device:
    """hand_on: the two methods that the standard allows a receiver of QoS 2 (MQTT 5, 4.3.3). seen: what its application got."""

    hand_on: HandOn
    seen: Counter[bytes] = field(default_factory=Counter)
    received_ids: dict[int, bytes] = field(default_factory=dict)
    publications: dict[int, Publication] = field(default_factory=dict)
    last_id: int = 0

    def forget(self) -> None:
        self.received_ids.clear()
        self.publications.clear()
        self.last_id = 0

    def take(self, publish: SendPublish) -> None:
        """Rule 4.3.3 on the receiving side, for a PUBLISH that the device accepts."""
        if publish.qos < QoS.EXACTLY_ONCE:
            self.seen[publish.payload] += 1
        elif publish.packet_id not in self.received_ids:
            self.received_ids[publish.packet_id] = publish.payload
            if self.hand_on == "at PUBLISH":
                self.seen[publish.payload] += 1

    def release(self, packet_id: int) -> bool:
        """PUBREL; False if the id is unknown."""
        if packet_id not in self.received_ids:
            return False
        payload = self.received_ids.pop(packet_id)
        if self.hand_on == "at PUBREL":
            self.seen[payload] += 1
        return True


class Gateway:
    """One connection's worth of a gateway. answers_pubrec: it sends PUBREL itself, as soon as the PUBREC is in the log."""

    def __init__(
        self, connection_id: int, version: int, log: deque[GatewayEvent], *, answers_pubrec: bool, receive_maximum: int = 65_535
    ) -> None:
        self.connection_id = connection_id
        self.version = version
        self.log = log
        self.answers_pubrec = answers_pubrec
        self.wire: deque[ToDevice] = deque()
        self.open = True
        self.accepted = False
        self.sequence = 0
        self.receive_maximum = receive_maximum
        self.outbox = Outbox(1)
        self.unanswered: set[int] = set()  # packet ids as the device counts them
        self.released: set[int] = set()  # those for which PUBREL is on the wire and PUBCOMP has not come

    # --- from the engine ----------------------------------------------------------------------------------------------------

    def apply(self, command: GatewayCommand) -> None:
        assert command.sequence == self.sequence + 1, "commands of a connection are numbered 1, 2, 3 …"
        self.sequence = command.sequence
        if not self.open:
            return
        assert self.accepted or isinstance(command, AcceptConnection | CloseConnection), "nothing is sent before CONNACK"
        match command:
            case AcceptConnection():
                assert not self.accepted
                self.accepted = True
                self.outbox = Outbox(command.send_quota, self.receive_maximum if self.version == 5 else None)
                self.wire.append(command)
            case SendPublish(qos=QoS.AT_MOST_ONCE):
                self.wire.append(command)
            case SendPublish():
                if self.outbox.send(command, 0) is WireAction.WRITE_PUBLISH:
                    self._write(command)
            case SendPubRel():
                self.outbox.release(command.packet_id)
                self.released.add(command.packet_id)
                self.wire.append(command)
            case WithdrawPublish():
                self.outbox.withdraw(command.packet_ids)
            case CloseConnection():
                self.open = False
            case DropAwaitingRel():
                pass
        self._fill()

    def _fill(self) -> None:
        while (due := self.outbox.next_due(0)) is not None:
            assert not isinstance(due[0], FastPublish)
            self._write(due[0])
        assert self.outbox.on_wire - self.outbox.owed <= self.outbox.send_quota

    def _write(self, publish: SendPublish) -> None:
        assert publish.packet_id not in self.released, "PUBLISH after PUBREL"
        self.wire.append(publish)
        self.unanswered.add(publish.packet_id)
        assert len(self.unanswered) <= self.receive_maximum, "more than the Receive Maximum"

    # --- from the device ----------------------------------------------------------------------------------------------------

    def puback(self, packet_id: int, reason_code: int) -> None:
        self.log.append(PubAckReceived(connection_id=self.connection_id, packet_id=packet_id, reason_code=reason_code))
        self.unanswered.discard(packet_id)
        self.outbox.acknowledged(packet_id)
        self._fill()

    def pubrec(self, packet_id: int, reason_code: int) -> None:
        if reason_code >= 0x80:
            self.unanswered.discard(packet_id)
        answers = self.outbox.received(packet_id, reason_code) and self.answers_pubrec
        self.log.append(
            PubRecReceived(connection_id=self.connection_id, packet_id=packet_id, reason_code=reason_code, pubrel_sent=answers)
        )
        if answers:
            self.released.add(packet_id)
            self.wire.append(SendPubRel(connection_id=self.connection_id, partition=0, sequence=0, packet_id=packet_id))
        self._fill()

    def pubcomp(self, packet_id: int, reason_code: int) -> None:
        self.log.append(PubCompReceived(connection_id=self.connection_id, packet_id=packet_id, reason_code=reason_code))
        self.unanswered.discard(packet_id)
        self.released.discard(packet_id)
        self.outbox.completed(packet_id)
        self._fill()

    def publish(self, publication: Publication, publication_id: str) -> None:
        self.log.append(
            PublishReceived(
                connection_id=self.connection_id,
                packet_id=publication.packet_id,
                topic="up",
                payload=publication.content,
                dup=publication.sent,
                publication_id=publication_id,
            )
        )
        self.wire.append(PubRecToDevice(publication.packet_id))

    def pubrel(self, packet_id: int) -> None:
        self.log.append(PubRelReceived(connection_id=self.connection_id, packet_id=packet_id))
        self.wire.append(PubCompToDevice(packet_id))

    def lose(self) -> None:
        self.open = False
        self.wire.clear()
        self.log.append(ConnectionLost(connection_id=self.connection_id, unanswered=self.outbox.oldest_unanswered()))
