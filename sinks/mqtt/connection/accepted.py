"""An accepted device and its session: the packets of the one become records, the commands of the other become packets.

1. A packet becomes a record first. Its answer goes out when Kafka has confirmed the record, in the order of the requests
   (`AppendQueue`), whatever the order of the confirmations [MQTT-4.6.0-2].
2. Packet ids, retries and the judgement of acknowledgements are the session's. Kept here are only what is on this wire
   (`Outbox`), the session's grant (`WireFastPath`), the packet ids that await PUBREL (`Publications`) and the subscriptions
   (`SubscriptionJudge`).
3. With routing, a SUBSCRIBE or UNSUBSCRIBE that changes the subscriptions makes two records: the event, and the whole list for
   the matchers. The acknowledgement waits for both. What the device sends next waits for the list, because a PUBLISH behind a
   SUBSCRIBE must find it. Only further SUBSCRIBEs and UNSUBSCRIBEs are read meanwhile, and share the next list: a device with
   thousands of filters would write thousands of long lists, one after the other. If CONNACK has claimed that there was no
   session, the acknowledgement waits for the session too: one that refuses the claim ignores the subscription, and writes its
   own list above this one.
"""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final

from sinks.host.outbox import FastPublish, Outbox
from sinks.host.wire_table import WireAction
from sinks.mqtt.codec import framing, packets
from sinks.mqtt.codec.acknowledgements import encode_acknowledgement, plain_acknowledgement
from sinks.mqtt.codec.packets import Disconnect, PubAck, PubComp, Publish, PubRec, PubRel, ServerPacket, Subscribe, Unsubscribe
from sinks.mqtt.codec.topic_aliases import TopicAliases
from sinks.mqtt.connection.append_queue import Append, AppendQueue, AppendTopic
from sinks.mqtt.connection.fast_path import OfferHold, OfferRefusal, TakenOffer, WireFastPath
from sinks.mqtt.connection.handshake import V5, Handshake
from sinks.mqtt.connection.left_session import LeftSession
from sinks.mqtt.connection.output import DeviceOutput
from sinks.mqtt.connection.publications import Publications
from sinks.mqtt.connection.subscribing import SubscriptionJudge, known_subscriptions
from sinks.mqtt.limits.buffered import SCARCE_PART, Buffered
from sinks.mqtt.limits.packet_parts import Excess
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings, Limit
from state import commands
from state.commands import AcceptConnection, GatewayCommand, OfferPublish, SendPublish
from state.errors import ProtocolViolation
from state.events import FastPathClosed, GatewayEvent, Subscribed, Unsubscribed
from state.model import PacketId, ReasonCode
from state.records.events import encode_event, encode_puback, encode_pubcomp, encode_pubrec, encode_pubrel
from state.records.subscriptions import SubscriptionList, encode_subscriptions

_REFUSED_FROM: Final = 0x80
"""Reason codes from this one on refuse a message."""
_ACKNOWLEDGEMENTS: Final = (PubAck, PubRec, PubRel, PubComp)


