"""One frozen model for each section of conf/inflight.toml: keys, defaults, ranges, and what each key means.

The file itself, the comments in it and the ranges in error messages are all derived from here (streaming/config/settings.py).
Attribute names are the keys. Durations are held in milliseconds and sizes in bytes, however they were written; every key without
a unit in its name says its kind in its type.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from state.model import MAX_PACKET_ID
from state.settings import BackoffSettings, Overflow, RetryMqtt5, SessionSettings
from streaming.config.units import NEVER_MS, Schedule, parse_duration_ms, parse_schedule_ms, parse_size_bytes

if TYPE_CHECKING:
    from sinks.mqtt.settings import GatewaySettings


class Duration:
    """Marks a field that holds milliseconds; read by the explanations."""


class Size:
    """Marks a field that holds bytes; read by the explanations."""


DurationMs = Annotated[int, BeforeValidator(parse_duration_ms), Duration()]
SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes), Size()]
Option = str | bool | int | float

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20

_RETRY_INTERVAL: Final = Schedule(ge=100, le=_DAY)
RetryIntervalMs = Annotated[
    int | tuple[int, ...], BeforeValidator(parse_schedule_ms), AfterValidator(_RETRY_INTERVAL.check), _RETRY_INTERVAL
]


def _plain_topic_prefix(value: str) -> str:
    if not value or len(value) > 200 or not all(c.isascii() and (c.isalnum() or c in "._-") for c in value):
        raise ValueError("Kafka allows 1…200 letters, digits, '.', '_' and '-' here")
    return value


def _at_least_one_attempt(value: int) -> int:
    if value == 0:
        raise ValueError("0 attempts would deliver nothing: write 1 or more, or -1 for no limit")
    return value


def _host_ports(value: str) -> str:
    for server in value.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) <= 65_535):
            raise ValueError("write host:port, several separated by commas, for example kafka-1:9092,kafka-2:9092")
    return value


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=False)


class KafkaSection(Section):
    """Where Kafka is and how to log in there."""

    bootstrap_servers: Annotated[str, AfterValidator(_host_ports)] = Field(
        "127.0.0.1:9092", description="host:port, several separated by commas; `inflight up` puts its own broker here"
    )
    security_protocol: str = Field(
        "PLAINTEXT", pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
    )
    sasl_mechanism: str = Field(
        "SCRAM-SHA-512", pattern="^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512)$", description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    sasl_username: str = Field("", description="used with SASL_…")
    sasl_password: SecretStr = Field(SecretStr(""), description="best given as INFLIGHT__KAFKA__SASL_PASSWORD; never shown")
    ssl_cafile: str = Field("", description="PEM file of the authorities that may have signed the brokers' certificates")
    options: dict[str, Option] = Field(
        {}, description='more client options by Kafka\'s names, given to every client, for example "request.timeout.ms" = 30000'
    )

    def client_options(self) -> dict[str, Any]:
        """For every kafka-python client, `bootstrap_servers` included."""
        options: dict[str, Any] = {"bootstrap_servers": self.bootstrap_servers, "security_protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        if self.ssl_cafile:
            options["ssl_cafile"] = self.ssl_cafile
        return options | {name.replace(".", "_"): value for name, value in self.options.items()}

    def spark_options(self) -> dict[str, str]:
        """For Spark's Kafka source and sink, with their `kafka.` in front, bootstrap servers included."""
        options = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            name, password = (_jaas_quoted(text) for text in (self.sasl_username, self.sasl_password.get_secret_value()))
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module} required username={name} password={password};"
            )
        if self.ssl_cafile:
            options["ssl.truststore.type"] = "PEM"
            options["ssl.truststore.location"] = self.ssl_cafile
        options |= {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.options.items()}
        return {f"kafka.{name}": value for name, value in options.items()}


def _jaas_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_Partitions = Annotated[int, Field(ge=1, le=10_000)]


