"""What a gateway may be told. Plain values: reading, checking and explaining them is the host's work (streaming/config)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from sinks.fast_path.settings import FastPathSettings
from sinks.mqtt.access.settings import AccessRule, LoginSettings
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.listeners.settings import ListenerSettings
from state.records.settings import RecordLimits
from state.settings import SessionSettings

NO_LISTENER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where one gateway listens, which Kafka it talks to, and what it lets a device do.

    These are the defaults of [gateway], too: streaming/config/mqtt_sections.py takes them from here.
    """

    host: str = "127.0.0.1"
    port: int = 1883  # 0 = any free one, told to `on_ready`; NO_LISTENER = only `listeners`
    anonymous: bool = False
    """Who does not log in is let in at this address, whatever it is. On loopback that is so anyway while `login` has no way to
    log in."""
    listeners: tuple[ListenerSettings, ...] = ()  # besides `host` and `port`
    shares_ports: bool = False
    """Other gateway processes on this machine listen on the same ports, and the kernel shares the connections out."""
    login: LoginSettings = field(default_factory=LoginSettings)
    rules: tuple[AccessRule, ...] = ()  # none = sinks.mqtt.access.settings.DEFAULT_RULES
    bootstrap_servers: str = "127.0.0.1:9092"
    events_topic: str = "inflight.events"
    commands_topic: str = "inflight.commands"
    uplink_topic: str = "inflight.uplink"
    leases_topic: str = "inflight.leases"
    group_id: str = "inflight-gateways"
    group_instance_id: str | None = None
    """A name that this gateway keeps over restarts: a restarted one gets its partitions back at once, not after
    `group_session_timeout_ms`. Two running gateways must never share one."""
    group_session_timeout_ms: int = 10_000
    lease_ms: int = 30_000
    """A gateway whose renewals Kafka has not confirmed for this long closes its connections; after one and a half times this the
    engine ends those that are left."""
    connect_timeout_ms: int = 10_000  # from the socket to a complete CONNECT whose login is verified, and how old one may be
    accept_timeout_ms: int = 30_000  # from CONNECT to the engine's `AcceptConnection`
    append_timeout_ms: int = 30_000  # Kafka confirms a record within this, or the connection that wrote it is closed
    drain_ms: int = 10_000
    """A gateway that stops closes its connections in slices within about this long, few of them sooner; 0 = all at once."""
    reconnect_grace_ms: int = 30_000
    """A device whose connection the gateway ends for a reason of its own (it stops, or loses a partition or its lease) has this
    long to come back before its will is published; a longer delay of the will holds."""
    stop_timeout_ms: int = 5_000
    """After `drain_ms`: for what Kafka has not confirmed, and once more for leaving the group and flushing the log."""
    stalled_write_timeout_ms: int = 60_000
    """A device that takes nothing for this long is closed (one with keep alive: 1.5 times that)."""
    max_packet_size_bytes: int = 524_288
    max_client_id_bytes: int = 1_024
    max_unconfirmed_appends: int = 256
    """Records of one connection that Kafka has not confirmed; beyond, the gateway does not read from that device."""
    max_unconfirmed_bytes: int = 4_194_304  # the same in bytes
    max_write_buffer_bytes: int = 262_144  # bytes that a device has not taken yet; beyond, it is sent nothing new
    topic_alias_maximum: int = 16
    max_publish_rate: int = 0
    """QoS 1 and 2 publications a second of one MQTT 5 connection; those beyond are refused with 0x97 and reach nobody. 0 = no
    limit. QoS 0 and MQTT 3.1.1 have no way to refuse: for them the limits on unconfirmed records hold."""
    producer_linger_ms: int = 0
    fetch_max_wait_ms: int = 250
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """By librdkafka's names (security.protocol, ssl.…, sasl.…), and others of Kafka's, of which it takes those that it has."""
    device_limits: DeviceLimits = field(default_factory=DeviceLimits)
    fast_path: FastPathSettings = field(default_factory=FastPathSettings)
    limits: RecordLimits = field(default_factory=RecordLimits)  # the engine's, for messages that it has not read yet
    session: SessionSettings = field(default_factory=SessionSettings)  # the engine's, for what is said before it has answered
    profiles: tuple[tuple[str, SessionSettings], ...] = ()
    """(pattern of client ids, settings in place of `session`); the first match holds."""

    def session_of(self, client_id: str) -> SessionSettings:
        """Of one client, without what policies add."""
        return next((session for pattern, session in self.profiles if fnmatchcase(client_id, pattern)), self.session)

    @property
    def all_listeners(self) -> tuple[ListenerSettings, ...]:
        """The plain one of `host` and `port` first, if it is wanted."""
        if self.port == NO_LISTENER:
            return self.listeners
        return (self.plain_listener, *self.listeners)

    @property
    def plain_listener(self) -> ListenerSettings:
        """That of `host` and `port`."""
        return ListenerSettings(host=self.host, port=self.port, anonymous=self.anonymous)
