"""The settings of a gateway: the keys of [gateway], [gateway.login], [limits], [[listeners]] and [[rules]]."""

import ipaddress
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from sinks.kafka.host_settings import HostSettings
from sinks.mqtt.access.certificates import CertificateUser
from sinks.mqtt.access.token_keys import check_key_server
from sinks.mqtt_topics import is_topic_filter
from sinks.routing.settings import FastPathSettings, RoutingSettings
from state.setting import DAY, HOUR, KIB, MIB, MINUTE, SECOND, Setting
from state.settings import RecordLimits, SessionSettings


def check_network(text: str) -> None:
    """Raises ValueError if the text is neither an address nor a network."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("write an address or a network, for example 10.0.0.0/8") from None


class Limit(StrEnum):
    """A limit that was reached: a label of the metric and of log lines. Each is named after the key that sets it."""

    CONNECTIONS = "max_connections"
    CONNECTIONS_PER_ADDRESS = "max_connections_per_address"
    AWAITING_CONNECT = "max_awaiting_connect"
    WAITING_CONNECTS = "max_waiting_connects"
    CONNECT_PROPERTIES_BYTES = "max_connect_properties_bytes"
    PROPERTIES_BYTES = "max_properties_bytes"
    SUBSCRIBE_FILTERS = "max_subscribe_filters"
    SUBSCRIPTIONS = "max_subscriptions"
    WILL_BYTES = "max_will_bytes"
    TOPIC_LEVELS = "max_topic_levels"
    PACKET_RATE = "max_packet_rate"
    BYTE_RATE = "max_byte_rate"
    TOTAL_UNCONFIRMED_APPENDS = "max_total_unconfirmed_appends"
    TOTAL_UNCONFIRMED_BYTES = "max_total_unconfirmed_bytes"
    TOTAL_BUFFERED_BYTES = "max_total_buffered_bytes"
    RETAINED_MESSAGES = "max_retained_messages"
    RETAINED_BYTES = "max_retained_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """Limits on what devices may use of a gateway, besides those of [gateway] and [session] (docs/operate/security.md)."""

    max_connections: int = Setting("sockets of all devices; one more is closed at once", (1, 1_000_000)).default(20_000)
    max_connections_per_address: int = Setting("sockets of one address, in IPv6 of one /64 network", (1, 1_000_000)).default(
        1_000
    )
    unlimited_addresses: tuple[str, ...] = Setting(
        "networks that max_connections_per_address does not hold for, such as load balancers that hide addresses",
        check=check_network,
    ).default(("127.0.0.0/8", "::1/128"))
    # Closing the oldest lets devices through that send CONNECT at once.
    max_awaiting_connect: int = Setting(
        "sockets before CONNECT, TLS handshake and PROXY header included; one more closes the oldest", (1, 1_000_000)
    ).default(2_000)
    max_connect_rate: int = Setting("CONNECTs handled a second; others wait their turn", (1, 1_000_000)).default(4_000)
    max_waiting_connects: int = Setting(
        "CONNECTs that wait their turn; addresses take turns; beyond, CONNECT is refused with 0x89", (0, 1_000_000)
    ).default(5_000)
    max_unanswered_connects: int = Setting("CONNECTs that the engine has not answered; others wait", (1, 1_000_000)).default(
        2_000
    )
    max_connect_bytes: int = Setting(
        "a CONNECT, and what is read of a device before it is accepted; beyond, it is closed", (KIB, 64 * MIB)
    ).default(32_768)
    max_connect_properties_bytes: int = Setting(
        "MQTT 5 properties of a CONNECT and its will together; beyond, it is refused with 0x97", (64, MIB)
    ).default(1_024)
    max_properties_bytes: int = Setting(
        "MQTT 5 properties of any other packet; beyond, PUBLISH and SUBSCRIBE are refused with 0x97, UNSUBSCRIBE with 0x83, QoS "
        "0 is dropped, and others close the connection with 0x97",
        (64, MIB),
    ).default(8_192)
    max_subscribe_filters: int = Setting(
        "topic filters of one SUBSCRIBE; those beyond are refused with 0x97, 0x80 in MQTT 3.1.1; UNSUBSCRIBE may name as many as "
        "session.max_subscriptions too, and those beyond get 0x83, or close the connection in MQTT 3.1.1",
        (1, 65_535),
    ).default(256)
    max_will_bytes: int = Setting(
        "topic, payload and properties of a will; beyond, CONNECT is refused with 0x97 (3 in MQTT 3.1.1)", (KIB, 64 * MIB)
    ).default(16_384)
    max_topic_levels: int = Setting(
        "levels of a topic or topic filter; beyond, PUBLISH and CONNECT with a will are refused with 0x90, SUBSCRIBE with 0x8F; "
        "in MQTT 3.1.1 a PUBLISH closes the connection, CONNECT gets 3 and SUBSCRIBE 0x80",
        (1, 65_535),
    ).default(32)
    max_packet_rate: int = Setting(
        "packets a second that are read of one device; 64 bytes of properties, or a further topic filter, count as one more; 0 = "
        "no limit",
        (0, 1_000_000),
    ).default(2_000)
    max_byte_rate: int = Setting("bytes a second that are read of one device; 0 = no limit", (0, 1 << 30), unit="bytes").default(
        4_194_304
    )
    max_delay_ms: int = Setting(
        "while devices that send little wait longer than this for the gateway or for Kafka, every device may send only a share "
        "of these rates, at least 1/64, and CONNECTs are handled down to 1/8 as fast; 0 = the full rates always hold",
        (0, 10 * SECOND),
    ).default(5)
    max_keep_alive_s: int = Setting(
        "a device that asks for a longer keep alive, or for none, gets this one; MQTT 5 is told so, MQTT 3.1.1 is closed all the "
        "same when it is silent for one and a half times that",
        (1, 65_535),
        key="max_keep_alive_ms",
    ).default(3_600)
    tcp_keepalive_ms: int = Setting(
        "TCP probes a silent device after this long, and closes after about twice as long; 0 = never", (0, 2 * HOUR)
    ).default(60_000)
    max_total_unconfirmed_appends: int = Setting(
        "records of all devices that Kafka has not confirmed; beyond, nobody is read from until it is half of that",
        (1, 10_000_000),
    ).default(20_000)
    max_total_unconfirmed_bytes: int = Setting("size of these records; beyond, likewise", (MIB, 64 << 30)).default(67_108_864)
    max_total_buffered_bytes: int = Setting(
        "bytes that the gateway holds for all devices together: incomplete packets, messages that wait for their device, and "
        "what was written and not read; beyond, those that hold most are closed until it is three quarters of that",
        (MIB, 64 << 30),
    ).default(268_435_456)
    max_blocked_qos0_bytes: int = Setting(
        "QoS 0 messages for a device that does not read, or that wait behind the fast path; beyond, dropped; 1/32 of it while "
        "all devices have more than half of max_total_buffered_bytes",
        (0, 1 << 30),
    ).default(8 * MIB)


TOKEN_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""These have a public key. With a shared key, everybody who can verify a token could make one."""


