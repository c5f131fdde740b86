"""The sections of conf/inflight.toml about Kafka, the topics and the engine: keys, defaults, ranges, and what each key means.

The comments of that file, and the ranges in error messages, come from here. Attribute names are the keys.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, SecretStr

from streaming.config.section import DAY, HOUR, KIB, MIB, MINUTE, SECOND, DurationMs, Option, Secret, Section, SizeBytes, key
from streaming.config.units import NEVER_MS

OFF: Final = -1
"""A port of [metrics] that is not served."""

_Offsets = Annotated[int, Field(ge=1, le=100_000_000)]
_Limit = Annotated[SizeBytes, Field(ge=0, le=1 << 50)]
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


class KafkaSection(Section):
    """Where Kafka is and how to log in there."""

    bootstrap_servers: Annotated[str, AfterValidator(_host_ports)] = key(
        "host:port, several separated by commas; `inflight up` puts its own broker here", "127.0.0.1:9092"
    )
    security_protocol: str = key(
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL", "PLAINTEXT", pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$"
    )
    sasl_mechanism: str = key(
        "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", "SCRAM-SHA-512", pattern="^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512)$"
    )
    sasl_username: str = key("used with SASL_…", "")
    sasl_password: Secret = key("best given as INFLIGHT__KAFKA__SASL_PASSWORD; never shown", SecretStr(""))
    ssl_cafile: str = key("PEM file of the authorities that may have signed the brokers' certificates", "")
    options: dict[str, Option] = key(
        'more client options by Kafka\'s names, given to every client, for example "request.timeout.ms" = 30000', {}
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

    data_dir: Path = key("where `inflight up` keeps everything", Path("var/inflight"))
    checkpoint_location: str = key(
        "directory, or hdfs://, s3a://, abfss:// …: the sessions live here; empty = DATA_DIR/checkpoint", ""
    )
    tables_location: str = key("where the Delta tables go; empty = DATA_DIR/tables", "")
    master: str = key("Spark's master; spark-submit's own --master holds when the job runs under it", "local[*]")
    driver_memory: str = key("heap of the engine's JVM, in Spark's notation", "2g", pattern=r"^\d+[kmgKMG]$")
    state_partitions: int = key(
        "partitions of the session state, about one for each core that the engine will ever have; fixed for the life of a "
        "checkpoint, and each costs some 20 ms a micro-batch",
        2,
        ge=1,
        le=10_000,
    )
    trigger_interval_ms: DurationMs = key("a micro-batch starts at most this often; 0 = one after the other", 100, ge=0, le=HOUR)
    max_offsets_per_trigger: _Offsets = key(
        "messages, and as many events, that one micro-batch takes in: bounds its length after a standstill", 20_000
    )
    max_payload_bytes: SizeBytes = key("a larger message of a backend is dead-lettered as invalid", 256 * KIB, ge=1, le=64 * MIB)
    max_headers_bytes: SizeBytes = key(
        "the same for the names and values of all headers of one message together", 64 * KIB, ge=KIB, le=MIB
    )
    max_record_bytes: SizeBytes = key(
        "largest record that Inflight writes; the topics must allow it (max.message.bytes)", 900_000, ge=64 * KIB, le=96 * MIB
    )
    receipts: bool = key("write the outcome of every message to PREFIX.receipts", True)
    ledger: bool = key("write every transition of every message to PREFIX.ledger", True)
    spark: dict[str, Option] = key('more Spark configuration, for example "spark.executor.memory" = "4g"', {})


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
    """Numbers for Prometheus, served by each process itself at http://HOST:PORT/metrics; docs/operations.md names them."""

    host: str = key("address to listen on; 0.0.0.0 = all, and then whoever gets there may read them", "127.0.0.1", min_length=1)
    engine_port: _Port = key("of the engine; -1 = off, 0 = any free one", OFF)
    gateway_port: _Port = key("of a gateway; two on one machine need two ports", OFF)
    bridge_port: _Port = key("of a bridge; two on one machine need two ports", OFF)
