"""A device whose CONNECT was accepted: what its packets mean, and what the engine's commands do to it.

1. What the device says becomes a record first; the answer goes out when Kafka has confirmed the record, in the order of the
   requests [MQTT-4.6.0-2].
2. Packet ids, retries, the judgement of acknowledgements: all the session's. Kept here are only the window of what is on this
   wire (`Outbound`), what was sent before the session has read it (`FastSender`), the packet ids that await PUBREL (`Inbound`)
   and which topic filters exist (`SubscriptionJudge`).
"""

from sinks.fast_path.offering import PathHere
from sinks.mqtt.access.grant import Grant
from sinks.mqtt.codec import framing
from sinks.mqtt.codec.acknowledgements import encode_acknowledgement, plain_acknowledgement
from sinks.mqtt.codec.packets import (
    PING_RESP,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from sinks.mqtt.connection.appends import Append
from sinks.mqtt.connection.fast_sender import FastSender
from sinks.mqtt.connection.handshake import Codec
from sinks.mqtt.connection.inbound import Inbound
from sinks.mqtt.connection.outbound import FastSend, Outbound
from sinks.mqtt.connection.output import ConnectionOutput
from sinks.mqtt.connection.subscribing import SubscriptionJudge
from sinks.mqtt.limits.refusals import Limit
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import (
    AcceptConnection,
    CloseFastPath,
    DropAwaitingRel,
    GatewayCommand,
    OfferPublish,
    OpenFastPath,
    SendPublish,
    SendPubRel,
    WithdrawPublish,
)
from state.errors import ProtocolViolation
from state.events import ClientDisconnected, Subscribed, Unsubscribed
from state.model import PacketId, ReasonCode
from state.records.events import encode_puback, encode_pubcomp, encode_pubrec, encode_pubrel


class ConnectedDevice:
    """connect: what the device asked for; accept: what it got. Times are milliseconds of one monotonic clock."""

    __slots__ = (
        "_connect",
        "_connection_id",
        "_counters",
        "_decode",
        "_fast",
        "_inbound",
        "_outbound",
        "_output",
        "_records",
        "_subscriptions",
    )

    def __init__(
        self,
        connect: Connect,
        accept: AcceptConnection,
        *,
        client_id: str,
        codec: Codec,
        grant: Grant,
        output: ConnectionOutput,
        counters: GatewayCounters,
        settings: GatewaySettings,
        is_blocked: bool,
        now_ms: int,
    ) -> None:
        self._connect = connect
        self._connection_id = accept.connection_id
        self._counters = counters
        self._decode = codec.decode
        self._output = output
        self._records = output.records
        self._outbound = Outbound(
            send_quota=accept.send_quota,
            receive_maximum=connect.receive_maximum if connect.protocol_version >= 5 else None,
            encode=codec.encode_publish,
            output=output.packets,
            counters=counters,
            max_blocked_qos0_bytes=settings.device_limits.max_blocked_qos0_bytes,
            is_blocked=is_blocked,
        )
        self._fast = FastSender(
            connect,
            accept.connection_id,
            encode=codec.encode_publish,
            outbound=self._outbound,
            output=output,
            counters=counters,
            settings=settings,
        )
        self._inbound = Inbound(
            client_id=client_id,
            connection_id=accept.connection_id,
            is_v5=connect.protocol_version >= 5,
            grant=grant,
            counters=counters,
            publish_rate=TokenBucket(settings.max_publish_rate, now_ms),
            topic_alias_maximum=settings.topic_alias_maximum,
            max_topic_levels=settings.device_limits.max_topic_levels,
            awaiting_rel=accept.awaiting_rel,
            max_awaiting_rel=accept.max_awaiting_rel,
        )
        if connect.protocol_version < 5 and accept.max_awaiting_rel:
            self._records.max_unanswered = accept.max_awaiting_rel
        self._subscriptions = SubscriptionJudge(
            accept.topic_filters,
            grant=grant,
            max_subscriptions=accept.max_subscriptions,
            max_subscription_bytes=accept.max_subscription_bytes,
            max_topic_levels=settings.device_limits.max_topic_levels,
        )

    # --- from the engine ------------------------------------------------------------------------------------------------------

    def apply(self, command: GatewayCommand, now_ms: int) -> None:
        """Carry a command out; the two that open and close a connection are not for here."""
        match command:
            case SendPublish():
                if not self._fast.has_sent(command):
                    self._outbound.send(command, now_ms)
            case SendPubRel():
                self._outbound.release(command.packet_id)
                self._output.write(PubRel(packet_id=command.packet_id, reason_code=command.reason_code))
            case DropAwaitingRel():
                self._inbound.forget(command.packet_ids)
            case WithdrawPublish():
                self._outbound.withdraw(command.packet_ids, now_ms)
            case OpenFastPath():
                self._fast.open(command, now_ms)
            case CloseFastPath():
                self._fast.close()
            case _:
                pass

    @property
    def held_bytes(self) -> int:
        """Of messages that wait until they may be written."""
        return self._outbound.held_bytes

    @property
    def answers(self) -> int:
        """Acknowledgements that were waited for."""
        return self._outbound.meter.answers

    # --- of the fast path -------------------------------------------------------------------------------------------------------

    @property
    def fast_path(self) -> PathHere:
        """See Connection."""
        return self._fast.path.here

    def offer(self, offer: OfferPublish, now_ms: int, wall_ms: int, *, under_pressure: bool) -> None:
        """See Connection."""
        self._fast.offer(offer, now_ms, wall_ms, under_pressure=under_pressure)

    def confirmed(self, fast_send: FastSend, now_ms: int) -> None:
        """Kafka has what says that this was taken."""
        self._outbound.confirmed(fast_send, now_ms)

    # --- from the device ------------------------------------------------------------------------------------------------------

    def block(self, is_blocked: bool, now_ms: int) -> None:
        """The device does not take what we write (True), or does again (False)."""
        self._outbound.block(is_blocked, now_ms)

    def handle(self, packet: bytes, body_start: int, now_ms: int) -> bool:
        """The next packet. False: it was DISCONNECT, and nothing may follow. Raises ProtocolViolation."""
        if packet_id := plain_acknowledgement(packet):
            self._on_acknowledgement(packet[0], packet_id, now_ms)
            return True
        decoded = self._decode(packet, body_start)
        self._counters.packets_received[type(decoded).__name__] += 1
        match decoded:
            case Publish():
                self._on_publish(decoded, now_ms)
            case PubAck(packet_id=packet_id, reason_code=reason_code, reason=reason):
                self._on_puback(packet_id, now_ms, reason_code, reason)
            case PubRec(packet_id=packet_id, reason_code=reason_code, reason=reason):
                self._on_pubrec(packet_id, now_ms, reason_code, reason)
            case PubComp(packet_id=packet_id, reason_code=reason_code):
                self._on_pubcomp(packet_id, now_ms, reason_code)
            case PubRel(packet_id=packet_id, reason_code=reason_code):
                self._on_pubrel(packet_id, reason_code)
            case PingReq():
                self._output.write(PING_RESP)  # [MQTT-3.12.4-1]
            case Subscribe():
                self._on_subscribe(decoded)
            case Unsubscribe():
                self._on_unsubscribe(decoded)
            case Disconnect():
                self._on_disconnect(decoded)
                return False
            case Connect():
                raise ProtocolViolation("a second CONNECT [MQTT-3.1.0-2]")
        return True

    def _on_acknowledgement(self, first_byte: int, packet_id: PacketId, now_ms: int) -> None:
        """One that says nothing else."""
        received = self._counters.packets_received
        match first_byte:
            case framing.PUBACK:
                received["PubAck"] += 1
                self._on_puback(packet_id, now_ms)
            case framing.PUBREC:
                received["PubRec"] += 1
                self._on_pubrec(packet_id, now_ms)
            case framing.PUBCOMP:
                received["PubComp"] += 1
                self._on_pubcomp(packet_id, now_ms)
            case _:
                received["PubRel"] += 1
                self._on_pubrel(packet_id)

    def _on_puback(self, packet_id: PacketId, now_ms: int, reason_code: int = 0, reason: str = "") -> None:
        self._outbound.acknowledged(packet_id, now_ms)
        self._output.tell_acknowledgement(encode_puback(self._connection_id, packet_id, reason_code, reason))

    def _on_pubrec(self, packet_id: PacketId, now_ms: int, reason_code: int = 0, reason: str = "") -> None:
        answers = self._outbound.received(packet_id, reason_code, now_ms)
        self._output.tell_acknowledgement(
            encode_pubrec(self._connection_id, packet_id, reason_code, reason, pubrel_sent=answers),
            encode_acknowledgement(framing.PUBREL, packet_id) if answers else None,
        )

    def _on_pubcomp(self, packet_id: PacketId, now_ms: int, reason_code: int = 0) -> None:
        self._outbound.completed(packet_id, now_ms)
        self._output.tell_acknowledgement(encode_pubcomp(self._connection_id, packet_id, reason_code))

    def _on_pubrel(self, packet_id: PacketId, reason_code: int = 0) -> None:
        if self._inbound.release(packet_id):
            answer = encode_acknowledgement(framing.PUBCOMP, packet_id)
        else:
            answer = self._output.encode(PubComp(packet_id=packet_id, reason_code=ReasonCode.PACKET_ID_NOT_FOUND))
        self._output.tell_acknowledgement(encode_pubrel(self._connection_id, packet_id, reason_code), answer)

    def _on_publish(self, publish: Publish, now_ms: int) -> None:
        taken = self._inbound.take(publish, self._records.unanswered, now_ms)
        if isinstance(taken, Append):
            self._records.add(taken)
        elif taken is not None:
            self._output.answer_in_order(taken)

    def _on_subscribe(self, subscribe: Subscribe) -> None:
        answer, granted = self._subscriptions.subscribe(subscribe)
        if refused := answer.reason_codes.count(ReasonCode.NOT_AUTHORIZED):
            self._counters.not_authorized["subscribe"] += refused
        if too_many := answer.reason_codes.count(ReasonCode.QUOTA_EXCEEDED):
            self._counters.limits_reached[Limit.SUBSCRIPTIONS] += too_many
        if granted:  # [MQTT-3.8.4-1]
            self._fast.path.subscribed(granted)
            self._output.tell(Subscribed(connection_id=self._connection_id, subscriptions=granted), answer)
        else:
            self._output.answer_in_order(answer)

    def _on_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        answer, topic_filters = self._subscriptions.unsubscribe(unsubscribe)
        if topic_filters:  # [MQTT-3.10.4-4]
            self._fast.path.unsubscribed(topic_filters)
            self._output.tell(Unsubscribed(connection_id=self._connection_id, topic_filters=topic_filters), answer)
        else:
            self._output.answer_in_order(answer)

    def _on_disconnect(self, disconnect: Disconnect) -> None:
        if disconnect.session_expiry_interval_s and self._connect.session_expiry_interval_s == 0:
            raise ProtocolViolation("DISCONNECT sets a session expiry where CONNECT had none (MQTT 5, 3.14.2.2.2)")
        self._output.tell_end(
            ClientDisconnected(
                connection_id=self._connection_id,
                reason_code=disconnect.reason_code,
                session_expiry_interval_s=disconnect.session_expiry_interval_s,
            )
        )