def _check_algorithm(text: str) -> None:
    if text not in TOKEN_ALGORITHMS:
        raise ValueError(f"these are possible: {', '.join(TOKEN_ALGORITHMS)}")


def _check_topic_filter(text: str) -> None:
    if not is_topic_filter(text):
        raise ValueError("this is no topic filter: + and # stand for whole levels, # for the last ones")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """The login of devices (docs/operate/security.md); [[listeners]] has client certificates. Changed files are read again."""

    password_file: str = Setting("users and hashes of passwords, written by `inflight users`; empty = no passwords").default("")
    password_cache_ms: int = Setting(
        "a password that was right is not hashed again for this long, unless the file changes for its user", (0, 30 * DAY)
    ).default(86_400_000)
    max_waiting: int = 1_000
    """Passwords that wait to be hashed, 20 ms each. Beyond, connect_timeout_ms would pass, so CONNECT is refused with 0x89."""
    token_keyfile: str = Setting(
        "file of the public key that verifies JSON Web Tokens, in PEM, or of several as a JSON Web Key Set; empty = none"
    ).default("")
    token_jwks_url: str = Setting(
        "URL from which a gateway reads these keys as a JSON Web Key Set instead, at https, or at this machine; empty = none",
        check=check_key_server,
    ).default("")
    token_jwks_cafile: str = Setting("PEM file of the authorities of that server; empty = those of the system").default("")
    token_jwks_refresh_ms: int = Setting(
        "the keys are read again after this long, and when a token names an unknown one, at most every 2 s", (SECOND, DAY)
    ).default(300_000)
    token_algorithms: tuple[str, ...] = Setting(
        f"with which a token may be signed, of {', '.join(TOKEN_ALGORITHMS)}", min_length=1, check=_check_algorithm
    ).default(("RS256", "ES256"))
    token_username_claim: str = Setting("claim that is the user name", min_length=1).default("sub")
    token_issuer: str = Setting("`iss` that a token must have; empty = any").default("")
    token_audience: str = Setting("`aud` that a token must name; empty = any").default("")
    max_failures: int = Setting(
        "wrong passwords in a row from one address; after them it waits 1 s, twice as long after each other one, at most 1 min; "
        "0 = it never waits, as behind a load balancer that hides addresses",
        (0, 1_000_000),
    ).default(10)
    failure_wait_ms: int = 1_000
    max_failure_wait_ms: int = 60_000  # others behind the same address are not locked out for longer

    @property
    def is_configured(self) -> bool:
        """Returns True if there is a way to log in besides client certificates."""
        return bool(self.password_file) or self.has_tokens

    @property
    def has_tokens(self) -> bool:
        return bool(self.token_keyfile or self.token_jwks_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """The permissions of some users. Only the first rule whose `users` match holds.

    In client_ids, publish, subscribe and not_subscribe `{username}` and `{client_id}` stand for the device's own, in which no
    character is a wildcard.
    """

    users: tuple[str, ...] = Setting(
        "patterns of user names: * any text, ? one character; a device that does not log in has an empty one", min_length=1
    ).default(("*",))
    client_ids: tuple[str, ...] = Setting("patterns of client ids that they may use; an empty one = the gateway chooses").default(
        ("{username}", "{username}/*", "")
    )
    publish: tuple[str, ...] = Setting("topics that they may publish to", check=_check_topic_filter).default(("#",))
    subscribe: tuple[str, ...] = Setting("topics that they may subscribe to", check=_check_topic_filter).default(("#",))
    not_subscribe: tuple[str, ...] = Setting(
        "topics that they may not subscribe to, and get 0x80 for; a filter that matches other topics too, such as #, is granted",
        check=_check_topic_filter,
    ).default(())


DEFAULT_RULES: Final = (AccessRule(users=("",), client_ids=("*",)), AccessRule())
"""Hold if no rule is configured: an anonymous device may do everything, a user everything under its own client ids."""


class Transport(StrEnum):
    """The carrier of MQTT packets, inside TLS."""

    TCP = "tcp"
    WEBSOCKET = "websocket"


class ClientCertificate(StrEnum):
    """Selects whether devices authenticate with a TLS client certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """One more address of the MQTT listener, besides gateway.host and gateway.port. Files are read again when they change."""

    host: str = Setting("address to listen on; 0.0.0.0 = all of IPv4, :: = all", min_length=1).default("127.0.0.1")
    port: int = Setting("0 = any free one", (0, 65_535)).default(8883)
    transport: Transport = Setting("what carries MQTT: tcp or websocket").default(Transport.TCP)
    anonymous: bool = Setting("let devices in that do not log in").default(False)
    tls_certfile: str = Setting("PEM file of the certificate and its chain; empty = no TLS").default("")
    tls_keyfile: str = Setting("PEM file of its key, without a password; empty = it is in tls_certfile").default("")
    sni_certfiles: tuple[str, ...] = Setting(
        "PEM files, each with a certificate, its chain and its key; a device that asks for a host name of one of them (SNI) gets "
        "that one, any other device gets tls_certfile"
    ).default(())
    client_certificate: ClientCertificate = Setting(
        "do devices show a certificate: none, optional or required; it is their login"
    ).default(ClientCertificate.NONE)
    client_cafile: str = Setting("PEM file of the authorities that may have signed it").default("")
    client_crlfile: str = Setting(
        "PEM file of their revocation lists: a certificate that is on one, or whose authority has no list in force here, is "
        "refused; empty = none is checked"
    ).default("")
    certificate_user: CertificateUser = Setting(
        "which part of it is the user name: cn, or san = the first DNS name or e-mail address"
    ).default(CertificateUser.CN)
    proxies: tuple[str, ...] = Setting(
        "addresses or networks of load balancers that send PROXY protocol v1 or v2; then nobody else may connect here; empty = "
        "no such header is read",
        check=check_network,
    ).default(())
    websocket_path: str = Setting("path of the URL", pattern=r"^/[^?#\s]*$").default("/mqtt")
    websocket_origins: tuple[str, ...] = Setting(
        'web sites whose pages may connect, as browsers say it in `Origin`, for example "https://app.example.com"; "*" = all; '
        "a device that sends no `Origin` is not checked"
    ).default(())

    tcp_keepalive_ms: int | None = Setting(
        "as limits.tcp_keepalive_ms, for devices of this listener; inherit = that one", (0, 2 * HOUR), none="inherit"
    ).default(None)

    def lets_anonymous_in(self, *, is_login_configured: bool) -> bool:
        """Returns True if the configuration says so, or if only this machine connects and nobody could log in.

        A proxy on this machine connects for others.
        """
        return self.anonymous or (not is_login_configured and is_loopback(self.host) and not self.proxies)

    def url(self, host: str, port: int) -> str:
        """Returns the address of a device's client for this listener, such as mqtts://0.0.0.0:8883.

        Args:
            host, port: Where it listens. They differ from the settings if those let any port do.
        """
        is_websocket = self.transport is Transport.WEBSOCKET
        scheme = ("ws" if is_websocket else "mqtt") + ("s" if self.tls_certfile else "")
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{self.websocket_path if is_websocket else ''}"

    @property
    def file_names(self) -> tuple[str, ...]:
        names = (self.tls_certfile, self.tls_keyfile, *self.sni_certfiles, self.client_cafile, self.client_crlfile)
        return tuple(name for name in names if name)


def is_loopback(host: str) -> bool:
    """Returns True if only this machine reaches the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


NO_LISTENER: Final = -1
AUTO: Final = 0
"""The value of `processes` for `auto`."""
_MAX_PROCESSES: Final = 64


def _read_processes(value: object) -> int:
    if value == "auto":
        return AUTO
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, int) and not isinstance(number, bool) and AUTO <= number <= _MAX_PROCESSES:
        return number
    raise ValueError(f"not a number of processes: 1 to {_MAX_PROCESSES}, or auto")


