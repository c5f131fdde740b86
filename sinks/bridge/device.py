"""The connection between a session and a device behind a broker. Pure: no broker, no Kafka, no clock.

Theory of operation
1. Commands of the session come in by `apply`, each sequence number once. Answers come by `device_answered` and `broker_answered`.
   After every call the host calls `pop_publications` (for the broker) and `pop_events` (for the session, in this order).
2. An answer names a message by its id, because packet ids differ at every hop. The id finds the packet id of the session's
   exchange. An answer to an older copy counts, even to one from before a reconnect: the device has the message.
3. An `Outbox` keeps the window, as on a gateway's socket: at most `send_quota` messages are out and unanswered.
4. A QoS 2 exchange is two steps for the session and one for the device, whose answer is PUBREC and PUBCOMP at once. If only the
   PUBREC got into the log, the session sends PUBREL, which is answered here.
5. The broker gets no copy of a message while it has to confirm an earlier one.
"""

from dataclasses import dataclass, field
from typing import Final

from sinks.bridge.settings import Acknowledgement
from sinks.host.command_order import CommandOrder, CommandStatus
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
from state.events import GatewayEvent, PubAckReceived, PubCompReceived, PubRecReceived
from state.model import ClientId, MessageId, PacketId, QoS, ReasonCode

_REFUSED_FROM: Final = 0x80
_NO_CLOCK: Final = 0
"""The time is not needed, because the broker counts down a message's expiry."""


