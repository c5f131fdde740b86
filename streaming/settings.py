"""Settings of the engine, and of all processes: [topics], [engine], [throttle], [archive], [metrics], [console]."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from sinks.kafka.security.client_settings import Option
from state.setting import DAY, HOUR, KIB, MIB, MINUTE, NEVER_MS, SECOND, Setting
from state.settings import RecordLimits, SessionSettings, Topics

OFF: Final = -1
"""A port of [metrics] that is not served."""
_PORT: Final = (OFF, 65_535)
_MARK: Final = (0, 1 << 50)
_OFFSETS: Final = (1, 100_000_000)
_MASTER: Final = re.compile(r"local|local\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\]|local-cluster\[.+\]|spark://\S+:\d+\S*|yarn|k8s://\S+")
_HEAP: Final = re.compile(r"(\d{1,9})([kmgKMG])")
_HEAP_UNITS: Final = {"k": 10, "m": 20, "g": 30}
_LEAST_HEAP_BYTES: Final = 512 * MIB


def _check_prefix(text: str) -> None:
    if not text or len(text) > 200 or not all(c.isascii() and (c.isalnum() or c in "._-") for c in text):
        raise ValueError("Kafka allows 1…200 letters, digits, '.', '_' and '-' here")


def _check_master(text: str) -> None:
    if not _MASTER.fullmatch(text):
        raise ValueError("Spark knows local[*], local[N], spark://HOST:PORT, yarn and k8s://…")


def _check_heap(text: str) -> None:
    found = _HEAP.fullmatch(text)
    if found is None or int(found[1]) << _HEAP_UNITS[found[2].lower()] < _LEAST_HEAP_BYTES:
        raise ValueError("write a number and k, m or g, at least 512m, which Spark needs")


def _partitions(meaning: str, default: int) -> int:
    return Setting(meaning, (1, 10_000)).default(default)


def _retention(meaning: str, default_ms: int) -> int:
    return Setting(meaning, (10 * MINUTE, NEVER_MS), unit="ms").default(default_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """Partitions of each topic when Inflight creates it. docs/operate/partitions.md says how to add more later."""

    messages: int = _partitions(
        "one client's messages are in one of them, in order; PREFIX.ledger and PREFIX.routes have as many", 4
    )
    events: int = _partitions("one client's events are in one of them, in order", 4)
    commands: int = _partitions("at least as many as there will ever be gateways: each gateway owns some", 8)
    uplink: int = _partitions("as many backends can share the reading", 4)
    publications: int = _partitions("publications with one key are in one of them, in order; as many matchers can share them", 4)
    receipts: int = _partitions("as many backends can share the reading", 4)
    dead_letters: int = _partitions("as many backends can share the reading", 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long each topic keeps records when Inflight creates it: the longest standstill of a reader that loses nothing."""

    messages: int = _retention("the engine may stand still this long", 7 * DAY)
    events: int = _retention("the engine may stand still this long", 7 * DAY)
    uplink: int = _retention("backends may stand still this long", 7 * DAY)
    publications: int = _retention("all matchers may stand still this long", 7 * DAY)
    receipts: int = _retention("backends may stand still this long", 7 * DAY)
    dead_letters: int = _retention("the time to look at them in Kafka; the Delta table keeps them", 30 * DAY)
    ledger: int = _retention("the archive may stand still this long", 7 * DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(Topics):
    """Names of the topics, and how `inflight topics` creates them."""

    leases: str = "inflight.leases"
    campaigns: str = "inflight.campaigns"
    wake_ups: str = "inflight.wake-ups"
    prefix: str = Setting(
        "the topics are called PREFIX.messages, PREFIX.events, …; two installations can share a Kafka", check=_check_prefix
    ).default("inflight")
    replication_factor: int = Setting("-1 = the brokers' default.replication.factor", (-1, 32)).default(-1)
    min_insync_replicas: int = Setting(
        "brokers that have a record before it is confirmed; -1 = their min.insync.replicas", (-1, 32)
    ).default(-1)
    partitions: PartitionSettings = Setting().default(PartitionSettings())
    retention: RetentionSettings = Setting().default(RetentionSettings())

    def __post_init__(self) -> None:
        for name in ("leases", "campaigns", "wake_ups", *(field.name for field in fields(Topics))):
            object.__setattr__(self, name, f"{self.prefix}.{name.replace('_', '-')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(RecordLimits):
    """The Spark job."""

    data_dir: Path = Setting("where `inflight up` keeps everything").default(Path("var/inflight"))
    checkpoint_location: str = Setting(
        "directory, or hdfs://, s3a://, abfss:// …: the sessions live here; empty = DATA_DIR/checkpoint"
    ).default("")
    tables_location: str = Setting("where the Delta tables go; empty = DATA_DIR/tables").default("")
    master: str = Setting(
        "Spark's master; local[*] = this machine, two tasks for each processor; spark-submit's own --master holds when the job "
        "runs under it",
        check=_check_master,
    ).default("local[*]")
    driver_memory: str = Setting("heap of the engine's JVM, in Spark's notation", check=_check_heap).default("2g")
    nice: int = Setting("nice value under `inflight up`: gateway and Kafka come first", (0, 19)).default(10)
    state_partitions: int = Setting(
        "partitions of the session state, about one for each core that the engine will have; each costs some 20 ms a "
        "micro-batch; `inflight sessions repartition` changes it for a checkpoint that has sessions",
        (1, 10_000),
    ).default(2)
    trigger_interval_ms: int = Setting("a micro-batch starts at most this often; 0 = one after the other", (0, HOUR)).default(100)
    idle_trigger_interval_ms: int = Setting(
        "how often while nothing happens: a micro-batch that only shows that the engine works; records and timers start one at "
        "once; not above trigger_interval_ms = no such pause",
        (0, HOUR),
    ).default(30 * SECOND)
    lazy_ms: int = Setting(
        "how long records may wait that nobody waits for, such as acknowledgements of the fast path; up to three times as long "
        "if micro-batches would take more than a quarter of the time; their receipts are that late; 0 = a micro-batch after the "
        "other",
        (0, MINUTE),
    ).default(SECOND)
    max_offsets_per_trigger: int = Setting(
        "messages, and as many events, that one micro-batch reads: bounds its length after a standstill", _OFFSETS
    ).default(20_000)
    max_bytes_per_trigger: int = Setting(
        "bytes that one micro-batch reads: bounds its length and memory",
        (MIB, 16 * KIB * MIB),
        unit="bytes",
    ).default(64 * MIB)
    max_timers_per_partition: int = Setting(
        "sessions whose timer is due that one micro-batch calls, for each state partition; others follow, the longest overdue "
        "first; one with a long queue counts for more; 0 = all at once",
        (0, 100_000_000),
    ).default(2_500)
    hangs_after_ms: int = Setting(
        "an engine whose query does nothing for this long, although a micro-batch is due, ends with exit status 3 to be started "
        "again; 0 = never",
        (0, DAY),
    ).default(5 * MINUTE)
    stop_at_newer_events: bool = Setting(
        "an event of a newer gateway that this engine cannot read stops it, and nothing is lost; false = it becomes a dead letter"
    ).default(True)
    receipts: bool = Setting("write the outcome of every message to PREFIX.receipts", reloaded_by=("engine",)).default(True)
    ledger: bool = Setting("write every transition of every message to PREFIX.ledger", reloaded_by=("engine",)).default(True)
    lean_worker: bool = Setting(
        "Python workers without pandas, at a fraction of the cost; false = PySpark's own way, same results"
    ).default(True)
    spark: Mapping[str, Option] = Setting('more Spark configuration, for example "spark.executor.memory" = "4g"').default_factory(
        dict, is_shown=False
    )

    def __post_init__(self) -> None:
        """Accepts what RecordLimits refuses: the configuration says which key is wrong (contradictions.py)."""

    @property
    def longest_pause_ms(self) -> int:
        """Returns the longest pause between two micro-batches: one that does nothing is begun only so often."""
        return max(self.trigger_interval_ms, self.idle_trigger_interval_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleSettings:
    """When the engine asks all backends to wait (key * in PREFIX.throttle), and when they may go on: docs/guides/producer.md."""

    lag_high: int = Setting("records in Kafka that the sessions have not read; 0 = never", (0, 1 << 40)).default(200_000)
    lag_low: int = Setting("backends may go on from here; below lag_high", (0, 1 << 40)).default(40_000)
    state_high: int = Setting("size of the session state on disk; 0 = never", _MARK, unit="bytes").default(0)
    state_low: int = Setting("backends may go on from here; below state_high", _MARK, unit="bytes").default(0)
    free_disk_low: int = Setting("free disk of a local checkpoint; 0 = never", _MARK, unit="bytes").default(256 * MIB)
    free_disk_high: int = Setting("backends may go on from here; above free_disk_low", _MARK, unit="bytes").default(512 * MIB)
    backlog_high: int = Setting(
        "queues over 1 MiB of clients that are connected and behind, all together: backends then wait; 0 = never",
        _MARK,
        unit="bytes",
    ).default(1_024 * MIB)
    backlog_low: int = Setting("backends may go on from here; below backlog_high", _MARK, unit="bytes").default(512 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The second query of the engine: Kafka → the Delta tables of engine.tables_location (docs/operate/archive.md)."""

    enabled: bool = Setting("write ledger, dead letters, uplink and receipts to Delta tables").default(False)
    trigger_interval_ms: int = Setting(
        "the tables get new records this often; each time costs seconds of a core", (SECOND, DAY)
    ).default(10 * SECOND)
    retention: int = Setting("older days are deleted from the tables", (DAY, NEVER_MS), unit="ms").default(90 * DAY)
    fail_on_data_loss: bool = Setting(
        "stop with an error when Kafka has deleted records before they were archived; false = go on with a gap"
    ).default(True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Numbers for Prometheus (/metrics) and answers to probes (/healthz, /readyz), which each process serves itself."""

    host: str = Setting("address to listen on; 0.0.0.0 = all, and all may read", min_length=1).default("127.0.0.1")
    engine_port: int = Setting("port of the engine; -1 = off, 0 = any free one", _PORT).default(OFF)
    gateway_port: int = Setting("port of a gateway, of gateway.processes the first", _PORT).default(OFF)
    bridge_port: int = Setting("port of a bridge; two on one machine need two ports", _PORT).default(OFF)
    matcher_port: int = Setting("port of a matcher that runs alone; that of a gateway has its metrics there", _PORT).default(OFF)
    census_interval: int = Setting(
        "the engine counts what all sessions hold this often, in the checkpoint, and never for more than 1/50 of the time; 0 = "
        "never; only with engine_port",
        (0, DAY),
        unit="ms",
    ).default(5 * MINUTE)
    ready_within: int = Setting(
        "/readyz of the engine fails when no micro-batch was committed for longer, besides the pauses of trigger_interval_ms and "
        "idle_trigger_interval_ms: more than a slow micro-batch takes",
        (SECOND, DAY),
        unit="ms",
    ).default(MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The web page of `inflight console` and of `inflight up`. It asks for no password: whoever reaches it sees everything."""

    host: str = Setting("address to listen on", min_length=1).default("127.0.0.1")
    port: int = Setting("0 = any free one; -1 = `inflight up` serves none", _PORT).default(0)
    names: tuple[str, ...] = Setting(
        "names by which browsers reach it, beside localhost, 127.0.0.1 and host; requests for others are refused (DNS rebinding)"
    ).default(())
    allow_replay: bool = Setting("dead letters can be sent again from the page").default(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(SessionSettings):
    """Other session settings for some clients. Only the keys that are written differ from [session]; the first match wins."""

    clients: str = Setting(
        "pattern of client ids: * any text, ? one character, [ab] one of these", min_length=1, is_required=True
    ).default("*")