def _show_processes(value: object) -> str | int:
    return value if isinstance(value, int) and value != AUTO else "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(HostSettings):
    """The MQTT listener: its address, and what a device may do; [limits] has more of that."""

    host: str = Setting(
        "address to listen on without TLS; 0.0.0.0 = all of IPv4, :: = all; for the others see [[listeners]]"
    ).default("127.0.0.1")
    port: int = Setting("0 = any free one, -1 = only [[listeners]]", (NO_LISTENER, 65_535)).default(1883)
    anonymous: bool = Setting(
        "let devices in that do not log in; on loopback they are let in anyway while [gateway.login] has no way to log in"
    ).default(False)
    processes: int = Setting(
        "processes that share the ports (Linux), each with partitions and [limits] of its own; auto = one for each processor",
        read=_read_processes,
        show=_show_processes,
    ).default(1)
    group_id: str = Setting("consumer group by which gateways share PREFIX.commands", min_length=1).default("inflight-gateways")
    connect_timeout_ms: int = Setting(
        "from the socket to a complete CONNECT whose login is verified; a CONNECT that is older is refused", (100, 5 * MINUTE)
    ).default(10_000)
    accept_timeout_ms: int = 30_000
    """The least time from CONNECT to the engine's answer. Then the connection is closed, and its device connects again. An engine
    that answers more slowly gets more time (ConnectQueue)."""
    drain_ms: int = Setting(
        "a gateway that stops closes its connections in slices within this, so that its devices do not all connect elsewhere at "
        "once; few of them take less; 0 = all at once",
        (0, 10 * MINUTE),
    ).default(10_000)
    reconnect_grace_ms: int = Setting(
        "grace period before the will of a device whose connection the gateway closes for a reason of its own (it stops, or "
        "loses a partition or its lease); a longer Will Delay Interval holds",
        (0, HOUR),
    ).default(30_000)
    stalled_write_timeout_ms: int = Setting(
        "a device that takes nothing of what waits for it is closed after this long, or after 1.5 keep alives if that is longer",
        (SECOND, HOUR),
    ).default(60_000)
    max_packet_size_bytes: int = Setting("Maximum Packet Size of CONNACK, also for MQTT 3.1.1", (KIB, 64 * MIB)).default(524_288)
    max_client_id_bytes: int = Setting("longest client id, in bytes of UTF-8", (23, 65_535)).default(1_024)
    max_unconfirmed_appends: int = Setting(
        "records of one device that Kafka has not confirmed; beyond, it is not read from", (1, 65_535)
    ).default(256)
    max_unconfirmed_bytes: int = Setting("size of these records, waiting answers included", (64 * KIB, 1 << 30)).default(
        4_194_304
    )
    max_write_buffer_bytes: int = Setting(
        "bytes that a device has not read; beyond, it gets nothing new", (KIB, 1 << 30)
    ).default(262_144)
    topic_alias_maximum: int = 16
    """Topic aliases that an MQTT 5 device may use in a connection: few, because the gateway keeps their topics in memory."""
    # QoS 0 and MQTT 3.1.1 have no way to refuse: for them the limits on unconfirmed records hold.
    max_publish_rate: int = Setting(
        "QoS 1 and 2 publications a second of one MQTT 5 device; others are refused with 0x97; 0 = no limit", (0, 1_000_000)
    ).default(0)
    answer_delay_ms: int = Setting(
        "how much later PUBACK and PUBREC leave while the publications of the device's partition wait for a recipient that is "
        "connected and behind (routing.max_wait_ms); 0 = no later",
        (0, 10 * SECOND),
    ).default(SECOND)
    login: LoginSettings = Setting(reloaded_by=("gateway",)).default(LoginSettings())
    listeners: tuple[ListenerSettings, ...] = ()  # besides `host` and `port`
    rules: tuple[AccessRule, ...] = ()  # none = sinks.mqtt.settings.DEFAULT_RULES
    shares_ports: bool = False  # with other gateway processes on this machine; the kernel shares the connections out
    device_limits: DeviceLimits = field(default_factory=DeviceLimits)
    fast_path: FastPathSettings = field(default_factory=FastPathSettings)
    routing: RoutingSettings = field(default_factory=partial(RoutingSettings, enabled=False))  # Configuration: on
    limits: RecordLimits = field(default_factory=RecordLimits)  # the engine's, for messages that it has not read yet
    session: SessionSettings = field(default_factory=SessionSettings)  # the engine's, for what is said before it has answered
    profiles: tuple[tuple[str, SessionSettings], ...] = ()  # (pattern of client ids, instead of `session`); the first match holds

    def session_of(self, client_id: str) -> SessionSettings:
        """Returns the settings of one client, without what policies add."""
        return next((session for pattern, session in self.profiles if fnmatchcase(client_id, pattern)), self.session)

    @property
    def all_listeners(self) -> tuple[ListenerSettings, ...]:
        """Returns the listener of `host` and `port` first, if it is wanted, then `listeners`."""
        if self.port == NO_LISTENER:
            return self.listeners
        return (self.plain_listener, *self.listeners)

    @property
    def plain_listener(self) -> ListenerSettings:
        """Returns the listener of `host` and `port`."""
        return ListenerSettings(host=self.host, port=self.port, anonymous=self.anonymous)
