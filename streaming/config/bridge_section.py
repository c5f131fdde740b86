"""The section [bridge] of conf/inflight.toml. Mirrors sinks.bridge.settings.BridgeSettings, which says more about each key."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from pydantic import Field, SecretStr

from sinks.bridge.routes import Routes
from sinks.bridge.settings import Acknowledgement, BridgeSettings, Presence
from state.settings import BackoffSettings
from streaming.config.sections import (
    BackoffSection,
    DurationMs,
    KafkaSection,
    Section,
    SizeBytes,
    TopicsSection,
)
from streaming.config.units import format_duration

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_DAY: Final = 24 * 60 * _MINUTE
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_MQTT_VERSIONS: Final = {"5": 5, "3.1.1": 4}

KeyPath: TypeAlias = tuple[str | int, ...]


class BridgeSection(Section):
    """The client of an MQTT broker that you already run (`inflight bridge`); docs/bridge.md explains it."""

    name: str = Field(
        "inflight-bridge",
        min_length=1,
        max_length=200,
        description="client id of this bridge at the broker, which keeps its subscriptions by it: stable over restarts, and "
        "one for each bridge",
    )
    host: str = Field("127.0.0.1", min_length=1, description="the broker's address")
    port: int = Field(1883, ge=1, le=65_535, description="the broker's port; mostly 8883 with TLS")
    mqtt_version: str = Field("5", pattern=r"^(5|3\.1\.1)$", description="that the bridge speaks to the broker: 5 or 3.1.1")
    username: str = Field("", description="empty = none")
    password: SecretStr = Field(SecretStr(""), description="best given as INFLIGHT__BRIDGE__PASSWORD; never shown")
    tls: bool = Field(False, description="encrypt, and check the broker's certificate")
    tls_cafile: str = Field("", description="PEM file of the authorities that may have signed it; empty = those of the system")
    tls_certfile: str = Field("", description="PEM file of a client certificate; empty = none")
    tls_keyfile: str = Field("", description="PEM file of its key")
    acknowledgement: Acknowledgement = Field(
        Acknowledgement.DEVICE,
        description="whose word ends a delivery: device = the device's own, end to end; broker = the broker's PUBACK or PUBCOMP",
    )
    topic_template: str = Field(
        "devices/{client_id}/{topic}",
        description="where a message goes; with {message_id} as a level of its own devices that speak MQTT 3.1.1 can acknowledge",
    )
    ack_topic_template: str = Field("devices/{client_id}/ack", description="where devices acknowledge")
    presence: Presence = Field(
        Presence.TOPIC,
        description="how the bridge knows who is there: topic = retained birth and will messages; events = the broker's JSON "
        "events; always = the list `clients`, and whoever acknowledges or publishes",
    )
    presence_topic_template: str = Field("devices/{client_id}/presence", description="where birth and will messages go")
    presence_online: tuple[str, ...] = Field(
        ("online",), min_length=1, description="payloads that mean: here; any other means: gone"
    )
    connected_topics: tuple[str, ...] = Field(
        ("$events/client_connected",), description="events with a client id in `clientid`, for presence = events"
    )
    disconnected_topics: tuple[str, ...] = Field(("$events/client_disconnected",), description="the same for those who go")
    clients: tuple[str, ...] = Field((), description="client ids that are there from the start, for presence = always")
    uplink_topic_templates: tuple[str, ...] = Field(
        ("devices/{client_id}/up/{topic}",), description="what devices publish for backends: it goes to PREFIX.uplink"
    )
    uplink_group: str = Field(
        "inflight",
        pattern=r"^[^/+#]*$",
        description="bridges share this reading as $share/GROUP/…; empty = each bridge writes everything: run one, or give the "
        "others no uplink_topic_templates",
    )
    publish_quota: int = Field(
        1_000, ge=1, le=65_535, description="QoS 1 and 2 messages on their way to the broker; its Receive Maximum may be smaller"
    )
    send_quota: int = Field(1_000, ge=1, le=65_535, description="messages of the broker that Kafka has not confirmed")
    keep_alive_ms: DurationMs = Field(
        10_000, ge=_SECOND, le=60 * _MINUTE, multiple_of=_SECOND, description="a broker that is silent for twice as long is left"
    )
    connect_timeout_ms: DurationMs = Field(
        10_000, ge=100, le=5 * _MINUTE, description="from the socket to the answered subscriptions"
    )
    session_expiry_ms: DurationMs = Field(
        _DAY,
        ge=0,
        le=365 * _DAY,
        multiple_of=_SECOND,
        description="the broker keeps publications this long while no bridge is there",
    )
    max_packet_size_bytes: SizeBytes = Field(
        512 * _KIB, ge=_KIB, le=64 * _MIB, description="largest packet taken from the broker"
    )
    backoff: BackoffSection = BackoffSection(max=30_000)
    group_id: str = Field("inflight-bridges", min_length=1, description="consumer group by which bridges share PREFIX.commands")
    group_instance_id: str = Field(
        "", description="a name that this bridge keeps over restarts and no other has: it then gets its partitions back at once"
    )
    group_session_timeout_ms: DurationMs = Field(
        10_000,
        ge=6 * _SECOND,
        le=5 * _MINUTE,
        description="a bridge that Kafka has not heard of for this long loses its partitions",
    )
    append_timeout_ms: DurationMs = Field(30_000, ge=_SECOND, le=5 * _MINUTE, description="Kafka confirms a record within this")
    stop_timeout_ms: DurationMs = Field(5_000, ge=0, le=5 * _MINUTE, description="how long a stopping bridge may take")
    producer_linger_ms: DurationMs = Field(0, ge=0, le=_SECOND, description="wait this long for records to share a request")
    fetch_max_wait_ms: DurationMs = Field(20, ge=1, le=_SECOND, description="longest wait of Kafka for new commands")

    def to_bridge_settings(self, kafka: KafkaSection, topics: TopicsSection) -> BridgeSettings:
        """The same for the bridge, which knows nothing of this file."""
        options = kafka.client_options()
        bootstrap_servers = options.pop("bootstrap_servers")
        values = self.model_dump(
            exclude={
                "mqtt_version", "username", "password", "backoff", "group_instance_id", "keep_alive_ms", "session_expiry_ms"
            }
        )  # fmt: skip
        return BridgeSettings(
            **values,
            mqtt_version=_MQTT_VERSIONS[self.mqtt_version],
            username=self.username or None,
            password=self.password.get_secret_value() or None,
            backoff=BackoffSettings(
                initial_ms=self.backoff.initial,
                multiplier=self.backoff.multiplier,
                jitter=self.backoff.jitter,
                max_ms=self.backoff.max,
            ),
            keep_alive_s=self.keep_alive_ms // 1_000,
            session_expiry_s=self.session_expiry_ms // 1_000,
            group_instance_id=self.group_instance_id or None,
            bootstrap_servers=bootstrap_servers,
            events_topic=topics.events,
            commands_topic=topics.commands,
            uplink_topic=topics.uplink,
            kafka_options=options,
        )


def bridge_problems(bridge: BridgeSection, kafka: KafkaSection, topics: TopicsSection) -> Iterator[tuple[KeyPath, str]]:
    """What the keys are not allowed to be together, and what to change."""
    try:
        Routes(bridge.to_bridge_settings(kafka, topics))
    except ValueError as error:
        yield ("bridge",), str(error)
    if bridge.backoff.max < bridge.backoff.initial:
        yield (
            ("bridge", "backoff", "max"),
            f"is {format_duration(bridge.backoff.max)}, less than backoff.initial = "
            f"{format_duration(bridge.backoff.initial)}: raise it",
        )
