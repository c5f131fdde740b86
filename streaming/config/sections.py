"""The sections of conf/inflight.toml, but those in *_sections.py: keys, defaults, ranges, and what each key means.

The comments of that file, and the ranges in error messages, come from here. Attribute names are the keys.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from sinks.kafka.security.java_client import java_options
from sinks.kafka.security.librdkafka_client import librdkafka_options
from sinks.kafka.security.python_client import python_options
from sinks.kafka.security.settings import KafkaSecurity, SaslMechanism, SecurityProtocol
from state.model import MAX_PACKET_ID
from state.settings import BackoffSettings, Overflow, RetryMqtt5, SessionSettings
from streaming.config.section import DurationMs, KeyPath, Options, RetryIntervalMs, Secret, Section, SizeBytes, key
from streaming.config.units import DAY, HOUR, KIB, MIB, MINUTE, NEVER_MS, SECOND, format_duration

OFF: Final = -1
"""A port of [metrics] that is not served."""

_SESSION: Final = SessionSettings()
_BACKOFF: Final = _SESSION.backoff

_Offsets = Annotated[int, Field(ge=1, le=100_000_000)]
_Limit = Annotated[SizeBytes, Field(ge=0, le=1 << 50)]
_Packets = Annotated[int, Field(ge=0, le=MAX_PACKET_ID)]
_Port = Annotated[int, Field(ge=OFF, le=65_535)]
_Partitions = Annotated[int, Field(ge=1, le=10_000)]
_Retention = Annotated[DurationMs, Field(ge=10 * MINUTE, le=NEVER_MS)]


def _plain_topic_prefix(value: str) -> str:
    if not value or len(value) > 200 or not all(c.isascii() and (c.isalnum() or c in "._-") for c in value):
        raise ValueError("Kafka allows 1…200 letters, digits, '.', '_' and '-' here")
    return value


def _host_ports(value: str) -> str:
    for server in value.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) <= 65_535):
            raise ValueError("write host:port, several separated by commas, for example kafka-1:9092,kafka-2:9092")
    return value


def _at_least_one_attempt(value: int) -> int:
    if value == 0:
        raise ValueError("0 attempts would deliver nothing: write 1 or more, or -1 for no limit")
    return value


class KafkaSection(Section, configures=KafkaSecurity()):
    """Where Kafka is and how all clients of ours log in there, Python's and Spark's (docs/security.md)."""

    bootstrap_servers: Annotated[str, AfterValidator(_host_ports)] = key(
        "host:port, several separated by commas; `inflight up` puts its own broker here", "127.0.0.1:9092"
    )
    security_protocol: SecurityProtocol = key("SSL and SASL_SSL have TLS, SASL_… a login")
    ssl_cafile: str = key(
        "PEM file of the authorities that may have signed the brokers' certificates; empty = those of the system"
    )
    ssl_certfile: str = key("PEM file of our certificate and its chain, where brokers ask for one (mutual TLS)")
    ssl_keyfile: str = key("PEM file of its key; empty = it is in ssl_certfile")
    ssl_key_password: Secret = key("of the key, if it has one; best given as INFLIGHT__KAFKA__SSL_KEY_PASSWORD; never shown")
    sasl_mechanism: SaslMechanism = key("how to log in")
    sasl_username: str = key("the user; with OAUTHBEARER the client id")
    sasl_password: Secret = key(
        "the password, with OAUTHBEARER the client secret; best given as INFLIGHT__KAFKA__SASL_PASSWORD; never shown"
    )
    sasl_password_file: str = key("a file that has it in its first line, instead")
    sasl_token_url: str = key("OAUTHBEARER: where tokens are asked for (OAuth 2.0, client credentials)")
    sasl_token_scope: str = key("OAUTHBEARER: the scope that is asked for; empty = none")
    sasl_token_file: str = key("OAUTHBEARER: a file with a token that somebody else keeps fresh, instead of sasl_token_url")
    options: Options = key(
        'more client options by Kafka\'s names, given to every client, for example "request.timeout.ms" = 30000; gateways and '
        "bridges do without those that librdkafka does not have",
        {},
        repr=False,
    )

    def to_kafka_security(self) -> KafkaSecurity:
        return self.plain(
            KafkaSecurity,
            ssl_key_password=self.ssl_key_password.get_secret_value(),
            sasl_password=self.sasl_password.get_secret_value(),
        )

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """What the keys are not allowed to be together, and files that cannot be used."""
        yield from ((("kafka", name), message) for name, message in self.to_kafka_security().problems())

    def client_options(self) -> dict[str, Any]:
        """For every kafka-python client, `bootstrap_servers` included."""
        options = {"bootstrap_servers": self.bootstrap_servers, **python_options(self.to_kafka_security())}
        return options | {name.replace(".", "_"): value for name, value in self.options.items()}

    def librdkafka_options(self) -> dict[str, Any]:
        """For every client of librdkafka, without the bootstrap servers."""
        return librdkafka_options(self.to_kafka_security()) | self.options

    def spark_options(self) -> dict[str, str]:
        """For Spark's Kafka source and sink, with their `kafka.` in front, bootstrap servers included."""
        options = {"bootstrap.servers": self.bootstrap_servers, **java_options(self.to_kafka_security())}
        options |= {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.options.items()}
        return {f"kafka.{name}": value for name, value in options.items()}