@dataclass(slots=True, eq=False)
class AcceptedDevice:
    """All times are milliseconds of one monotonic clock, except wall_ms, which is since 1970."""

    _records: AppendQueue
    _output: DeviceOutput
    _counters: GatewayCounters
    settings: InitVar[GatewaySettings]
    handshake: InitVar[Handshake]
    accept: InitVar[AcceptConnection]
    is_blocked: InitVar[bool]
    now_ms: InitVar[int]
    _buffered: Buffered | None
    outbox: Outbox = field(init=False)
    fast_path: WireFastPath = field(init=False)
    _max_qos0_bytes: int = field(init=False)
    _connection_id: int = field(init=False)
    _publications: Publications = field(init=False)
    _subscriptions: SubscriptionJudge = field(init=False)
    _has_refused: bool = False
    """The device has refused a message, which the session may send again."""
    _wanted: dict[str, None] = field(default_factory=dict)
    """Filters whose retained messages the next list asks for."""
    _encode_publish: Callable[..., bytes] = field(init=False)
    """Encodes a PUBLISH that is written now: by the codec, or with topic aliases."""

    def __post_init__(
        self, settings: GatewaySettings, handshake: Handshake, accept: AcceptConnection, is_blocked: bool, now_ms: int
    ) -> None:
        connect, limits, codec = handshake.connect, settings.device_limits, self._output.codec
        registration, has_routing = handshake.registration, settings.routing.enabled
        is_v5, grant, self._connection_id = codec is V5, handshake.grant, registration.connection_id
        receive_maximum = connect.receive_maximum if is_v5 else None
        self._max_qos0_bytes = limits.max_blocked_qos0_bytes
        self.outbox = Outbox(accept.send_quota, receive_maximum, limits.max_blocked_qos0_bytes, is_blocked)
        list_id = accept.list_connection_id, accept.list_version
        self.fast_path = WireFastPath(connect, self._connection_id, codec.encode_publish, self.outbox, settings, list_id)
        self._publications = Publications(
            client_id=registration.client_id,
            connection_id=self._connection_id,
            is_v5=is_v5,
            grant=grant,
            counters=self._counters,
            publish_rate=TokenBucket(settings.max_publish_rate, now_ms),
            topic_alias_maximum=settings.topic_alias_maximum,
            max_topic_levels=limits.max_topic_levels,
            tables=registration.tables if has_routing else None,
            # Marks say which connection is the latest one, if connections are numbered by the brokers' clock.
            may_hand_on=has_routing and registration.serves_at_once,
        )
        self._publications.begin(accept)
        self._subscriptions = _subscription_judge(accept, handshake, settings)
        self._encode_publish = codec.encode_publish
        if connect.topic_alias_maximum:  # [MQTT-3.1.2-27]
            aliases = TopicAliases(connect.topic_alias_maximum, codec.encode_publish, connect.maximum_packet_size_bytes)
            self._encode_publish = aliases.encode_publish
        if not is_v5 and accept.max_awaiting_rel:
            self._records.max_unanswered = accept.max_awaiting_rel

    def leave(self, max_messages: int, max_bytes: int) -> LeftSession | None:
        """Returns what the client leaves here for its next connection; see WireFastPath."""
        return None if self._has_refused or not max_messages else self.fast_path.leave(max_messages, max_bytes)

    def resume(self, accept: AcceptConnection, handshake: Handshake, settings: GatewaySettings) -> None:
        """Takes over what the session holds of a device that has only published yet, or that goes on with what it has left."""
        if handshake.left is not None:
            self._publications.begin(accept)
            return
        self.fast_path.list_id = accept.list_connection_id, accept.list_version
        self._publications.begin(accept)
        self._subscriptions = _subscription_judge(accept, handshake, settings)

    # --- from the device --------------------------------------------------------------------------------------------------------

    def read(self, packet: bytes, body_start: int, excess: Excess | None, now_ms: int) -> Disconnect | None:
        """Carries out a packet of the device, all but DISCONNECT, which is returned. Raises ProtocolViolation."""
        if packet_id := plain_acknowledgement(packet):  # one that says nothing else
            self._acknowledged(packet[0], packet_id, now_ms)
            return None
        filters, is_refused = 0, False
        if excess is not None:
            packet, body_start, filters, is_refused = excess
        decoded = self._output.codec.decode(packet, body_start)
        if isinstance(decoded, _ACKNOWLEDGEMENTS):
            reason = decoded.reason if isinstance(decoded, PubAck | PubRec) else ""
            self._acknowledged(packet[0], decoded.packet_id, now_ms, decoded.reason_code, reason)
            return None
        self._counters.packets_received[type(decoded).__name__] += 1
        match decoded:
            case Publish():
                self._publish(decoded, now_ms, is_refused)
            case Subscribe():
                self._subscribe(decoded, filters, is_refused)
            case Unsubscribe():
                self._unsubscribe(decoded, filters, is_refused)
            case packets.PingReq():
                self._output.write(packets.PING_RESP)  # [MQTT-3.12.4-1]
            case packets.Connect():
                raise ProtocolViolation("a second CONNECT [MQTT-3.1.0-2]")
            case Disconnect():
                return decoded
        return None

    def _acknowledged(self, kind: int, packet_id: PacketId, now_ms: int, reason_code: int = 0, reason: str = "") -> None:
        """Handles an acknowledgement of the device: answers it, records it for the session, and writes what a freed slot allows.

        PUBREL concerns a publication of the device. PUBACK, PUBREC and PUBCOMP concern a message for the device.

        Args:
            kind: The first byte of the packet.
        """
        connection_id, outbox, answer = self._connection_id, self.outbox, b""
        is_refusal = reason_code >= _REFUSED_FROM
        self._has_refused |= is_refusal
        is_urgent = is_refusal or self.fast_path.may_wait_for_session
        if kind == framing.PUBACK:
            name, event = "PubAck", encode_puback(connection_id, packet_id, reason_code, reason)
            outbox.acknowledged(packet_id)
        elif kind == framing.PUBREC:
            answers = outbox.received(packet_id, reason_code)
            name, event = "PubRec", encode_pubrec(connection_id, packet_id, reason_code, reason, pubrel_sent=answers)
            if answers:
                answer = encode_acknowledgement(framing.PUBREL, packet_id)
            else:
                is_urgent = True
        elif kind == framing.PUBCOMP:
            name, event = "PubComp", encode_pubcomp(connection_id, packet_id, reason_code)
            outbox.completed(packet_id)
        else:
            name, event = "PubRel", encode_pubrel(connection_id, packet_id, reason_code)
            is_urgent = not self._publications.hands_on
            if self._publications.release(packet_id):
                answer = encode_acknowledgement(framing.PUBCOMP, packet_id)
            else:
                answer = self._output.codec.encode(PubComp(packet_id=packet_id, reason_code=ReasonCode.PACKET_ID_NOT_FOUND))
        self._counters.packets_received[name] += 1
        if kind != framing.PUBREL:
            self._write_due(now_ms)
        fitting = self._output.fitting(answer) if answer else None
        self._records.add_acknowledgement(event, fitting, is_urgent=is_urgent)

    def _publish(self, publish: Publish, now_ms: int, is_excessive: bool) -> None:
        judged = self._publications.judge(publish, self._records.unanswered, now_ms, is_excessive=is_excessive)
        if isinstance(judged, Append):
            self._records.add(judged)
        elif judged is not None:
            self._answer(judged, None)

    def _subscribe(self, subscribe: Subscribe, excess: int, is_refused: bool) -> None:
        answer, granted, wanted, is_change = self._subscriptions.subscribe(subscribe, excess=excess, is_refused=is_refused)
        refused = answer.reason_codes.count(ReasonCode.NOT_AUTHORIZED) + answer.reason_codes.count(ReasonCode.UNSPECIFIED_ERROR)
        if refused:
            self._counters.not_authorized["subscribe"] += refused
        too_many = answer.reason_codes.count(ReasonCode.QUOTA_EXCEEDED) - excess
        if too_many and not is_refused:
            self._counters.limits_reached[Limit.SUBSCRIPTIONS] += too_many
        subscribed, has_list = None, False
        if not self._subscriptions.has_routing:
            subscribed = Subscribed(connection_id=self._connection_id, subscriptions=granted) if granted else None
        elif granted and (is_change or wanted or self._is_list_of_earlier_connection):
            version = self._next_version()
            subscribed = Subscribed(connection_id=self._connection_id, subscriptions=granted, version=version)
            has_list = True
            self._wanted |= dict.fromkeys(wanted)
        self.fast_path.subscribed(granted)
        self._answer(answer, subscribed, has_list=has_list)  # [MQTT-3.8.4-1]

    def _unsubscribe(self, unsubscribe: Unsubscribe, excess: int, is_refused: bool) -> None:
        answer, filters, is_change = self._subscriptions.unsubscribe(unsubscribe, excess=excess, is_refused=is_refused)
        unsubscribed, has_list = None, False
        if not self._subscriptions.has_routing:
            unsubscribed = Unsubscribed(connection_id=self._connection_id, topic_filters=filters) if filters else None
        elif is_change or (filters and self._is_list_of_earlier_connection):
            version = self._next_version()
            unsubscribed = Unsubscribed(connection_id=self._connection_id, topic_filters=filters, version=version)
            has_list = True
        self.fast_path.unsubscribed(filters)
        self._answer(answer, unsubscribed, has_list=has_list)  # [MQTT-3.10.4-4]

    @property
    def list_id(self) -> tuple[int, int]:
        """Returns the connection that has written the newest list of subscriptions, and the list's number within it."""
        return self.fast_path.list_id

    @property
    def _is_list_of_earlier_connection(self) -> bool:
        """Says that this connection has written no list. Of the two records of the newest change before it, Kafka may have one
        only, and the client got no answer: what changes nothing for the session may change the list in the log."""
        return self.list_id[0] != self._connection_id

    def _next_version(self) -> int:
        """Numbers a new list of subscriptions."""
        connection_id, version = self.list_id
        version = version + 1 if connection_id == self._connection_id else 1
        self.fast_path.list_id = self._connection_id, version
        return version

    def _list_record(self, wanted: tuple[str, ...] = ()) -> Append | None:
        """Returns None if the subscriptions are not known. Until a list is known, the session filters by its own ones."""
        if self._subscriptions.subscriptions is None:
            return None
        connection_id, version = self.list_id
        listed = SubscriptionList(
            connection_id=connection_id, version=version, subscriptions=self._subscriptions.listed(), wanted=wanted
        )
        return Append(encode_subscriptions(listed), topic=AppendTopic.SUBSCRIPTIONS)

    def write_list(self) -> None:
        """Appends the list that answers wait for. Call it only if there is one."""
        record = self._list_record(tuple(self._wanted))
        assert record is not None, "only a known list has been changed"
        self._wanted = {}
        self._records.add_list(record)

    def repeat_list(self) -> None:
        """Appends the list of subscriptions once more: a lower one stands behind it, and compaction would keep that."""
        record = self._list_record()
        if record is not None:
            self._counters.lists_repeated += 1
            self._records.add(record)

    def _answer(self, answer: ServerPacket, event: GatewayEvent | None, *, has_list: bool = False) -> None:
        """Adds an answer, which goes out when the event and the list are in the log. One without an event has its turn, too."""
        data = self._output.fitting(self._output.codec.encode(answer))
        if event is not None:
            append = Append(encode_event(event), data, awaits_session=True)
            if has_list and self._subscriptions.subscriptions is not None:
                self._records.add_change(append)
            else:
                self._records.add(append)
        else:
            self._records.add_answer(data)
            self._records.take_answers(self._output.packets)

    # --- from the engine and from routers ---------------------------------------------------------------------------------------

    def apply(self, command: GatewayCommand, now_ms: int) -> None:
        if isinstance(command, SendPublish):
            self._send(command, now_ms)
        elif isinstance(command, commands.SendPubRel):
            self._counters.resends_dropped += self.outbox.release(command.packet_id) is WireAction.DROP
            self._output.write(PubRel(packet_id=command.packet_id, reason_code=command.reason_code))
        elif isinstance(command, commands.WithdrawPublish):
            self.outbox.withdraw(command.packet_ids)
            self._write_due(now_ms)
        elif isinstance(command, commands.OpenFastPath):
            messages, delay_ms = self.fast_path.open(command, now_ms)
            self._counters.adoptions += messages
            self._counters.adoption_delay_ms += delay_ms
        elif isinstance(command, commands.CloseFastPath):
            self.fast_path.close()
            closed = FastPathClosed(connection_id=self._connection_id)
            self._records.add(Append(encode_event(closed)))  # behind what was sent under the grant
        elif isinstance(command, commands.DropAwaitingRel):
            self._publications.forget(command.packet_ids)

    def _send(self, publish: SendPublish, now_ms: int) -> None:
        if self.fast_path.was_taken(publish):
            self._counters.copies_dropped += 1
            return
        if not publish.qos:
            self.outbox.max_qos0_bytes = self._max_qos0_bytes // (SCARCE_PART if self._is_memory_scarce else 1)
        action = self.outbox.send(publish, now_ms)
        if action is WireAction.WRITE_PUBLISH:
            self._write_publish(publish, 0)
        elif action is WireAction.DROP:
            self._counters.resends_dropped += publish.qos > 0
            self._counters.qos0_dropped += not publish.qos

    def offer(self, offer: OfferPublish, under_pressure: bool, wall_ms: int, now_ms: int) -> None:
        """A message that a router has read: it is sent if the session's grant covers it, now or later."""
        self.fast_path.held.is_scarce = self._is_memory_scarce
        outcome = self.fast_path.offer(offer, under_pressure, self._records.is_full, wall_ms, now_ms)
        if isinstance(outcome, TakenOffer):
            self._record(outcome)
        elif isinstance(outcome, OfferRefusal):
            self._counters.offers_refused[outcome] += 1
        elif not outcome:
            self._counters.offers_ignored += 1
        elif (reason := self.take_offers(now_ms)) is not None:
            self._counters.offers_held[reason] += 1

    @property
    def _is_memory_scarce(self) -> bool:
        return self._buffered is not None and self._buffered.is_scarce

    def take_offers(self, now_ms: int) -> OfferHold | None:
        """Accepts the held offers that the session's grant covers. Returns why the next one is held; None = there is none.

        Call it after everything that may have made one acceptable: a grant, an answer of the device, a confirmation.
        """
        fast_path = self.fast_path
        self.outbox.measure_ahead(now_ms)
        while (taken := fast_path.take_next(self._records.is_full, now_ms)) is not None:
            if isinstance(taken, OfferHold):
                return taken
            if isinstance(taken, OfferRefusal):
                self._counters.offers_refused[taken] += 1
                continue
            self._record(taken)
        return None

    def _record(self, taken: TakenOffer) -> None:
        """Appends FastSent; PUBLISH is written when that is confirmed."""
        self._counters.offers_taken += 1
        self._records.add_fast_sent(encode_event(taken.sent), taken.publish)

    # --- from Kafka -------------------------------------------------------------------------------------------------------------

    def confirmed(self, append: Append, now_ms: int) -> None:
        """Kafka has the record, or the device was refused what it holds."""
        if append.fast_publishes is not None:
            for publish in append.fast_publishes:
                self.outbox.confirm(publish, now_ms)
            self._write_due(now_ms)
        self._records.take_answers(self._output.packets)

    def refuse_publication(self, append: Append) -> bool:
        """Answers 0x97 to a publication that is too large for Kafka. False: the packet has no such answer."""
        then, codec = append.then, self._output.codec
        answer = append.answer if then is None else then.answer
        if answer is None or codec is not V5 or answer.data[0] not in (framing.PUBACK, framing.PUBREC):
            return False
        packet_id = plain_acknowledgement(answer.data)
        if not packet_id:
            return True  # the other record of a retained publication was too large already
        refusal = PubAck if answer.data[0] == framing.PUBACK else PubRec
        if refusal is PubRec:
            self._publications.release(packet_id)
        self._counters.publications_too_large += 1
        refused = refusal(packet_id=packet_id, reason_code=ReasonCode.QUOTA_EXCEEDED)
        if then is None:
            self._records.replace_answer(append, codec.encode(refused))
        else:
            append.then = None
            self._records.add_answer(codec.encode(refused))
        return True

    # --- to the device ----------------------------------------------------------------------------------------------------------

    def block(self, blocked: bool, now_ms: int) -> None:
        """The device does not take what is written (True), or does again (False)."""
        self.outbox.block(blocked)
        self._write_due(now_ms)

    def oldest_unanswered(self) -> PacketId:
        """Returns the message that the device may have failed on; 0 = none, as far as is known.

        What a device has not taken (`is_blocked`) it need not have got.
        """
        outbox = self.outbox  # it remembers that the device was blocked when the socket was lost
        return 0 if outbox.is_blocked else outbox.oldest_unanswered()

    def _write_due(self, now_ms: int) -> None:
        while (due := self.outbox.next_due(now_ms)) is not None:
            publish, waited_s = due
            if isinstance(publish, FastPublish):
                self._write_fast(publish, waited_s)
            else:
                self._write_publish(publish, waited_s)

    def _write_publish(self, publish: SendPublish, waited_s: int) -> None:
        """Encodes a PUBLISH. A message that the codec refuses is skipped; the session gives it up by `delivery_limit`."""
        qos, packet_id, expiry_s = publish.qos, publish.packet_id, publish.expiry_interval_s
        if expiry_s is not None:
            expiry_s = _left_s(expiry_s, waited_s)
        try:
            data = self._encode_publish(
                publish,
                qos=qos,
                packet_id=packet_id,
                dup=publish.dup,
                expiry_interval_s=expiry_s,
                subscription_ids=publish.subscription_ids,
            )
        except (ValueError, OverflowError):
            self._counters.unsendable += 1
            if qos:
                self.outbox.unwritten(packet_id)
            return
        self._output.packets.append(data)
        self._counters.publishes_sent += 1

    def _write_fast(self, fast: FastPublish, waited_s: int) -> None:
        data, expiry_s, encode = fast.data, fast.expiry_interval_s, self._encode_publish
        if (waited_s and expiry_s is not None) or encode is not self._output.codec.encode_publish:
            if expiry_s is not None:
                expiry_s = _left_s(expiry_s, waited_s)
            ids = fast.subscription_ids
            data = encode(fast.message, qos=fast.qos, packet_id=fast.packet_id, expiry_interval_s=expiry_s, subscription_ids=ids)
        self._output.packets.append(data)
        self._counters.publishes_sent += 1
        self._counters.fast_publishes_sent += 1


def _subscription_judge(accept: AcceptConnection, handshake: Handshake, settings: GatewaySettings) -> SubscriptionJudge:
    has_routing = settings.routing.enabled
    return SubscriptionJudge(
        known_subscriptions(accept, has_routing=has_routing),
        handshake.grant,
        accept.max_subscriptions,
        accept.max_subscription_bytes,
        settings.device_limits.max_topic_levels,
        has_routing,
        handshake.connect.is_bridge,
    )


def _left_s(expiry_s: int, waited_s: int) -> int:
    """The time that a message waits here is taken off its Message Expiry Interval [MQTT-3.3.2-6]. What was given out does not
    expire any more, so at least a second is left."""
    return max(1, expiry_s - waited_s)