class PartitionsSection(Section):
    """Partitions of each topic when Inflight creates it. More can be added later, in a quiet moment: they move clients about."""

    messages: _Partitions = Field(4, description="one client's messages are in one of them, in order")
    events: _Partitions = Field(4, description="one client's events are in one of them, in order")
    commands: _Partitions = Field(8, description="at least as many as there will ever be gateways: each gateway owns some")
    uplink: _Partitions = Field(4, description="as many backends can share the reading")
    receipts: _Partitions = Field(4, description="as many backends can share the reading")
    dead_letters: _Partitions = Field(4, description="as many backends can share the reading")
    ledger: _Partitions = Field(4, description="read by the archive")
    throttle: _Partitions = Field(4, description="compacted: the latest record of each client")


_Retention = Annotated[DurationMs, Field(ge=10 * _MINUTE, le=NEVER_MS)]


class RetentionSection(Section):
    """How long each topic keeps records when Inflight creates it: the longest standstill of a reader that loses nothing."""

    messages: _Retention = Field(7 * _DAY, description="the engine may stand still this long")
    events: _Retention = Field(7 * _DAY, description="the engine may stand still this long")
    commands: _Retention = Field(_DAY, description="what no gateway has read by then is sent again by the session")
    uplink: _Retention = Field(7 * _DAY, description="backends may stand still this long")
    receipts: _Retention = Field(7 * _DAY, description="backends may stand still this long")
    dead_letters: _Retention = Field(30 * _DAY, description="the time to look at them in Kafka; the Delta table keeps them")
    ledger: _Retention = Field(7 * _DAY, description="the archive may stand still this long")


class TopicsSection(Section):
    """Names of the topics, and how `inflight topics` creates them."""

    prefix: Annotated[str, AfterValidator(_plain_topic_prefix)] = Field(
        "inflight", description="the topics are called PREFIX.messages, PREFIX.events, …; two installations can share a Kafka"
    )
    replication_factor: int = Field(-1, ge=-1, le=32, description="-1 = what the brokers say (default.replication.factor)")
    partitions: PartitionsSection = PartitionsSection()
    retention: RetentionSection = RetentionSection()

    @property
    def messages(self) -> str:
        return f"{self.prefix}.messages"

    @property
    def events(self) -> str:
        return f"{self.prefix}.events"

    @property
    def commands(self) -> str:
        return f"{self.prefix}.commands"

    @property
    def uplink(self) -> str:
        return f"{self.prefix}.uplink"

    @property
    def receipts(self) -> str:
        return f"{self.prefix}.receipts"

    @property
    def dead_letters(self) -> str:
        return f"{self.prefix}.dead-letters"

    @property
    def ledger(self) -> str:
        return f"{self.prefix}.ledger"

    @property
    def throttle(self) -> str:
        return f"{self.prefix}.throttle"


class EngineSection(Section):
    """The Spark job."""

    data_dir: Path = Field(Path("var/inflight"), description="where `inflight up` keeps everything")
    checkpoint_location: str = Field(
        "", description="directory, or hdfs://, s3a://, abfss:// …: the sessions live here; empty = DATA_DIR/checkpoint"
    )
    tables_location: str = Field("", description="where the Delta tables go; empty = DATA_DIR/tables")
    master: str = Field("local[*]", description="Spark's master; spark-submit's own --master holds when the job runs under it")
    driver_memory: str = Field("2g", pattern=r"^\d+[kmgKMG]$", description="heap of the engine's JVM, in Spark's notation")
    state_partitions: int = Field(
        2,
        ge=1,
        le=10_000,
        description="partitions of the session state, about one for each core that the engine will ever have; "
        "fixed for the life of a checkpoint, and each costs some 20 ms a micro-batch",
    )
    trigger_interval_ms: DurationMs = Field(
        100, ge=0, le=_HOUR, description="a micro-batch starts at most this often; 0 = one after the other"
    )
    max_offsets_per_trigger: int = Field(
        20_000,
        ge=1,
        le=100_000_000,
        description="messages, and as many events, that one micro-batch takes in: bounds its length after a standstill",
    )
    max_payload_bytes: SizeBytes = Field(
        256 * _KIB, ge=1, le=64 * _MIB, description="a larger message of a backend is dead-lettered as invalid"
    )
    max_headers_bytes: SizeBytes = Field(
        64 * _KIB, ge=_KIB, le=_MIB, description="the same for the names and values of all headers of one message together"
    )
    max_record_bytes: SizeBytes = Field(
        900_000,
        ge=64 * _KIB,
        le=96 * _MIB,
        description="largest record that Inflight writes; the topics must allow it (max.message.bytes)",
    )
    receipts: bool = Field(True, description="write the outcome of every message to PREFIX.receipts")
    ledger: bool = Field(True, description="write every transition of every message to PREFIX.ledger")
    lean_worker: bool = Field(
        True, description="Python workers without pandas, at a fraction of the cost; false = PySpark's own way, same results"
    )
    spark: dict[str, Option] = Field({}, description='more Spark configuration, for example "spark.executor.memory" = "4g"')


