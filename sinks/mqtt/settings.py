"""The settings of a gateway: the keys of [gateway], and the other tables that it uses."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from sinks.fast_path.settings import FastPathSettings
from sinks.kafka.host_settings import HostSettings
from sinks.mqtt.access.settings import AccessRule, LoginSettings
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.listeners.settings import ListenerSettings
from sinks.routing.settings import RoutingSettings
from state.records.settings import RecordLimits
from state.setting import HOUR, KIB, MIB, MINUTE, SECOND, Setting
from state.settings import SessionSettings

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
    rules: tuple[AccessRule, ...] = ()  # none = sinks.mqtt.access.settings.DEFAULT_RULES
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