class PartitionsSection(Section):
    """Partitions of each topic when Inflight creates it. More can be added later, in a quiet moment: they move clients about."""

    messages: _Partitions = key("one client's messages are in one of them, in order", 4)
    events: _Partitions = key("one client's events are in one of them, in order", 4)
    commands: _Partitions = key("at least as many as there will ever be gateways: each gateway owns some", 8)
    uplink: _Partitions = key("as many backends can share the reading", 4)
    receipts: _Partitions = key("as many backends can share the reading", 4)
    dead_letters: _Partitions = key("as many backends can share the reading", 4)
    ledger: _Partitions = key("read by the archive", 4)
    throttle: _Partitions = key("compacted: the latest record of each client", 4)
    leases: _Partitions = key("compacted: the latest record of each gateway and bridge", 1)
    routes: _Partitions = key("compacted: the connection of each client that has a fast path; as many as messages", 4)


class RetentionSection(Section):
    """How long each topic keeps records when Inflight creates it: the longest standstill of a reader that loses nothing."""

    messages: _Retention = key("the engine may stand still this long", 7 * DAY)
    events: _Retention = key("the engine may stand still this long", 7 * DAY)
    commands: _Retention = key("what no gateway has read by then is sent again by the session", DAY)
    uplink: _Retention = key("backends may stand still this long", 7 * DAY)
    receipts: _Retention = key("backends may stand still this long", 7 * DAY)
    dead_letters: _Retention = key("the time to look at them in Kafka; the Delta table keeps them", 30 * DAY)
    ledger: _Retention = key("the archive may stand still this long", 7 * DAY)


class TopicsSection(Section):
    """Names of the topics, and how `inflight topics` creates them."""

    prefix: Annotated[str, AfterValidator(_plain_topic_prefix)] = key(
        "the topics are called PREFIX.messages, PREFIX.events, …; two installations can share a Kafka", "inflight"
    )
    replication_factor: int = key("-1 = what the brokers say (default.replication.factor)", -1, ge=-1, le=32)
    min_insync_replicas: int = key(
        "so many brokers have a record before it is confirmed; -1 = what the brokers say (min.insync.replicas)",
        -1,
        ge=-1,
        le=32,
    )
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

    @property
    def leases(self) -> str:
        return f"{self.prefix}.leases"

    @property
    def routes(self) -> str:
        return f"{self.prefix}.routes"