class ThrottleSection(Section):
    """When the engine asks all backends to wait (key * in PREFIX.throttle), and when they may go on. See docs/producer.md."""

    lag_high: int = Field(200_000, ge=0, le=1 << 40, description="records in Kafka that the sessions have not seen; 0 = never")
    lag_low: int = Field(40_000, ge=0, le=1 << 40, description="they may go on from here; below lag_high")
    state_high: SizeBytes = Field(0, ge=0, le=1 << 50, description="size of the session state on disk; 0 = never")
    state_low: SizeBytes = Field(0, ge=0, le=1 << 50, description="they may go on from here; below state_high")
    free_disk_low: SizeBytes = Field(
        256 * _MIB, ge=0, le=1 << 50, description="what is left on the disk of a local checkpoint; 0 = do not look"
    )
    free_disk_high: SizeBytes = Field(512 * _MIB, ge=0, le=1 << 50, description="they may go on from here; above free_disk_low")


class ArchiveSection(Section):
    """The second query of the engine: Kafka → the Delta tables of engine.tables_location (docs/archive.md)."""

    enabled: bool = Field(False, description="write ledger, dead letters, uplink and receipts to Delta tables")
    trigger_interval_ms: DurationMs = Field(
        10_000, ge=_SECOND, le=_DAY, description="the tables get what is new this often; each time a few seconds of one core"
    )
    max_offsets_per_trigger: int = Field(
        100_000,
        ge=1,
        le=100_000_000,
        description="Kafka records that one micro-batch takes in: bounds its memory after a standstill",
    )
    retention: DurationMs = Field(90 * _DAY, ge=_DAY, le=NEVER_MS, description="older days are deleted from the tables")
    optimize_interval: DurationMs = Field(
        _HOUR, ge=_MINUTE, le=7 * _DAY, description="small files are merged, old days sorted or deleted, this often"
    )
    fail_on_data_loss: bool = Field(
        True, description="stop with an error when Kafka has deleted records before they were archived; false = go on with a hole"
    )


