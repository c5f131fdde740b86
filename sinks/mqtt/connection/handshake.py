"""CONNECT: which version speaks, whether the packet can be taken, what the engine is told of it, and CONNACK."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from sinks.mqtt.access.grant import EVERYTHING, Grant
from sinks.mqtt.codec import framing, v5, v311
from sinks.mqtt.codec.packets import ClientPacket, ConnAck, Connect, EncodePublish, ServerPacket
from sinks.mqtt.codec.strangers import protocol_of
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.effects import Registration
from sinks.mqtt.connection.left_session import LeftSession
from sinks.mqtt.connection.phases import limited_keep_alive_s
from sinks.mqtt.limits.packet_parts import PacketParts
from sinks.mqtt.settings import GatewaySettings
from sinks.mqtt_topics import has_control_character, is_of_the_server
from state.commands import AcceptConnection
from state.errors import ProtocolViolation
from state.events import Capability, Claim, ClientConnected, Continued, ExpiredSession
from state.model import NEVER_EXPIRES_S, ReasonCode
from state.records.events import encode_event
from state.records.session_marks import CLOCKS_MS, encode_mark, kept_header, left_headers, mark_key, settled_header
from state.records.subscriptions import ENDED, SubscriptionList, encode_subscriptions
from state.settings import SessionSettings

_CONNECT: Final = bytes((framing.CONNECT,))
_NAME: Final = b"\x00\x04MQTT"
_NAME_OF_MQTT_3_1: Final = b"\x00\x06MQIsdp"
_PROMPT_MS: Final = 1_000
"""From reading a CONNECT to the confirmation of its record. Within this no later CONNECT is in the log before it."""
_SURELY_KEPT_S: Final = 60
"""A session with such an expiry interval is kept until its end is in the log: while it is connected it does not expire, and its
gateway says when the connection is over. A shorter one may pass before the engine knows that this gateway has been killed."""
_MARGIN_MS: Final = 750
"""A session is claimed to be there if it surely lives for this long. Its CONNECT is in the log by then."""
_NEVER_EXPECTED: Final = ("sequence", "continues", "max_left", "max_left_bytes")
_HELD_BY_SESSION: Final = (
    "awaiting_rel",
    "known_publications",
    "topic_filters",
    "subscriptions",
    "list_connection_id",
    "list_version",
)
"""Fields of AcceptConnection that tell what a resumed session holds; the others follow from CONNECT and the configuration."""
_NO_CONNECT: Final = Connect(protocol_version=4, client_id="", clean_start=True)
_NOT_REGISTERED: Final = Registration(0, "", -1, "")


class Codec(msgspec.Struct, frozen=True):
    """The codec of one MQTT version.

    Attributes:
        decode: Gets a whole packet and where its body starts, and returns the value. Raises ProtocolViolation.
    """

    protocol_version: int
    decode: Callable[[bytes, int], ClientPacket]
    encode: Callable[[ServerPacket], bytes]
    encode_publish: EncodePublish


V311: Final = Codec(v311.PROTOCOL_LEVEL, v311.decode, v311.encode, v311.encode_publish)
V31: Final = Codec(v311.PROTOCOL_LEVEL_3_1, v311.decode, v311.encode_3_1, v311.encode_publish)
V5: Final = Codec(v5.PROTOCOL_LEVEL, v5.decode, v5.encode, v5.encode_publish)


class ConnectionRefused(Exception):
    """The connection is refused: answer CONNACK with this reason, if there is an answer, and close.

    Attributes:
        codec: None = close without a word.
    """

    def __init__(self, reason: str, *, reason_code: ReasonCode, codec: Codec | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reason_code = reason_code
        self.codec = codec

    @property
    def answer(self) -> bytes:
        return b"" if self.codec is None else self.codec.encode(ConnAck(reason_code=self.reason_code))


def check_first_bytes(data: bytes) -> None:
    """Raises ConnectionRefused unless the first packet, which begins with these bytes, is a CONNECT [MQTT-3.1.0-1]."""
    if data[:1] not in (b"", _CONNECT):
        raise ConnectionRefused(protocol_of(data), reason_code=ReasonCode.PROTOCOL_ERROR, codec=None)


def choose_codec(packet: bytes, body_start: int) -> Codec:
    """Chooses by the protocol name and level of the first packet [MQTT-3.1.2-1] [MQTT-3.1.2-2]. Raises ConnectionRefused."""
    check_first_bytes(packet)
    for name in (_NAME, _NAME_OF_MQTT_3_1):
        if packet.startswith(name, body_start) and len(packet) > body_start + len(name):
            level = packet[body_start + len(name)]
            break
    else:
        raise ConnectionRefused("not MQTT", reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, codec=None)
    if name == _NAME and level & ~v311.BRIDGE_BIT == V311.protocol_version:
        return V311
    if name == _NAME_OF_MQTT_3_1 and level & ~v311.BRIDGE_BIT == V31.protocol_version:
        return V31
    if name == _NAME and level == V5.protocol_version:
        return V5
    # The form of the answer is the one that the client expects: a bridge that asks for too much tries again with less.
    is_newer = name == _NAME and level & ~v311.BRIDGE_BIT >= V5.protocol_version
    raise ConnectionRefused(
        f"MQTT protocol level {level}, supported are 3 (3.1), 4 (3.1.1) and 5",
        reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        codec=V5 if is_newer else V311,
    )


def read_connect(packet: bytes, body_start: int, settings: GatewaySettings, parts: PacketParts) -> tuple[Codec, Connect]:
    """The first packet of a connection, judged by everything but the login and the session. Raises ConnectionRefused."""
    codec = choose_codec(packet, body_start)
    try:
        if codec is V5:
            parts.check_connect(packet, body_start)
        connect = codec.decode(packet, body_start)
        assert isinstance(connect, Connect)  # its first byte says so
    except ProtocolViolation as error:
        # MQTT 3.1.1 closes without CONNACK what is malformed [MQTT-3.1.4-1].
        answering = codec if codec is V5 else None
        raise ConnectionRefused(error.reason, reason_code=error.reason_code, codec=answering) from error
    if connect.will is not None and connect.will.retain and codec is V5 and not settings.routing.enabled:
        raise ConnectionRefused(
            "the will has Will Retain, and nothing is retained [MQTT-3.2.2-13]",
            reason_code=ReasonCode.RETAIN_NOT_SUPPORTED,
            codec=codec,
        )
    if connect.will is not None and settings.routing.enabled and is_of_the_server(connect.will.topic):
        raise ConnectionRefused(
            "the topic of the will is below $SYS, and only the server publishes there",
            reason_code=ReasonCode.NOT_AUTHORIZED,
            codec=codec,
        )
    if connect.will is not None and (refusal := parts.judge_will(connect.will)) is not None:
        raise ConnectionRefused("the will is too large, or its topic has too many levels", reason_code=refusal, codec=codec)
    if connect.authentication_method is not None:
        raise ConnectionRefused(
            "no authentication method is offered [MQTT-4.12.0-1]", reason_code=ReasonCode.BAD_AUTHENTICATION_METHOD, codec=codec
        )
    client_id = connect.client_id
    if not client_id and (codec is V31 or (codec is V311 and not connect.clean_start)):
        raise ConnectionRefused(
            "no client id, but a session to keep [MQTT-3.1.3-8] of MQTT 3.1.1, or MQTT 3.1",
            reason_code=ReasonCode.CLIENT_ID_NOT_VALID,
            codec=codec,
        )
    if len(client_id.encode()) > settings.max_client_id_bytes or has_control_character(client_id):
        raise ConnectionRefused(
            f"the client id has control characters or more than {settings.max_client_id_bytes} bytes",
            reason_code=ReasonCode.CLIENT_ID_NOT_VALID,
            codec=codec,
        )
    return codec, connect


def connected_event(
    connect: Connect,
    *,
    connection_id: int,
    partition: int,
    lease_id: str,
    has_fast_path: bool = False,
    username: str = "",
    gateway: str = "",
    claim: Claim = Claim.NONE,
    expired: ExpiredSession | None = None,
    continued: Continued | None = None,
) -> ClientConnected:
    """Makes the event for the engine.

    Args:
        username: Verified; empty = the device has not logged in.
        gateway: Name of this process.
    """
    will = connect.will
    if will is not None and username:
        will = msgspec.structs.replace(will, username=username)
    return ClientConnected(
        connection_id=connection_id,
        commands_partition=partition,
        protocol_version=connect.protocol_version,
        clean_start=connect.clean_start,
        session_expiry_interval_s=connect.session_expiry_interval_s,
        receive_maximum=connect.receive_maximum,
        maximum_packet_size_bytes=connect.maximum_packet_size_bytes,
        will=will,
        lease_id=lease_id,
        capabilities=Capability.FAST_PATH if has_fast_path else Capability.NONE,
        gateway=gateway,
        claim=claim,
        expired=expired,
        continued=continued,
    )


def expected_accept(connect: Connect, session: SessionSettings, registration: Registration) -> AcceptConnection:
    """Predicts the engine's answer to a CONNECT that begins a session, all but its sequence number.

    Args:
        session: Session settings of the client.
    """
    has_routing = session.routing
    return AcceptConnection(
        connection_id=registration.connection_id,
        partition=registration.partition,
        sequence=0,
        session_present=False,
        session_expiry_interval_s=session.granted_session_expiry_s(connect.session_expiry_interval_s),
        send_quota=min(session.window_limit, connect.receive_maximum),
        max_awaiting_rel=session.max_awaiting_rel,
        topic_filters=(),
        max_subscriptions=session.max_subscriptions,
        max_subscription_bytes=session.max_subscription_bytes,
        subscriptions=() if has_routing else None,
        list_connection_id=registration.connection_id if has_routing else 0,
    )


def connack(connect: Connect, accept: AcceptConnection, settings: GatewaySettings, *, assigned_client_id: str | None) -> ConnAck:
    """CONNACK 0x00, with the client id if it is ours [MQTT-3.1.3-7]. Properties that say what is the case anyway are left out."""
    expiry_s = accept.session_expiry_interval_s
    keep_alive_s = limited_keep_alive_s(connect.keep_alive_s, settings.device_limits.max_keep_alive_s)
    return ConnAck(
        session_present=accept.session_present,
        session_expiry_interval_s=expiry_s if expiry_s != connect.session_expiry_interval_s else None,
        receive_maximum=accept.max_awaiting_rel or None,
        maximum_packet_size_bytes=settings.max_packet_size_bytes,
        assigned_client_id=assigned_client_id,
        topic_alias_maximum=settings.topic_alias_maximum,
        server_keep_alive_s=keep_alive_s if keep_alive_s != connect.keep_alive_s else None,  # [MQTT-3.2.2-21]
        has_routing=settings.routing.enabled,
    )


@dataclass(slots=True, eq=False)
class Handshake:
    """Holds what is known of a connection before the engine has accepted it.

    Attributes:
        deadline_ms: of the present step; None = the handshake is over.
        read_ms: when CONNECT was read.
        grant: what the login allows.
        engine_knows: the engine was told of the connection, so it has to be told of its end.
        record: with ClientConnected, until Kafka has confirmed it.
        empty_list: the record that removes the subscriptions of an earlier session, until Kafka has confirmed it.
        mark: the record that says that there is a session, until Kafka has confirmed it.
        has_marked: there is or was such a record.
        marks_session: it may concern a session, and not a will alone.
        claim: what CONNACK says about the session before the session has read the CONNECT.
        claim_ends_ms: after this time the session may have ended that is claimed to be there.
        expired: the session that is claimed to have expired.
        left: what the client has left at this gateway, with which the connection goes on once it is served; None = nothing.
        max_left, max_left_bytes: as in AcceptConnection.
        earlier_wills_settled: no will of an earlier connection can get into the log any more, as the tables say.
        has_marked_settled: the mark of this connection said so of its own will, too.
        accepted_expiry_s: the session expiry interval by the engine's answer; None = it has not come.
        was_prompt: Kafka had that record without delay.
        expected: the engine's answer, which CONNACK has anticipated in the phase ANSWERED.
    """

    _settings: GatewaySettings
    deadline_ms: int | None
    connect: Connect = _NO_CONNECT
    read_ms: int = 0
    registration: Registration = _NOT_REGISTERED
    grant: Grant = EVERYTHING
    engine_knows: bool = False
    record: Append | None = None
    empty_list: Append | None = None
    mark: Append | None = None
    has_marked: bool = False
    marks_session: bool = False
    claim: Claim = Claim.NONE
    claim_ends_ms: int = 0
    expired: ExpiredSession | None = None
    left: LeftSession | None = None
    max_left: int = 0
    max_left_bytes: int = 0
    earlier_wills_settled: bool = False
    has_marked_settled: bool = False
    accepted_expiry_s: int | None = None
    was_prompt: bool = False
    expected: AcceptConnection | None = None

    def new_records(self) -> list[Append]:
        """Makes the record with ClientConnected, under the newest connection id, and the mark of the session."""
        event = connected_event(
            self.connect,
            connection_id=self.registration.connection_id,
            partition=self.registration.partition,
            lease_id=self.registration.lease_id,
            has_fast_path=self._settings.fast_path.enabled,
            username=self.grant.username,
            gateway=self.registration.gateway,
            claim=self.claim,
            expired=self.expired,
            continued=None if self.left is None else self.left.continued,
        )
        self.engine_knows, self.was_prompt = True, False
        self.record, self.empty_list, self.mark = Append(encode_event(event)), None, None
        may_resume = not self.connect.clean_start and self.claim is not Claim.NEW
        registration, is_clean = self.registration, self.connect.clean_start or self.expired is not None
        if not self._settings.routing.enabled:
            return [self.record]
        if is_clean and registration.tables.has_list(registration.client_id):
            empty = SubscriptionList(connection_id=registration.connection_id, version=0)
            self.empty_list = Append(encode_subscriptions(empty), topic=AppendTopic.SUBSCRIPTIONS)
        expiry_s, has_will = self._granted_expiry_s, self.connect.will is not None
        is_marked = registration.tables.kept_ms(registration.client_id) is not None
        self.marks_session = expiry_s > 0 or may_resume or is_marked
        self.has_marked = self.marks_session or has_will
        if not self.has_marked:
            return [self.record]
        # Without an expiry interval a session of earlier connections ends with this one: nobody may claim it from now on.
        self.mark = self._mark_record(NEVER_EXPIRES_S if expiry_s >= _SURELY_KEPT_S else expiry_s)
        self.has_marked_settled = self._are_wills_settled()
        if not may_resume:
            return [self.record, self.mark]
        # The gateway of an earlier connection has to know of this one when its record is behind the CONNECT (handing_on.py).
        self.mark.then, self.engine_knows = self.record, False
        return [self.mark]

    def _are_wills_settled(self, *, is_withdrawn: bool = False) -> bool:
        """Returns True if no will of this connection or of an earlier one can get into the log any more.

        The session accepts a connection when all wills of earlier ones are in the log.

        Args:
            is_withdrawn: DISCONNECT has withdrawn the will of this one.
        """
        has_none = self.connect.will is None or is_withdrawn
        return has_none and (self.earlier_wills_settled or self.accepted_expiry_s is not None)

    def _mark_record(self, kept_s: int, *, has_left: bool = False, is_withdrawn: bool = False) -> Append:
        """Makes the mark of this connection. Only settings that are those of the engine can say how long its session lives.

        Args:
            kept_s: For how long the session surely lives, in seconds.
            has_left: The connection is over, so the session has expired after that time.
            is_withdrawn: As in `ending_mark`.
        """
        registration = self.registration
        if not registration.knows_settings or self.accepted_expiry_s not in (None, self._granted_expiry_s):
            headers = [kept_header(0)]
        else:
            headers = left_headers(kept_s) if has_left else [kept_header(kept_s)]
        if self._are_wills_settled(is_withdrawn=is_withdrawn):
            headers.append(settled_header())
        return Append(
            encode_mark(registration.connection_id),
            headers=headers,
            topic=AppendTopic.SUBSCRIPTIONS,
            key=mark_key(registration.client_id),
            delays_lookups=has_left or self.connect.will is not None,
        )

    def mark_once_accepted(self) -> Append | None:
        """Makes the record that follows the session's answer; None = there is none.

        The mark of a connection with a will stays until the will is withdrawn or in the log.
        """
        return self.end_of_mark() if self.has_marked and not self.accepted_expiry_s and self.connect.will is None else None

    def ending_mark(self, changed_expiry_s: int | None = None, *, is_withdrawn: bool = False) -> Append | None:
        """Makes the record that says how long the session is kept after the connection, and whether a will may come.

        Args:
            changed_expiry_s: What DISCONNECT says, in seconds; None = nothing.
            is_withdrawn: DISCONNECT has withdrawn the will.

        Returns:
            None if nothing new is to be said.
        """
        if not self._settings.routing.enabled:
            return None
        expiry_s, is_accepted = self._granted_expiry_s, self.accepted_expiry_s is not None
        if not expiry_s and (not self.has_marked or (is_accepted and self.connect.will is None)):
            return None  # its mark ends when the session accepts the connection
        may_end = is_accepted or expiry_s > 0 or not self.marks_session
        if expiry_s and changed_expiry_s is not None:
            expiry_s = self._granted_s(changed_expiry_s)
        is_settled = self._are_wills_settled(is_withdrawn=is_withdrawn)
        if not expiry_s and may_end and is_settled:
            return self.end_of_mark()
        if expiry_s == NEVER_EXPIRES_S and is_settled == self.has_marked_settled:
            return None
        return self._mark_record(expiry_s, has_left=True, is_withdrawn=is_withdrawn)

    def end_of_mark(self) -> Append:
        """Makes the record that says that there is no session after this connection."""
        registration = self.registration
        headers = [(ENDED, b"%d" % registration.connection_id)]
        key = mark_key(registration.client_id)
        return Append(b"", headers=headers, topic=AppendTopic.SUBSCRIPTIONS, key=key, delays_lookups=True)

    @property
    def is_answerable(self) -> bool:
        """Nothing is missing before which nothing may be written to the device."""
        return self.empty_list is None and self.mark is None

    @property
    def _granted_expiry_s(self) -> int:
        return self._granted_s(self.connect.session_expiry_interval_s)

    def _granted_s(self, asked_s: int | None) -> int:
        return self._settings.session_of(self.registration.client_id).granted_session_expiry_s(asked_s)

    @property
    def is_session_of_connection(self) -> bool:
        """The session begins and ends with the connection, so that no later connection can repeat a publication to it."""
        return self.connect.clean_start and not self._granted_expiry_s

    @property
    def looks_up(self) -> bool:
        """The tables are asked what the device need not wait for the session for: CONNACK, and with Clean Start to be served.

        They are not if connections are not numbered by the brokers' clock: marks are put in order by these numbers.
        """
        registration = self.registration
        is_wanted = self.connect.clean_start or self._settings.routing.early_connack
        may_be_early = registration.knows_settings and registration.serves_at_once
        return is_wanted and may_be_early and registration.tables.knows_sessions

    def looked_up(self, is_current: bool, now_ms: int) -> None:
        """Notes whether a will of an earlier connection may come, and claims whether there is a session.

        Args:
            is_current: True if the tables have all that was in the log when CONNECT was read.
        """
        if not is_current or not self.looks_up:
            return
        self.earlier_wills_settled = self.registration.tables.wills_settled(self.registration.client_id)
        if self.connect.clean_start:
            return
        kept_ms = self.registration.tables.kept_ms(self.registration.client_id)
        if kept_ms is None:
            self.claim = Claim.NEW
        elif kept_ms >= _MARGIN_MS:
            self.claim, self.claim_ends_ms = Claim.RESUMED, now_ms + kept_ms - CLOCKS_MS
            self.left = self._left_here()
        elif (expired := self.registration.tables.expired(self.registration.client_id)) is not None:
            self.claim, self.expired = Claim.NEW, expired

    def _left_here(self) -> LeftSession | None:
        """Takes what the client has left at this gateway, if it was nowhere else since."""
        registration = self.registration
        left = registration.left_sessions.take(registration.client_id)
        is_newest = left is not None and registration.tables.marked_by(registration.client_id) == left.connection_id
        return left if is_newest and self._settings.fast_path.enabled else None

    @property
    def serves_at_once(self) -> bool:
        """The device need not wait for the engine once CONNACK was sent.

        It must while the will of an earlier connection may come: what it publishes belongs behind that.
        """
        is_first = self.earlier_wills_settled or not self._settings.routing.enabled
        return self.registration.serves_at_once and self.was_prompt and is_first

    def confirmed(self, now_ms: int) -> None:
        """Kafka has the record."""
        self.record = None
        self.was_prompt = not self.registration.is_late and now_ms - self.read_ms <= _PROMPT_MS

    def connack(self, accept: AcceptConnection) -> ConnAck:
        assigned_client_id = None if self.connect.client_id else self.registration.client_id  # [MQTT-3.1.3-6]
        return connack(self.connect, accept, self._settings, assigned_client_id=assigned_client_id)

    def expect(self, now_ms: int) -> AcceptConnection | None:
        """Returns the engine's answer, if CONNACK need not wait for it; None = it must."""
        registration = self.registration
        if self.left is not None and not self.left.is_complete:
            self.left = None
        if self.claim is Claim.RESUMED and now_ms > self.claim_ends_ms:
            return None
        if (self.connect.clean_start and registration.knows_settings) or self.claim:
            session = self._settings.session_of(registration.client_id)
            expected = expected_accept(self.connect, session, registration)
            is_resumed = self.claim is Claim.RESUMED
            if is_resumed:
                expected = msgspec.structs.replace(expected, session_present=True)
                if self.left is not None:
                    subscriptions, list_id = tuple(self.left.subscriptions), self.left.list_id
                    expected = msgspec.structs.replace(
                        expected, subscriptions=subscriptions, list_connection_id=list_id[0], list_version=list_id[1]
                    )
            self.expected = expected
        return self.expected

    def is_as_expected(self, accept: AcceptConnection, *, is_served: bool) -> bool:
        """Compares the engine's answer with what CONNACK has said, and, if the device is served, with what that builds on.

        What a resumed session holds is not expected, and nothing builds on it.
        """
        expected = self.expected
        if expected is None:
            return True
        if not is_served:
            return self.connack(expected) == self.connack(accept)
        if self.claim is Claim.RESUMED:
            held = {name: getattr(accept, name) for name in _HELD_BY_SESSION}
            expected = msgspec.structs.replace(expected, **held)
        never = {name: getattr(accept, name) for name in _NEVER_EXPECTED}
        return msgspec.structs.replace(expected, **never) == accept