class EngineSection(Section):
    """The Spark job."""

    data_dir: Path = key("where `inflight up` keeps everything", Path("var/inflight"))
    checkpoint_location: str = key(
        "directory, or hdfs://, s3a://, abfss:// …: the sessions live here; empty = DATA_DIR/checkpoint", ""
    )
    tables_location: str = key("where the Delta tables go; empty = DATA_DIR/tables", "")
    master: str = key(
        "Spark's master; local[*] = this machine, two tasks for each processor; spark-submit's own --master holds when the job "
        "runs under it",
        "local[*]",
    )
    driver_memory: str = key("heap of the engine's JVM, in Spark's notation", "2g", pattern=r"^\d+[kmgKMG]$")
    nice: int = key(
        "how far `inflight up` puts the engine behind gateway and Kafka where processors are short, as nice(1)",
        10,
        ge=0,
        le=19,
    )
    state_partitions: int = key(
        "partitions of the session state, about one for each core that the engine will have; each costs some 20 ms a "
        "micro-batch; `inflight sessions repartition` changes it for a checkpoint that has sessions",
        2,
        ge=1,
        le=10_000,
    )
    trigger_interval_ms: DurationMs = key("a micro-batch starts at most this often; 0 = one after the other", 100, ge=0, le=HOUR)
    idle_trigger_interval_ms: DurationMs = key(
        "the same while nothing happens: a record still starts a micro-batch at once, a timer is late by this or by a quarter "
        "of its length; not above trigger_interval_ms = no such pause",
        5 * SECOND,
        ge=0,
        le=HOUR,
    )
    max_offsets_per_trigger: _Offsets = key(
        "messages, and as many events, that one micro-batch takes in: bounds its length after a standstill", 20_000
    )
    max_bytes_per_trigger: SizeBytes = key(
        "the same in bytes: bounds its length and memory when messages are large", 64 * MIB, ge=MIB, le=16 * KIB * MIB
    )
    max_timers_per_partition: int = key(
        "sessions whose timer is due that one micro-batch calls in each state partition, of those about equally late; others "
        "follow, so many in five seconds; one with a long queue counts for more; 0 = all at once",
        2_500,
        ge=0,
        le=100_000_000,
    )
    hangs_after_ms: DurationMs = key(
        "an engine whose query does nothing for this long, although a micro-batch is due, ends with exit status 3 to be started "
        "again; 0 = never",
        5 * MINUTE,
        ge=0,
        le=DAY,
    )
    max_payload_bytes: SizeBytes = key("a larger message of a backend is dead-lettered as invalid", 256 * KIB, ge=1, le=64 * MIB)
    max_headers_bytes: SizeBytes = key(
        "the same for the names and values of all headers of one message together", 64 * KIB, ge=KIB, le=MIB
    )
    max_record_bytes: SizeBytes = key(
        "largest record that Inflight writes; the topics must allow it (max.message.bytes)", 900_000, ge=64 * KIB, le=96 * MIB
    )
    stop_at_newer_events: bool = key(
        "an event of a newer gateway that this engine cannot read stops it, and nothing is lost; false = it becomes a dead "
        "letter",
        True,
    )
    receipts: bool = key("write the outcome of every message to PREFIX.receipts", True)
    ledger: bool = key("write every transition of every message to PREFIX.ledger", True)
    lean_worker: bool = key(
        "Python workers without pandas, at a fraction of the cost; false = PySpark's own way, same results", True
    )
    spark: Options = key('more Spark configuration, for example "spark.executor.memory" = "4g"', {}, repr=False)

    @property
    def longest_pause_ms(self) -> int:
        """Between two micro-batches: one that does nothing is begun only so often."""
        return max(self.trigger_interval_ms, self.idle_trigger_interval_ms)


class ThrottleSection(Section):
    """When the engine asks all backends to wait (key * in PREFIX.throttle), and when they may go on. See docs/producer.md."""

    lag_high: int = key("records in Kafka that the sessions have not seen; 0 = never", 200_000, ge=0, le=1 << 40)
    lag_low: int = key("they may go on from here; below lag_high", 40_000, ge=0, le=1 << 40)
    state_high: _Limit = key("size of the session state on disk; 0 = never", 0)
    state_low: _Limit = key("they may go on from here; below state_high", 0)
    free_disk_low: _Limit = key("what is left on the disk of a local checkpoint; 0 = do not look", 256 * MIB)
    free_disk_high: _Limit = key("they may go on from here; above free_disk_low", 512 * MIB)


