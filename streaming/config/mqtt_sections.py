"""The sections [gateway], [fast_path] and [bridge]: the processes that talk MQTT.

Defaults: the GatewaySettings of sinks.mqtt, the FastPathSettings of sinks.fast_path and the BridgeSettings of sinks.bridge.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, SecretStr

from sinks.bridge.routes import Routes
from sinks.bridge.settings import Acknowledgement, BridgeSettings, Presence
from sinks.fast_path.settings import FastPathSettings
from sinks.mqtt.listeners.settings import ListenerSettings
from sinks.mqtt.settings import NO_LISTENER, GatewaySettings
from streaming.config.access_sections import ListenerSection, LoginSection, RuleSection
from streaming.config.section import DurationMs, KeyPath, Secret, Section, SizeBytes, key
from streaming.config.sections import BackoffSection, KafkaSection, TopicsSection
from streaming.config.units import DAY, HOUR, KIB, MIB, MINUTE, SECOND

AUTO: Final = 0
"""Of gateway.processes; people write `auto`."""

_BRIDGE: Final = BridgeSettings()
_MOST_PROCESSES: Final = 64
_MQTT_VERSIONS: Final = {"5": 5, "3.1.1": 4}

_Timeout = Annotated[DurationMs, Field(ge=SECOND, le=5 * MINUTE)]
_Lease = Annotated[DurationMs, Field(ge=2 * SECOND, le=10 * MINUTE)]
_GroupTimeout = Annotated[DurationMs, Field(ge=6 * SECOND, le=5 * MINUTE)]
_PacketSize = Annotated[SizeBytes, Field(ge=KIB, le=64 * MIB)]
_FETCH_MAX_WAIT: Final = (
    "Kafka answers a read of commands after this when there are none: longer costs less while nothing happens, and delays only "
    "the first command of a partition that has just been assigned"
)
_Quota = Annotated[int, Field(ge=1, le=65_535)]
_Seconds = Annotated[DurationMs, Field(multiple_of=SECOND)]


def _parse_processes(value: object) -> int:
    if value == "auto":
        return AUTO
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, int) and not isinstance(number, bool) and AUTO <= number <= _MOST_PROCESSES:
        return number
    raise ValueError(f"not a number of processes: 1 to {_MOST_PROCESSES}, or auto")


_Processes = Annotated[
    int,
    BeforeValidator(_parse_processes),
    PlainSerializer(lambda number: number or "auto", when_used="json"),
]


def kafka_side(kafka: KafkaSection, topics: TopicsSection) -> dict[str, Any]:
    """The fields that gateway and bridge take from [kafka] and [topics]."""
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "events_topic": topics.events,
        "commands_topic": topics.commands,
        "uplink_topic": topics.uplink,
        "leases_topic": topics.leases,
        "kafka_options": kafka.librdkafka_options(),
    }


class GatewaySection(Section, configures=GatewaySettings()):
    """The MQTT listener. Mirrors sinks.mqtt.settings.GatewaySettings, which says more about each."""

    host: str = key("address to listen on without TLS; for the others see [[listeners]]")
    port: int = key("0 = any free one, -1 = only [[listeners]]", ge=NO_LISTENER, le=65_535)
    anonymous: bool = key(
        "let devices in that do not log in; on loopback they are let in anyway while [gateway.login] has no way to log in"
    )
    processes: _Processes = key(
        "so many processes share the ports (Linux), each with partitions and [limits] of its own; auto = one for each processor",
        1,
    )
    group_id: str = key("consumer group by which gateways share PREFIX.commands", min_length=1)
    group_instance_id: str = key(
        "a name that this gateway keeps over restarts and no other has: it then gets its partitions back at once; of several "
        "processes each adds its number",
        "",
    )
    group_session_timeout_ms: _GroupTimeout = key("a gateway that Kafka has not heard of for this long loses its partitions")
    lease_ms: _Lease = key(
        "a gateway that Kafka has confirmed nothing to for this long closes its connections; the engine ends those of a gateway "
        "that is gone after one and a half times this, and then their wills are due"
    )
    connect_timeout_ms: DurationMs = key(
        "from the socket to a complete CONNECT; one that is older is refused", ge=100, le=5 * MINUTE
    )
    accept_timeout_ms: _Timeout = key("from CONNECT to the engine's answer")
    append_timeout_ms: _Timeout = key("Kafka confirms a record within this, or the connection that wrote it is closed")
    drain_ms: DurationMs = key(
        "a gateway that stops closes its connections in slices within this, so that its devices do not all connect elsewhere at "
        "once; few of them take less; 0 = all at once",
        ge=0,
        le=10 * MINUTE,
    )
    reconnect_grace_ms: DurationMs = key(
        "a device whose connection a gateway ends for a reason of its own (it stops, or loses a partition or its lease) has this "
        "long to come back before its will is published; a longer delay of the will holds",
        ge=0,
        le=HOUR,
    )
    stop_timeout_ms: DurationMs = key(
        "how long a gateway that stops waits after drain_ms for what Kafka has not confirmed, and once more for leaving Kafka",
        ge=0,
        le=5 * MINUTE,
    )
    stalled_write_timeout_ms: DurationMs = key(
        "a device without keep alive that takes no byte for this long is closed", ge=SECOND, le=HOUR
    )
    max_packet_size_bytes: _PacketSize = key("largest MQTT packet of a device, the Maximum Packet Size of CONNACK")
    max_client_id_bytes: int = key("longest client id", ge=23, le=65_535)
    max_unconfirmed_appends: _Quota = key(
        "records of one connection that Kafka has not confirmed; beyond, the gateway stops reading from it"
    )
    max_unconfirmed_bytes: SizeBytes = key("the same in bytes, headers and waiting answers included", ge=64 * KIB, le=1 << 30)
    max_write_buffer_bytes: SizeBytes = key("bytes that a device has not taken; beyond, it gets nothing new", ge=KIB, le=1 << 30)
    topic_alias_maximum: int = key("topic aliases that an MQTT 5 device may use", ge=0, le=65_535)
    max_publish_rate: int = key(
        "QoS 1 and 2 publications a second of one MQTT 5 device; those beyond are refused with 0x97; 0 = no limit",
        ge=0,
        le=1_000_000,
    )
    producer_linger_ms: DurationMs = key("wait this long for records to share a request", ge=0, le=SECOND)
    fetch_max_wait_ms: DurationMs = key(_FETCH_MAX_WAIT, ge=1, le=SECOND)
    login: LoginSection = LoginSection()

    def plain_listener(self) -> ListenerSettings | None:
        """None = it is off."""
        if self.port == NO_LISTENER:
            return None
        return ListenerSettings(host=self.host, port=self.port, anonymous=self.anonymous)

    def to_gateway_settings(
        self,
        kafka: KafkaSection,
        topics: TopicsSection,
        listeners: Sequence[ListenerSection] = (),
        rules: Sequence[RuleSection] = (),
        **others: Any,
    ) -> GatewaySettings:
        """The same for the gateway, which knows nothing of this file. others: its fields that are not configured here."""
        return self.plain(
            GatewaySettings,
            group_instance_id=self.group_instance_id or None,
            login=self.login.to_login_settings(),
            listeners=tuple(listener.to_listener_settings() for listener in listeners),
            rules=tuple(rule.to_access_rule() for rule in rules),
            **kafka_side(kafka, topics),
            **others,
        )


class FastPathSection(Section, configures=FastPathSettings()):
    """Messages to devices that are online do not wait for a micro-batch: the gateways send them, and the engine hears of it."""

    enabled: bool = key("false = every message takes the way through a micro-batch, and CONNACK too")
    group_id: str = key("consumer group by which gateways share the reading of PREFIX.messages", min_length=1)
    max_payload_bytes: SizeBytes = key("larger messages take the way through a micro-batch", ge=0, le=MIB)
    max_lag: int = key(
        "a gateway that is this many messages of a partition behind goes on at the end, and leaves them to the micro-batches",
        ge=1,
        le=1_000_000,
    )
    pressure_loop_lag_ms: DurationMs = key(
        "a gateway leaves all messages to the micro-batches while its event loop is late by more than this, for a second",
        ge=1,
        le=MINUTE,
    )
    pressure_unconfirmed: int = key("… while Kafka has not confirmed more records of it than this", ge=1, le=1_000_000)
    pressure_offers: int = key("… while it has read more messages than this and not looked at them", ge=1, le=1_000_000)
    pressure_hold_ms: DurationMs = key("… and for this long after that", ge=0, le=MINUTE)

    def to_fast_path_settings(self, topics: TopicsSection) -> FastPathSettings:
        """The same for gateways."""
        return self.plain(FastPathSettings, messages_topic=topics.messages, routes_topic=topics.routes)


class BridgeSection(Section, configures=_BRIDGE):
    """The client of an MQTT broker that you already run (`inflight bridge`); docs/bridge.md explains it."""

    name: str = key(
        "client id of this bridge at the broker, which keeps its subscriptions by it: stable over restarts, and one for each "
        "bridge",
        min_length=1,
        max_length=200,
    )
    host: str = key("the broker's address", min_length=1)
    port: _Quota = key("the broker's port; mostly 8883 with TLS")
    mqtt_version: str = key("that the bridge speaks to the broker: 5 or 3.1.1", "5", pattern=r"^(5|3\.1\.1)$")
    username: str = key("empty = none", "")
    password: Secret = key("best given as INFLIGHT__BRIDGE__PASSWORD; never shown", SecretStr(""))
    tls: bool = key("encrypt, and check the broker's certificate")
    tls_cafile: str = key("PEM file of the authorities that may have signed it; empty = those of the system")
    tls_certfile: str = key("PEM file of a client certificate; empty = none")
    tls_keyfile: str = key("PEM file of its key")
    acknowledgement: Acknowledgement = key(
        "whose word ends a delivery: device = the device's own, end to end; broker = the broker's PUBACK or PUBCOMP"
    )
    topic_template: str = key(
        "where a message goes; with {message_id} as a level of its own devices that speak MQTT 3.1.1 can acknowledge"
    )
    ack_topic_template: str = key("where devices acknowledge")
    presence: Presence = key(
        "how the bridge knows who is there: topic = retained birth and will messages; events = the broker's JSON events; always"
        " = the list `clients`, and whoever acknowledges or publishes",
    )
    presence_topic_template: str = key("where birth and will messages go")
    presence_online: tuple[str, ...] = key("payloads that mean: here; any other means: gone", min_length=1)
    connected_topics: tuple[str, ...] = key("events with a client id in `clientid`, for presence = events")
    disconnected_topics: tuple[str, ...] = key("the same for those who go")
    clients: tuple[str, ...] = key("client ids that are there from the start, for presence = always")
    uplink_topic_templates: tuple[str, ...] = key("what devices publish for backends: it goes to PREFIX.uplink")
    uplink_group: str = key(
        "bridges share this reading as $share/GROUP/…; empty = each bridge writes everything: run one, or give the others no "
        "uplink_topic_templates",
        pattern=r"^[^/+#]*$",
    )
    publish_quota: _Quota = key("QoS 1 and 2 messages on their way to the broker; its Receive Maximum may be smaller")
    receive_maximum: _Quota = key("messages of the broker that Kafka has not confirmed")
    keep_alive_ms: _Seconds = key(
        "a broker that is silent for twice as long is left", _BRIDGE.keep_alive_s * SECOND, ge=SECOND, le=60 * MINUTE
    )
    connect_timeout_ms: DurationMs = key("from the socket to the answered subscriptions", ge=100, le=5 * MINUTE)
    session_expiry_ms: _Seconds = key(
        "the broker keeps publications this long while no bridge is there", _BRIDGE.session_expiry_s * SECOND, ge=0, le=365 * DAY
    )
    max_packet_size_bytes: _PacketSize = key("largest packet taken from the broker")
    backoff: BackoffSection = BackoffSection(max=_BRIDGE.backoff.max_ms)
    group_id: str = key("consumer group by which bridges share PREFIX.commands", min_length=1)
    group_instance_id: str = key(
        "a name that this bridge keeps over restarts and no other has: it then gets its partitions back at once", ""
    )
    group_session_timeout_ms: _GroupTimeout = key("a bridge that Kafka has not heard of for this long loses its partitions")
    lease_ms: _Lease = key(
        "a bridge that Kafka has confirmed nothing to for this long takes its devices offline; the engine does so for a bridge "
        "that is gone after one and a half times this"
    )
    append_timeout_ms: _Timeout = key("Kafka confirms a record within this")
    stop_timeout_ms: DurationMs = key("how long a stopping bridge may take", ge=0, le=5 * MINUTE)
    producer_linger_ms: DurationMs = key("wait this long for records to share a request", ge=0, le=SECOND)
    fetch_max_wait_ms: DurationMs = key(_FETCH_MAX_WAIT, ge=1, le=SECOND)

    def to_bridge_settings(self, kafka: KafkaSection, topics: TopicsSection) -> BridgeSettings:
        """The same for the bridge, which knows nothing of this file."""
        return self.plain(
            BridgeSettings,
            mqtt_version=_MQTT_VERSIONS[self.mqtt_version],
            username=self.username or None,
            password=self.password.get_secret_value() or None,
            backoff=self.backoff.to_backoff_settings(),
            keep_alive_s=self.keep_alive_ms // SECOND,
            session_expiry_s=self.session_expiry_ms // SECOND,
            group_instance_id=self.group_instance_id or None,
            **kafka_side(kafka, topics),
        )

    def problems(self, kafka: KafkaSection, topics: TopicsSection) -> Iterator[tuple[KeyPath, str]]:
        """What the keys are not allowed to be together, and what to change."""
        try:
            Routes(self.to_bridge_settings(kafka, topics))
        except ValueError as error:
            yield ("bridge",), str(error)
        yield from self.backoff.problems(("bridge",))