class GatewaySection(Section):
    """The MQTT listener. Mirrors sinks.mqtt.settings.GatewaySettings, which says more about each."""

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 = all, and then set credentials or a firewall")
    port: int = Field(1883, ge=0, le=65_535, description="0 = any free one")
    credentials: dict[str, SecretStr] = Field({}, description="user name = password; empty = anyone may connect; never shown")
    group_id: str = Field("inflight-gateways", min_length=1, description="consumer group by which gateways share PREFIX.commands")
    group_instance_id: str = Field(
        "", description="a name that this gateway keeps over restarts and no other has: it then gets its partitions back at once"
    )
    group_session_timeout_ms: DurationMs = Field(
        10_000,
        ge=6 * _SECOND,
        le=5 * _MINUTE,
        description="a gateway that Kafka has not heard of for this long loses its partitions",
    )
    connect_timeout_ms: DurationMs = Field(10_000, ge=100, le=5 * _MINUTE, description="from the socket to a complete CONNECT")
    accept_timeout_ms: DurationMs = Field(30_000, ge=_SECOND, le=5 * _MINUTE, description="from CONNECT to the engine's answer")
    append_timeout_ms: DurationMs = Field(
        30_000,
        ge=_SECOND,
        le=5 * _MINUTE,
        description="Kafka confirms a record within this, or the connection that wrote it is closed",
    )
    stop_timeout_ms: DurationMs = Field(5_000, ge=0, le=5 * _MINUTE, description="how long a stopping gateway may take")
    stalled_write_timeout_ms: DurationMs = Field(
        60_000, ge=_SECOND, le=_HOUR, description="a device without keep alive that takes no byte for this long is closed"
    )
    max_packet_size_bytes: SizeBytes = Field(
        512 * _KIB, ge=_KIB, le=64 * _MIB, description="largest MQTT packet of a device, the Maximum Packet Size of CONNACK"
    )
    max_client_id_bytes: int = Field(1_024, ge=23, le=65_535, description="longest client id")
    max_unconfirmed_appends: int = Field(
        256,
        ge=1,
        le=65_535,
        description="records of one connection that Kafka has not confirmed; beyond, the gateway stops reading from it",
    )
    max_unconfirmed_bytes: SizeBytes = Field(4 * _MIB, ge=64 * _KIB, le=1 << 30, description="the same in bytes")
    max_write_buffer_bytes: SizeBytes = Field(
        256 * _KIB, ge=_KIB, le=1 << 30, description="bytes that a device has not taken; beyond, it gets nothing new"
    )
    topic_alias_maximum: int = Field(16, ge=0, le=65_535, description="topic aliases that an MQTT 5 device may use")
    max_publish_rate: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="QoS 1 and 2 publications a second of one MQTT 5 device; those beyond are refused with 0x97; 0 = no limit",
    )
    producer_linger_ms: DurationMs = Field(0, ge=0, le=_SECOND, description="wait this long for records to share a request")
    fetch_max_wait_ms: DurationMs = Field(20, ge=1, le=_SECOND, description="longest wait of Kafka for new commands")

    def to_gateway_settings(self, kafka: KafkaSection, topics: TopicsSection) -> "GatewaySettings":
        """The same for the gateway, which knows nothing of this file."""
        from sinks.mqtt.settings import GatewaySettings  # only gateways need sinks.mqtt

        options = kafka.client_options()
        bootstrap_servers = options.pop("bootstrap_servers")
        values = self.model_dump(exclude={"credentials", "group_instance_id"})
        return GatewaySettings(
            **values,
            bootstrap_servers=bootstrap_servers,
            events_topic=topics.events,
            commands_topic=topics.commands,
            uplink_topic=topics.uplink,
            group_instance_id=self.group_instance_id or None,
            credentials={name: secret.get_secret_value() for name, secret in self.credentials.items()} or None,
            kafka_options=options,
        )


class BackoffSection(Section):
    """Waits after a receiver has said that it is throttled (0x97): RocketMQ's and gRPC's exponential backoff."""

    initial: DurationMs = Field(1_000, ge=1, le=_HOUR, description="the first wait, without jitter")
    multiplier: float = Field(1.6, ge=1, le=10, description="each wait is this many times the one before")
    jitter: float = Field(0.2, ge=0, le=0.9, description="part of the wait by which it is made longer or shorter, after the cap")
    max: DurationMs = Field(120_000, ge=1, le=_DAY, description="the cap; at least `initial`")