class ArchiveSection(Section):
    """The second query of the engine: Kafka → the Delta tables of engine.tables_location (docs/archive.md)."""

    enabled: bool = key("write ledger, dead letters, uplink and receipts to Delta tables", False)
    trigger_interval_ms: DurationMs = key(
        "the tables get what is new this often; each time a few seconds of one core", 10_000, ge=SECOND, le=DAY
    )
    max_offsets_per_trigger: _Offsets = key(
        "Kafka records that one micro-batch takes in: bounds its memory after a standstill", 100_000
    )
    retention: DurationMs = key("older days are deleted from the tables", 90 * DAY, ge=DAY, le=NEVER_MS)
    optimize_interval: DurationMs = key(
        "small files are merged, old days sorted or deleted, this often", HOUR, ge=MINUTE, le=7 * DAY
    )
    fail_on_data_loss: bool = key(
        "stop with an error when Kafka has deleted records before they were archived; false = go on with a hole", True
    )


class MetricsSection(Section):
    """Numbers for Prometheus (/metrics) and answers to probes (/healthz, /readyz), which each process serves itself."""

    host: str = key("address to listen on; 0.0.0.0 = all, and then whoever gets there may read them", "127.0.0.1", min_length=1)
    engine_port: _Port = key("of the engine; -1 = off, 0 = any free one", OFF)
    gateway_port: _Port = key("of a gateway; two on one machine need two ports; of gateway.processes the first", OFF)
    bridge_port: _Port = key("of a bridge; two on one machine need two ports", OFF)
    census_interval: DurationMs = key(
        "the engine counts what the sessions hold this often, in the checkpoint, and never for more than a fiftieth of the "
        "time; 0 = never; only with engine_port",
        5 * MINUTE,
        ge=0,
        le=DAY,
    )
    ready_within: DurationMs = key(
        "/readyz of the engine says no when no micro-batch was committed for longer, the pauses of trigger_interval_ms "
        "and idle_trigger_interval_ms not counted: more than a slow one takes",
        MINUTE,
        ge=SECOND,
        le=DAY,
    )


class ConsoleSection(Section):
    """The web page of `inflight console` and of `inflight up`. It asks for no password: whoever reaches it sees everything."""

    host: str = key("address to listen on", "127.0.0.1", min_length=1)
    port: _Port = key("0 = any free one; -1 = `inflight up` serves none", 0)
    names: tuple[str, ...] = key(
        "names by which browsers get there, beside localhost, 127.0.0.1 and host; what asks for another one is refused "
        "(DNS rebinding)",
        (),
    )
    allow_replay: bool = key("dead letters can be sent again from the page", False)