@dataclass(slots=True, eq=False)
class DeviceConnection:
    """The connection of one device behind the broker, from its birth message until it is gone.

    Commands before `AcceptConnection` and after that end do nothing.
    """

    client_id: ClientId
    connection_id: int
    partition: int
    acknowledgement: Acknowledgement
    closed_for: int | None = None
    """The reason code with which the session has ended the connection; None = it has not."""
    has_build_mismatch: bool = False
    """Commands were repeated by another build: this connection has to end (sinks/host/command_order.py)."""
    repeated_commands: int = 0
    resends_dropped: int = 0
    _order: CommandOrder = field(default_factory=CommandOrder)
    _outbox: Outbox | None = None
    _exchanges: dict[PacketId, SendPublish] = field(default_factory=dict)
    _packet_ids: dict[MessageId, PacketId] = field(default_factory=dict)
    _with_broker: set[PacketId] = field(default_factory=set)
    _publications: list[SendPublish] = field(default_factory=list)
    _events: list[GatewayEvent] = field(default_factory=list)

    @property
    def key(self) -> bytes:
        return self.client_id.encode()

    @property
    def unacknowledged(self) -> int:
        """Returns how many QoS 1 and 2 messages are out and not answered."""
        return 0 if self._outbox is None else self._outbox.on_wire

    def pop_publications(self) -> list[SendPublish]:
        """Returns publications for the broker, in order. Call `broker_answered` once for each of QoS 1 and 2."""
        popped, self._publications = self._publications, []
        return popped

    def pop_events(self) -> list[GatewayEvent]:
        """Returns events for the log, in order."""
        popped, self._events = self._events, []
        return popped

    # --- from the session ------------------------------------------------------------------------------------------------------

    def apply(self, command: GatewayCommand, code: str) -> None:
        """Carries out a command, once.

        Args:
            code: The build of its record.
        """
        status = self._order.status_of(command.sequence, code)
        if status is not CommandStatus.NEW:
            self.repeated_commands += 1
            self.has_build_mismatch |= status is CommandStatus.BUILD_MISMATCH
            return
        outbox = self._outbox
        match command:
            case AcceptConnection() if outbox is None:
                self._outbox = Outbox(command.send_quota)
            case CloseConnection():
                self.closed_for = command.reason_code
            case _ if outbox is None or self.closed_for is not None:
                pass
            case SendPublish(qos=QoS.AT_MOST_ONCE):
                self._publications.append(command)
            case SendPublish():
                self._send(command, outbox)
            case SendPubRel(packet_id=packet_id):
                self.resends_dropped += outbox.release(packet_id) is WireAction.DROP
                outbox.completed(packet_id)
                self._forget(packet_id)
                self._events.append(PubCompReceived(connection_id=self.connection_id, packet_id=packet_id))
                self._send_due(outbox)
            case WithdrawPublish(packet_ids=packet_ids):
                outbox.withdraw(packet_ids)
                for packet_id in packet_ids:
                    self._forget(packet_id)
                self._send_due(outbox)
            case AcceptConnection() | DropAwaitingRel():
                pass  # a bridge accepts no QoS 2 publications of devices, so nothing awaits their PUBREL

    def _send(self, command: SendPublish, outbox: Outbox) -> None:
        action = outbox.send(command, _NO_CLOCK)
        if action is WireAction.DROP:
            self.resends_dropped += 1
            return
        self._exchanges[command.packet_id] = command
        self._packet_ids[command.message_id] = command.packet_id
        if action is WireAction.WRITE_PUBLISH:
            self._publish(command)

    def _send_due(self, outbox: Outbox) -> None:
        while (due := outbox.next_due(_NO_CLOCK)) is not None:
            command, _ = due
            assert not isinstance(command, FastPublish)  # a bridge has no fast path
            self._publish(command)

    def _publish(self, command: SendPublish) -> None:
        if command.packet_id in self._with_broker:
            self.resends_dropped += 1
            return
        self._with_broker.add(command.packet_id)
        self._publications.append(command)

    # --- answers ---------------------------------------------------------------------------------------------------------------

    def device_answered(self, message_id: MessageId, reason_code: int) -> bool:
        """The device has accepted (below 0x80) or refused a message. False: no exchange is open for it (a repeated answer)."""
        packet_id = self._packet_ids.get(message_id)
        if packet_id is None or self.acknowledgement is Acknowledgement.BROKER:
            return False
        self._answered(packet_id, reason_code)
        return True

    def broker_answered(self, command: SendPublish, reason_code: int) -> None:
        """The broker has accepted or refused this publication. In `broker` mode that is the device's answer."""
        packet_id = command.packet_id
        exchange = self._exchanges.get(packet_id)
        if exchange is None or exchange.message_id != command.message_id:
            return  # answered or given up meanwhile; the packet id may be another message's by now
        self._with_broker.discard(packet_id)
        if reason_code >= _REFUSED_FROM or self.acknowledgement is Acknowledgement.BROKER:
            self._answered(packet_id, reason_code)

    def _answered(self, packet_id: PacketId, reason_code: int) -> None:
        outbox, connection_id = self._outbox, self.connection_id
        if outbox is None:
            return
        qos = self._exchanges[packet_id].qos
        self._forget(packet_id)
        refused = reason_code >= _REFUSED_FROM
        if qos == QoS.AT_LEAST_ONCE:
            outbox.acknowledged(packet_id)
            self._events.append(PubAckReceived(connection_id=connection_id, packet_id=packet_id, reason_code=reason_code))
        else:
            outbox.received(packet_id, reason_code)
            self._events.append(
                PubRecReceived(connection_id=connection_id, packet_id=packet_id, reason_code=reason_code, pubrel_sent=not refused)
            )
            if not refused:
                outbox.completed(packet_id)
                self._events.append(PubCompReceived(connection_id=connection_id, packet_id=packet_id))
        outbox.withdraw((packet_id,))  # still held back here when the answer is to a copy from before a reconnect
        self._send_due(outbox)

    def _forget(self, packet_id: PacketId) -> None:
        exchange = self._exchanges.pop(packet_id, None)
        self._with_broker.discard(packet_id)
        if exchange is not None and self._packet_ids.get(exchange.message_id) == packet_id:
            del self._packet_ids[exchange.message_id]


def broker_reason(command: SendPublish, reason_code: int) -> int:
    """Returns the reason code that the broker's last answer stands for.

    paho answers every PUBREC with PUBREL, a refusal too, and shows only the PUBCOMP. A 0x92 there means a refusal whose reason is
    lost. It counts as 0x97, because a broker that reports overload must not be retried at once.
    """
    if command.qos == QoS.EXACTLY_ONCE and reason_code == ReasonCode.PACKET_ID_NOT_FOUND:
        return ReasonCode.QUOTA_EXCEEDED
    return reason_code
