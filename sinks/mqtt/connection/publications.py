"""The publications of a device on one connection: topic aliases, our Receive Maximum, the packet ids that await PUBREL."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sinks.mqtt.access.grant import Grant
from sinks.mqtt.codec import framing
from sinks.mqtt.codec.acknowledgements import encode_acknowledgement
from sinks.mqtt.codec.packets import PubAck, Publish, PubRec
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.known_tables import KnownTables
from sinks.mqtt.limits.token_bucket import TokenBucket
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import Limit
from sinks.mqtt_topics import is_of_the_server, topic_levels
from state.commands import AcceptConnection, KnownPublication
from state.errors import ProtocolViolation
from state.events import PublishAccepted, PublishReceived
from state.inbound.awaiting_rel import content_hash
from state.model import PacketId, QoS, ReasonCode
from state.records.events import encode_event
from state.records.uplink import may_be_copy_header, uplink_headers


@dataclass(slots=True, eq=False, kw_only=True)
class Publications:
    """Decides about the publications of one device, and makes their records.

    MQTT 3.1.1 has no Receive Maximum, and its devices send PUBREL behind any number of PUBLISHes. So any number may await PUBREL.
    The host does not read on while `AppendQueue.max_unanswered` QoS 2 publications of such a device wait for PUBREC.

    Attributes:
        client_id, connection_id: Part of each publication's `inflight-id`.
        grant: What the login allows.
        awaiting_rel: Packet ids that the session already holds, with a hash of the content; None = of an earlier connection.
        max_awaiting_rel: The Receive Maximum of CONNACK; 0 = no limit.
        tables: The tables of routing, by which publications with RETAIN are kept; None = there is no routing.
        may_hand_on: The gateway hands on publications of QoS 2 itself if the session tells it what it knows of earlier ones.
        hands_on: The gateway hands on publications of QoS 2 itself (handing_on.py): it can tell a new one from a repetition.
        known: Of those that the session held before this connection, and of abandoned ones. Not those in `awaiting_rel` that this
            connection has accepted.
    """

    client_id: str
    connection_id: int
    is_v5: bool
    grant: Grant
    counters: GatewayCounters
    publish_rate: TokenBucket
    topic_alias_maximum: int
    max_topic_levels: int
    tables: KnownTables | None = None
    may_hand_on: bool = False
    awaiting_rel: dict[PacketId, bytes | None] = field(default_factory=dict)
    max_awaiting_rel: int = 0
    hands_on: bool = False
    known: dict[PacketId, KnownPublication] = field(default_factory=dict)
    _aliases: dict[int, str] = field(default_factory=dict)
    _count: int = 0

    def begin(self, accept: AcceptConnection) -> None:
        """Takes over what the session holds. Nothing of QoS 2 may have been judged yet."""
        known = accept.known_publications
        self.awaiting_rel = {
            **dict.fromkeys(accept.awaiting_rel),
            **{each.packet_id: each.content for each in known or () if not each.is_abandoned},
        }
        self.max_awaiting_rel = accept.max_awaiting_rel
        self.hands_on = self.may_hand_on and known is not None
        self.known = {each.packet_id: each for each in known or ()}

    def judge(
        self, publish: Publish, unanswered: int, now_ms: int, *, is_excessive: bool = False
    ) -> Append | PubAck | PubRec | None:
        """Judges a publication. Raises ProtocolViolation.

        Args:
            unanswered: Publications that count and are not answered (`Append.counts`): in MQTT 5 those of QoS 1, because those of
                QoS 2 count until PUBREL; in MQTT 3.1.1 those of QoS 2.
            now_ms: Milliseconds of a monotonic clock.
            is_excessive: True if the properties of the publication are over the limit; QoS 0 is dropped.

        Returns:
            The record of the publication, with the answer that it sets free; or a refusal, which needs no record. None = it is
            dropped (QoS 0).
        """
        if publish.retain and self.is_v5 and self.tables is None:
            raise ProtocolViolation(
                "RETAIN is not available, as CONNACK says [MQTT-3.2.2-14]", reason_code=ReasonCode.RETAIN_NOT_SUPPORTED
            )
        topic = self.topic_of(publish)
        if is_excessive:
            return _refused(publish, ReasonCode.QUOTA_EXCEEDED) if publish.qos else None
        if topic_levels(topic) > self.max_topic_levels:
            self.counters.limits_reached[Limit.TOPIC_LEVELS] += 1
            return self._topic_refused(publish, topic, ReasonCode.TOPIC_NAME_INVALID)
        if self.tables is not None and is_of_the_server(topic):
            return self._reserved(publish)
        if self.grant.publish and not self.grant.may_publish(topic):
            self.counters.not_authorized["publish"] += 1
            return self._topic_refused(publish, topic, ReasonCode.NOT_AUTHORIZED)
        refusal = self._refusal(publish, topic, now_ms)
        if refusal is not None:
            return refusal
        if publish.retain and self.tables is not None:
            return self._retain(publish, topic, unanswered, self.tables)
        return self._accept(publish, topic, unanswered)

    def _accept(self, publish: Publish, topic: str, unanswered: int) -> Append:
        if publish.qos == QoS.AT_MOST_ONCE:
            return Append(publish.payload, headers=self.headers(publish, topic), topic=AppendTopic.UPLINK)
        packet_id = publish.packet_id
        if publish.qos == QoS.AT_LEAST_ONCE:
            self.admit_qos1(unanswered)
            # Answered when the record is in the log [MQTT-4.3.2-4], and forgotten then [MQTT-4.3.2-5].
            answer = encode_acknowledgement(framing.PUBACK, packet_id)
            return Append(publish.payload, answer, self.headers(publish, topic), AppendTopic.UPLINK, counts=self.is_v5)
        if self.hands_on and (append := self._accept_qos2(publish, topic, unanswered)) is not None:
            return append
        self.admit_qos2(packet_id, unanswered, content_hash(topic, publish.payload))
        received = PublishReceived(
            connection_id=self.connection_id,
            packet_id=packet_id,
            topic=topic,
            payload=publish.payload,
            dup=publish.dup,
            retain=publish.retain,
            expiry_interval_s=publish.expiry_interval_s,
            properties=publish.properties,
            username=self.grant.username,
        )
        answer = encode_acknowledgement(framing.PUBREC, packet_id)  # [MQTT-4.3.3-8]
        return Append(encode_event(received), answer, counts=not self.is_v5)

    def _accept_qos2(self, publish: Publish, topic: str, unanswered: int) -> Append | None:
        """Makes the records by which the gateway hands a publication on.

        Returns:
            None for a repetition that is not to be handed on, or only by the session: of what this connection has accepted, or of
            what no gateway was to hand on.
        """
        packet_id, content, known = publish.packet_id, content_hash(topic, publish.payload), self.known.get(publish.packet_id)
        is_repetition = self.is_repetition(publish, topic)
        if is_repetition and (known is None or not known.publication_id or known.content != content):
            return None
        self.admit_qos2(packet_id, unanswered, content)
        if is_repetition and known is not None:
            headers = self.headers(publish, topic, known.publication_id)
            headers.append(may_be_copy_header(known.since_ms))
            publication_id, since_ms = known.publication_id, known.since_ms
            del self.known[packet_id]  # from now on as one that this connection has accepted
        else:
            self.known.pop(packet_id, None)
            headers, since_ms = self.headers(publish, topic), 0
            publication_id = self._newest_id
        accepted = PublishAccepted(
            connection_id=self.connection_id,
            packet_id=packet_id,
            content=content,
            publication_id=publication_id,
            dup=publish.dup,
            is_repetition=is_repetition,
            since_ms=since_ms,
        )
        answer = encode_acknowledgement(framing.PUBREC, packet_id)  # [MQTT-4.3.3-8]
        uplink = Append(publish.payload, headers=headers, topic=AppendTopic.UPLINK)
        # The session has nothing to do but to remember it, so it need not be called for that.
        return Append(encode_event(accepted), answer, counts=not self.is_v5, hands_on=uplink, is_urgent=False)

    def _retain(self, publish: Publish, topic: str, unanswered: int, tables: KnownTables) -> Append | PubAck | PubRec | None:
        """Adds a record of `inflight.retained` [MQTT-3.3.1-5], which an empty payload empties [MQTT-3.3.1-6].

        Beyond a limit a publication of QoS 0 is forwarded, and not kept (MQTT 5, 3.3.1.3); the others are refused. A repetition
        of QoS 2 is not kept once more: a later publication may have come in between. So what the session knows must have been
        kept, and the record that hands it on, or at QoS 2 the event, is appended when the other record is confirmed.
        """
        is_kept = not self.is_repetition(publish, topic)
        if is_kept and publish.payload and (limit := tables.retained_limit(topic, len(publish.payload))) is not None:
            self.counters.limits_reached[limit] += 1
            if publish.qos:
                return self._topic_refused(publish, topic, ReasonCode.QUOTA_EXCEEDED)
            is_kept = False
        append = self._accept(publish, topic, unanswered)
        if not is_kept:
            return append
        headers = append.headers or (append.hands_on and append.hands_on.headers) or self.headers(publish, topic)
        kept = Append(publish.payload, None, headers, AppendTopic.RETAINED, topic.encode())
        if publish.qos == QoS.EXACTLY_ONCE:
            kept.then, kept.holds_back = append, True
            return kept
        append.retained = kept
        return append

    def _reserved(self, publish: Publish) -> PubAck | PubRec | None:
        """Refuses a topic of the server's own (MQTT 5, 4.7.2). The connection stays in MQTT 3.1.1, too: a positive answer is
        allowed [MQTT-3.3.5-2] of MQTT 3.1.1."""
        self.counters.not_authorized["publish"] += 1
        if publish.qos == QoS.AT_MOST_ONCE:
            return None
        return _refused(publish, ReasonCode.NOT_AUTHORIZED if self.is_v5 else ReasonCode.SUCCESS)

    def _refusal(self, publish: Publish, topic: str, now_ms: int) -> PubAck | PubRec | None:
        """Refuses a publication that comes too fast. That ends the exchange [MQTT-4.4.0-2], so nothing of it is kept
        [MQTT-4.3.3-9]; the device decides when it tries again. MQTT 3.1.1 and QoS 0 have no way to refuse."""
        if not self.is_v5 or publish.qos == QoS.AT_MOST_ONCE:
            return None
        if self.is_repetition(publish, topic):
            return None  # it was accepted, and only our answer was lost
        if self.publish_rate.admit(now_ms):
            return None
        self.counters.publishes_refused += 1
        return _refused(publish, ReasonCode.QUOTA_EXCEEDED)

    def _topic_refused(self, publish: Publish, topic: str, reason_code: ReasonCode) -> PubAck | PubRec | None:
        """Refuses a topic, of a repetition too: it may have another one than what was accepted. QoS 0 is dropped. MQTT 3.1.1 has
        no answer that does not say the opposite, so the connection ends [MQTT-3.3.5-2] of MQTT 3.1.1. Raises ProtocolViolation.
        """
        if publish.qos == QoS.AT_MOST_ONCE:
            return None
        if self.is_v5:
            return _refused(publish, reason_code)
        raise ProtocolViolation(f"may not publish to {topic!r}", reason_code=reason_code)

    def topic_of(self, publish: Publish) -> str:
        """The topic name, alias resolved and remembered [MQTT-3.3.2-12] for this connection [MQTT-3.3.2-7]. Raises
        ProtocolViolation."""
        topic, alias = publish.topic, publish.topic_alias
        if alias is None:
            return topic
        if alias > self.topic_alias_maximum:
            raise ProtocolViolation(
                f"topic alias {alias}, the maximum is {self.topic_alias_maximum} [MQTT-3.3.2-9]",
                reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise ProtocolViolation(f"topic alias {alias} was never given a topic")
        return known

    def admit_qos1(self, unanswered: int) -> None:
        """Raises ProtocolViolation if the device has more publications under way than CONNACK's Receive Maximum [MQTT-3.3.4-7].

        MQTT 3.1.1 knows no such maximum.

        Args:
            unanswered: The device's QoS 1 publications without PUBACK.
        """
        self._require_room(len(self.awaiting_rel) + unanswered)

    def admit_qos2(self, packet_id: PacketId, unanswered: int, content: bytes | None = None) -> None:
        """Raises ProtocolViolation as above; a repetition of an id that awaits PUBREL is no overflow."""
        if packet_id not in self.awaiting_rel:
            self._require_room(len(self.awaiting_rel) + unanswered)
        self.awaiting_rel[packet_id] = content

    def is_repetition(self, publish: Publish, topic: str) -> bool:
        """Returns True if a publication of QoS 2 repeats one that was accepted and awaits PUBREL.

        With other content and without DUP it does not, as for the session (state/inbound/inbound.py). The content of an earlier
        connection may be unknown here; DUP alone decides then. One that was abandoned is repeated with DUP and the same content.
        """
        if publish.qos != QoS.EXACTLY_ONCE:
            return False
        if publish.packet_id not in self.awaiting_rel:
            known = self.known.get(publish.packet_id)
            return publish.dup and known is not None and known.content == content_hash(topic, publish.payload)
        return publish.dup or self.awaiting_rel[publish.packet_id] == content_hash(topic, publish.payload)

    def release(self, packet_id: PacketId) -> bool:
        """PUBREL has come. False: the id is unknown, which MQTT 5 answers with PUBCOMP 0x92."""
        known = packet_id in self.awaiting_rel
        self.awaiting_rel.pop(packet_id, None)
        self.known.pop(packet_id, None)
        return known

    def forget(self, packet_ids: Iterable[PacketId]) -> None:
        """The session does not wait for PUBREL of these any longer."""
        for packet_id in packet_ids:
            content = self.awaiting_rel.pop(packet_id, None)
            if content is not None and packet_id not in self.known:
                self.known[packet_id] = KnownPublication(packet_id=packet_id, content=content, is_abandoned=True)

    @property
    def _newest_id(self) -> str:
        return f"{self.client_id}:{self.connection_id}:{self._count}"

    def headers(self, publish: Publish, topic: str, inflight_id: str = "") -> list[tuple[str, bytes]]:
        """Makes the headers of the uplink record of a publication.

        Args:
            inflight_id: Empty = each call makes another one.
        """
        if not inflight_id:
            self._count += 1
        return uplink_headers(
            client_id=self.client_id,
            inflight_id=inflight_id or self._newest_id,
            topic=topic,
            qos=publish.qos,
            retain=publish.retain,
            expiry_interval_s=publish.expiry_interval_s,
            properties=publish.properties,
            username=self.grant.username,
        )

    def _require_room(self, taken: int) -> None:
        if self.is_v5 and 0 < self.max_awaiting_rel <= taken:
            raise ProtocolViolation(
                f"more than {self.max_awaiting_rel} publications at once [MQTT-3.3.4-7]",
                reason_code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )


def _refused(publish: Publish, reason_code: ReasonCode) -> PubAck | PubRec:
    answer = PubAck if publish.qos == QoS.AT_LEAST_ONCE else PubRec
    return answer(packet_id=publish.packet_id, reason_code=reason_code)