class BackoffSection(Section, configures=_BACKOFF):
    """Waits after a receiver has said that it is throttled (0x97): RocketMQ's and gRPC's exponential backoff."""

    initial: DurationMs = key("the first wait, without jitter", _BACKOFF.initial_ms, ge=1, le=HOUR)
    multiplier: float = key("each wait is this many times the one before", ge=1, le=10)
    jitter: float = key("part of the wait by which it is made longer or shorter, after the cap", ge=0, le=0.9)
    max: DurationMs = key("the cap; at least `initial`", _BACKOFF.max_ms, ge=1, le=DAY)

    def to_backoff_settings(self) -> BackoffSettings:
        """The same for sessions and bridges."""
        return self.plain(BackoffSettings, initial_ms=self.initial, max_ms=self.max)

    def problems(self, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        """What the keys are not allowed to be together. path: of the section that the back-off is in."""
        if self.max < self.initial:
            initial, longest = format_duration(self.initial), format_duration(self.max)
            yield (*path, "backoff", "max"), f"is {longest}, less than backoff.initial = {initial}: raise it"


class SessionSection(Section, configures=_SESSION):
    """The limits and timers of a session, with EMQX's names. [[profiles]] has others for some clients."""

    retry_interval: RetryIntervalMs = key(
        'an unacknowledged PUBLISH or PUBREL is sent again after this long; a list is a schedule: ["30s", "1m", "5m"] = after '
        "30 s, 1 min more, then every 5 min",
        _SESSION.retry_interval_ms,
    )
    retry_mqtt5: RetryMqtt5 = key(
        "the same for MQTT 5, which forbids resends on a live connection: reconnect = close it, so that the device comes back "
        "and gets everything again; timer = send again anyway; wait = do nothing",
    )
    max_inflight: _Packets = key(
        "QoS 1 and 2 messages unacknowledged at once; the client's Receive Maximum may be smaller; 0 = 32767"
    )
    prefetch: _Packets = key(
        "messages that the gateway holds ready beyond max_inflight: keeps fast devices busy between micro-batches"
    )
    max_mqueue_len: int = key(
        "messages that wait; when it is full see overflow; 0 = no limit, whatever max_mqueue_bytes says", ge=0, le=1_000_000
    )
    max_mqueue_bytes: SizeBytes = key(
        "the same by the bytes of payloads, properties and headers; 0 = no limit of bytes", ge=0, le=1 << 30
    )
    mqueue_store_qos0: bool = key("keep QoS 0 messages while the client is offline")
    overflow: Overflow = key(
        "a full queue gives up, the new message counted, QoS 0 first, then the lowest priority, then the oldest (drop_oldest), "
        "or always the new message (reject)"
    )
    max_subscriptions: int = key(
        "topic filters of a device; SUBACK refuses one more with 0x97 (0x80 in MQTT 3.1.1); 0 = no limit", ge=0, le=1_000_000
    )
    max_subscription_bytes: SizeBytes = key("the same by the length of all of them; always limited", ge=KIB, le=MIB)
    max_awaiting_rel: _Packets = key(
        "QoS 2 publications of an MQTT 5 device not yet released, the Receive Maximum of CONNACK; of an MQTT 3.1.1 device, "
        "which has none, not yet answered: it is not read from meanwhile; 0 = no limit"
    )
    await_rel_timeout: DurationMs = key(
        "such a publication is forgotten after this long", _SESSION.await_rel_timeout_ms, ge=SECOND, le=DAY
    )
    session_expiry_interval: DurationMs = key(
        "how long an MQTT 3.1.1 session outlives its connection; MQTT 5 clients say it themselves",
        _SESSION.session_expiry_interval_s * SECOND,
        ge=0,
        le=NEVER_MS,
        multiple_of=1_000,
    )
    max_session_expiry_interval: DurationMs = key(
        "the longest that an MQTT 5 client may ask for; CONNACK tells it so",
        _SESSION.max_session_expiry_interval_s * SECOND,
        ge=0,
        le=NEVER_MS,
        multiple_of=1_000,
    )
    high_watermark: float = key(
        "backends are asked to send this client nothing more (PREFIX.throttle) when this part of max_mqueue_len or "
        "max_mqueue_bytes is used; 0 = never",
        ge=0,
        le=1,
    )
    low_watermark: float = key("backends may go on when it is down to this; below high_watermark", ge=0, le=1)
    delivery_limit: Annotated[int, AfterValidator(_at_least_one_attempt)] = key(
        "attempts before a message is dead-lettered, at least 1; -1 = no limit", ge=-1, le=1_000_000
    )
    deduplication_window: int = key("message ids per client of which a repetition is recognised; 0 = none", ge=0, le=100_000)
    backoff: BackoffSection = BackoffSection()

    def to_session_settings(self) -> SessionSettings:
        """The same for the pure session."""
        first_ms, *later_ms = self.retry_interval if isinstance(self.retry_interval, tuple) else (self.retry_interval,)
        return self.plain(
            SessionSettings,
            retry_interval_ms=first_ms,
            later_retry_intervals_ms=tuple(later_ms),
            await_rel_timeout_ms=self.await_rel_timeout,
            session_expiry_interval_s=self.session_expiry_interval // SECOND,
            max_session_expiry_interval_s=self.max_session_expiry_interval // SECOND,
            backoff=self.backoff.to_backoff_settings(),
        )


class ProfileSection(SessionSection):
    """Other session settings for some clients. Only the keys that are written differ from [session]; the first match wins."""

    clients: str = Field(min_length=1, description="pattern of client ids: * any text, ? one character, [ab] one of these")