class SessionSection(Section):
    """The limits and timers of a session, with EMQX's names. [[profiles]] has others for some clients."""

    retry_interval: RetryIntervalMs = Field(
        30_000,
        description="an unacknowledged PUBLISH or PUBREL is sent again after this long; a list is a schedule: "
        '["30s", "1m", "5m"] = after 30 s, 1 min more, then every 5 min',
    )
    retry_mqtt5: RetryMqtt5 = Field(
        RetryMqtt5.RECONNECT,
        description="the same for MQTT 5, which forbids resends on a live connection: reconnect = close it, so that the device "
        "comes back and gets everything again; timer = send again anyway; wait = do nothing",
    )
    max_inflight: int = Field(
        32,
        ge=0,
        le=MAX_PACKET_ID,
        description="QoS 1 and 2 messages unacknowledged at once; the client's Receive Maximum may be smaller; 0 = 65535",
    )
    prefetch: int = Field(
        0,
        ge=0,
        le=MAX_PACKET_ID,
        description="messages that the gateway holds ready beyond max_inflight: keeps fast devices busy between micro-batches",
    )
    max_mqueue_len: int = Field(
        1_000, ge=0, le=1_000_000, description="messages that wait; when it is full see overflow; 0 = no limit"
    )
    max_mqueue_bytes: SizeBytes = Field(_MIB, ge=0, le=1 << 30, description="the same by payload bytes; 0 = no limit")
    mqueue_store_qos0: bool = Field(True, description="keep QoS 0 messages while the client is offline")
    overflow: Overflow = Field(
        Overflow.DROP_OLDEST, description="a full queue gives up its oldest message (drop_oldest) or the new one (reject)"
    )
    max_awaiting_rel: int = Field(
        100,
        ge=0,
        le=MAX_PACKET_ID,
        description="QoS 2 publications of a device not yet released, the Receive Maximum of CONNACK; 0 = no limit",
    )
    await_rel_timeout: DurationMs = Field(
        300_000, ge=_SECOND, le=_DAY, description="such a publication is forgotten after this long"
    )
    session_expiry_interval: DurationMs = Field(
        2 * _HOUR,
        ge=0,
        le=NEVER_MS,
        multiple_of=1_000,
        description="how long an MQTT 3.1.1 session outlives its connection; MQTT 5 clients say it themselves",
    )
    high_watermark: float = Field(
        0.8,
        ge=0,
        le=1,
        description="backends are asked to send this client nothing more (PREFIX.throttle) when this part of max_mqueue_len or "
        "max_mqueue_bytes is used; 0 = never",
    )
    low_watermark: float = Field(0.5, ge=0, le=1, description="backends may go on when it is down to this; below high_watermark")
    delivery_limit: Annotated[int, AfterValidator(_at_least_one_attempt)] = Field(
        20, ge=-1, le=1_000_000, description="attempts before a message is dead-lettered, at least 1; -1 = no limit"
    )
    deduplication_window: int = Field(
        100, ge=0, le=100_000, description="message ids per client of which a repetition is recognised; 0 = none"
    )
    backoff: BackoffSection = BackoffSection()

    def to_session_settings(self) -> SessionSettings:
        """The same for the pure session."""
        first_ms, *later_ms = self.retry_interval if isinstance(self.retry_interval, tuple) else (self.retry_interval,)
        return SessionSettings(
            retry_interval_ms=first_ms,
            later_retry_intervals_ms=tuple(later_ms),
            retry_mqtt5=self.retry_mqtt5,
            max_inflight=self.max_inflight,
            prefetch=self.prefetch,
            max_mqueue_len=self.max_mqueue_len,
            max_mqueue_bytes=self.max_mqueue_bytes,
            mqueue_store_qos0=self.mqueue_store_qos0,
            overflow=self.overflow,
            max_awaiting_rel=self.max_awaiting_rel,
            await_rel_timeout_ms=self.await_rel_timeout,
            session_expiry_interval_s=self.session_expiry_interval // 1_000,
            delivery_limit=self.delivery_limit,
            deduplication_window=self.deduplication_window,
            high_watermark=self.high_watermark,
            low_watermark=self.low_watermark,
            backoff=BackoffSettings(
                initial_ms=self.backoff.initial,
                multiplier=self.backoff.multiplier,
                jitter=self.backoff.jitter,
                max_ms=self.backoff.max,
            ),
        )


class ProfileSection(SessionSection):
    """Other session settings for some clients. Only the keys that are written differ from [session]; the first match wins."""

    clients: str = Field(min_length=1, description="pattern of client ids: * any text, ? one character, [ab] one of these")
