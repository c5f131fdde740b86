"""[gateway.login], [[listeners]], [[rules]] and [limits]: who may connect to a gateway, where, what for, and how much it may use
(docs/security.md).

Defaults: the settings of sinks.mqtt.access, sinks.mqtt.listeners and sinks.mqtt.limits.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from sinks.mqtt.access.settings import TOKEN_ALGORITHMS, AccessRule, LoginSettings
from sinks.mqtt.access.users.certificates import CertificateUser
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.listeners.settings import ClientCertificate, ListenerSettings, Transport
from sinks.mqtt_topics import is_topic_filter
from streaming.config.section import DurationMs, KeyPath, Section, SizeBytes, key
from streaming.config.units import DAY, HOUR, KIB, MIB, SECOND

_LISTENER: Final = ListenerSettings()
_RULE: Final = AccessRule()
_LIMITS: Final = DeviceLimits()


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError("write an address or a network, for example 10.0.0.0/8") from None
    return value


def _algorithm(value: str) -> str:
    if value not in TOKEN_ALGORITHMS:
        raise ValueError(f"these are possible: {', '.join(TOKEN_ALGORITHMS)}")
    return value


def _topic_filter(value: str) -> str:
    if not is_topic_filter(value):
        raise ValueError("this is no topic filter: + and # stand for whole levels, # for the last ones")
    return value


_Networks = tuple[Annotated[str, AfterValidator(_network)], ...]
_TopicFilters = tuple[Annotated[str, AfterValidator(_topic_filter)], ...]
_KeepAlive = Annotated[DurationMs, Field(ge=SECOND, le=65_535 * SECOND, multiple_of=SECOND)]
_Path = Annotated[str, Field(pattern=r"^/[^?#\s]*$")]


class LoginSection(Section, configures=LoginSettings()):
    """How devices say who they are (docs/security.md). Client certificates are a matter of [[listeners]]."""

    password_file: str = key("users and hashes of passwords, written by `inflight users`; empty = no passwords")
    password_cache_ms: DurationMs = key(
        "a password that was right is not hashed again for this long, unless the file changes for its user", ge=0, le=30 * DAY
    )
    max_waiting: int = key(
        "passwords that wait to be hashed, 20 ms each; beyond, CONNECT is refused with 0x89", ge=1, le=1_000_000
    )
    token_keyfile: str = key("PEM file of the public key of who signs JSON Web Tokens; empty = no tokens")
    token_algorithms: tuple[Annotated[str, AfterValidator(_algorithm)], ...] = key(
        f"with which a token may be signed, of {', '.join(TOKEN_ALGORITHMS)}", min_length=1
    )
    token_username_claim: str = key("claim that is the user name", min_length=1)
    token_issuer: str = key("`iss` that a token must have; empty = any")
    token_audience: str = key("`aud` that a token must name; empty = any")
    max_failures: int = key(
        "wrong passwords in a row from one address; from then on no new one is looked at for a while; 0 = always, as behind a "
        "load balancer that does not tell addresses",
        ge=0,
        le=1_000_000,
    )
    failure_wait_ms: DurationMs = key("the first such while; it doubles with each failure", ge=1, le=HOUR)
    max_failure_wait_ms: DurationMs = key("and ends here", ge=SECOND, le=DAY)

    def to_login_settings(self) -> LoginSettings:
        return self.plain(LoginSettings)


class ListenerSection(Section, configures=_LISTENER):
    """One more address of the MQTT listener, besides gateway.host and gateway.port."""

    host: str = key("address to listen on; 0.0.0.0 = all", min_length=1)
    port: int = key("0 = any free one", ge=0, le=65_535)
    transport: Transport = key("what carries MQTT: tcp or websocket")
    anonymous: bool = key("let devices in that do not log in")
    tls_certfile: str = key("PEM file of the certificate and its chain, read again when it changes; empty = no TLS")
    tls_keyfile: str = key("PEM file of its key, without a password; empty = it is in tls_certfile")
    client_certificate: ClientCertificate = key("whether devices show one: none, optional or required; it is their login")
    client_cafile: str = key("PEM file of the authorities that may have signed it")
    certificate_user: CertificateUser = key("what of it is the user name: cn, or san = the first DNS name or e-mail address")
    proxies: _Networks = key(
        "addresses or networks of load balancers that send PROXY protocol v2; then nobody else may connect here"
    )
    websocket_path: _Path = key("of the URL")
    websocket_origins: tuple[str, ...] = key(
        'web sites whose pages may connect, for example "https://app.example.com"; "*" = all; other devices name none'
    )

    def to_listener_settings(self) -> ListenerSettings:
        return self.plain(ListenerSettings)

    def problems(self, path: KeyPath, login: LoginSection) -> Iterator[tuple[KeyPath, str]]:
        """What the keys are not allowed to be together, and what to change."""
        asks = self.client_certificate is not ClientCertificate.NONE
        if asks and not (self.tls_certfile and self.client_cafile):
            yield (*path, "client_certificate"), "needs tls_certfile and client_cafile, the authorities that may have signed it"
        if self.tls_keyfile and not self.tls_certfile:
            yield (*path, "tls_keyfile"), "is the key of no certificate: set tls_certfile, too"
        listener = self.to_listener_settings()
        if not asks:
            yield from nobody_can_log_in(listener, login, path)


class RuleSection(Section, configures=_RULE):
    """What some users may do; the first rule whose `users` match holds, alone."""

    users: tuple[str, ...] = key(
        "patterns of user names: * any text, ? one character; who does not log in has an empty one", min_length=1
    )
    client_ids: tuple[str, ...] = key("patterns of client ids that they may use; an empty one = the gateway chooses")
    publish: _TopicFilters = key("topics that they may publish to")
    subscribe: _TopicFilters = key("topics that they may subscribe to")

    def to_access_rule(self) -> AccessRule:
        return self.plain(AccessRule)


class LimitsSection(Section, configures=_LIMITS):
    """What devices may use of a gateway, besides what [gateway] and [session] say (docs/security.md)."""

    max_connections: int = key("sockets of all devices; one more is closed at once", ge=1, le=1_000_000)
    max_connections_per_address: int = key(
        "sockets of one address, in IPv6 of one /64 network; one more is closed at once", ge=1, le=1_000_000
    )
    unlimited_addresses: _Networks = key(
        "addresses or networks that stand for many devices, such as load balancers that do not tell addresses: for them "
        "max_connections_per_address does not hold"
    )
    max_awaiting_connect: int = key(
        "sockets that have not sent CONNECT yet, TLS handshake included; one more closes the one that has waited for longest",
        ge=1,
        le=1_000_000,
    )
    max_connect_rate: int = key("CONNECTs a second that are looked at; others wait for their turn", ge=1, le=1_000_000)
    max_waiting_connects: int = key(
        "CONNECTs that wait so; addresses take turns, and one may have as many as there is room left; beyond, CONNECT is refused "
        "with 0x89",
        ge=0,
        le=1_000_000,
    )
    max_unanswered_connects: int = key("CONNECTs that the engine has not answered; others wait", ge=1, le=1_000_000)
    max_connect_bytes: SizeBytes = key(
        "of a CONNECT, and what is read of a device before it is accepted; a larger one is closed", ge=KIB, le=64 * MIB
    )
    max_connect_properties_bytes: SizeBytes = key(
        "MQTT 5 properties of a CONNECT and its will together; beyond, it is refused with 0x97", ge=64, le=MIB
    )
    max_properties_bytes: SizeBytes = key(
        "the same of any other packet; beyond, the connection is closed with 0x97", ge=64, le=MIB
    )
    max_subscribe_filters: int = key(
        "topic filters of one SUBSCRIBE or UNSUBSCRIBE; beyond, the connection is closed with 0x97", ge=1, le=65_535
    )
    max_will_bytes: SizeBytes = key(
        "topic, payload and properties of a will; beyond, CONNECT is refused with 0x97 (3 in MQTT 3.1.1)", ge=KIB, le=64 * MIB
    )
    max_topic_levels: int = key(
        "levels of a topic or topic filter; beyond, PUBLISH and CONNECT with a will are refused with 0x90, SUBSCRIBE with 0x8F; "
        "MQTT 3.1.1: closed, 3 and 0x80",
        ge=1,
        le=65_535,
    )
    max_packet_rate: int = key(
        "packets of any type a second of one device; it is not read from any faster; 64 bytes of properties, or a "
        "further topic filter, count like one more; 0 = no limit",
        ge=0,
        le=1_000_000,
    )
    max_byte_rate: SizeBytes = key("the same in bytes", ge=0, le=1 << 30)
    max_delay_ms: DurationMs = key(
        "while devices that send little wait for longer than this, for the gateway or for Kafka, a device may send only a "
        "share of these rates, at least a 64th: that slows down who sends most, and CONNECTs are looked at up to eight times as "
        "slowly; 0 = all may always send all of them",
        ge=0,
        le=10 * SECOND,
    )
    max_keep_alive_ms: _KeepAlive = key(
        "a device that asks for a longer keep alive, or for none, gets this one; MQTT 5 is told so, MQTT 3.1.1 is closed all the "
        "same when it is silent for one and a half times that",
        _LIMITS.max_keep_alive_s * SECOND,
    )
    tcp_keepalive_ms: DurationMs = key(
        "TCP asks a silent device after this long whether it is there, and closes after about twice as long; 0 = not at all",
        ge=0,
        le=2 * HOUR,
    )
    max_total_unconfirmed_appends: int = key(
        "records of all devices together that Kafka has not confirmed; beyond, the gateway reads from nobody until it is half of "
        "that",
        ge=1,
        le=10_000_000,
    )
    max_total_unconfirmed_bytes: SizeBytes = key("the same in bytes, headers included", ge=MIB, le=64 << 30)
    max_total_buffered_bytes: SizeBytes = key(
        "bytes that the gateway holds for all devices together: packets whose end has not come, messages that wait for their "
        "device, and what was written and not taken; beyond, those that hold most are closed until it is three quarters of that",
        ge=MIB,
        le=64 << 30,
    )
    max_blocked_qos0_bytes: SizeBytes = key(
        "QoS 0 messages for a device that does not read, headers included; beyond, they are dropped", ge=0, le=1 << 30
    )

    def to_device_limits(self) -> DeviceLimits:
        return self.plain(DeviceLimits, max_keep_alive_s=self.max_keep_alive_ms // SECOND)


def nobody_can_log_in(listener: ListenerSettings, login: LoginSection, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """path: of the keys of the listener."""
    is_configured = login.to_login_settings().is_configured
    if not is_configured and not listener.lets_anonymous_in(is_login_configured=is_configured):
        yield (
            (*path, "host"),
            f"is {listener.host}, which others reach, and nobody could log in there: set gateway.login.password_file or "
            "gateway.login.token_keyfile, ask for client certificates in [[listeners]], or say anonymous = true for everybody",
        )


def access_problems(
    plain: ListenerSettings | None, listeners: Sequence[ListenerSection], login: LoginSection
) -> Iterator[tuple[KeyPath, str]]:
    """plain: that of gateway.host and gateway.port; None = it is off."""
    if plain is not None:
        yield from nobody_can_log_in(plain, login, ("gateway",))
    elif not listeners:
        yield ("gateway", "port"), "is -1, so there must be [[listeners]]"
    for index, listener in enumerate(listeners):
        yield from listener.problems(("listeners", index), login)
    if login.max_failure_wait_ms < login.failure_wait_ms:
        yield ("gateway", "login", "max_failure_wait_ms"), "is less than failure_wait_ms: raise it"
