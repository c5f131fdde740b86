"""Makes the settings of the engine's Spark: every setting that the pipeline depends on, with its reason. Imports no PySpark.

Three ways to run (docs/operate/cluster.md): in our JVM (master `local[…]`); with the driver here and executors on a cluster (any
other master); under spark-submit, which then decides master, jars, memory and Python. Settings of the query are always set here.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streaming.config.resources import conf_file
from streaming.config.secrets import names_a_secret
from streaming.config.settings import Settings
from streaming.engine.temporary_files import temporary_directory
from streaming.spark_internals.jvm_launch import quoted_java_option
from streaming.spark_internals.locations import is_local_path

_PACKAGES: Final = Path(__file__).resolve().parents[2]
_LOOPBACK: Final = "127.0.0.1"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_AT_LAUNCH: Final = (
    *("spark.master", "spark.driver.", "spark.jars", "spark.files", "spark.archives", "spark.submit."),
    *("spark.yarn.", "spark.kerberos."),
)
"""Options that spark-submit reads itself: how to start the JVM, what to fetch before, and how to log in to Hadoop."""
_LISTS: Final = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep, _JAVA_OPTIONS: " "}
_DAEMON: Final = "streaming.engine.operator.worker_daemon"
"""Named and not imported: the driver needs nothing of it. On other machines the daemon may not find our packages."""
_ROCKSDB: Final = f"{_STREAMING}.state.RocksDBStateStoreProvider"
_MAX_SOCKET_DIRECTORY_BYTES: Final = 60
SLOTS_OF_A_PROCESSOR: Final = 2
"""docs/decisions/0031."""

NO_OPTIMIZING_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java's optimizing compiler uses half a core for minutes while devices wait, and gains little for our work
(docs/decisions/0031). Without it the code cache would be too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Settings of one Spark session.

    Attributes:
        checkpoint_location: A path or URI, which decides on the file system.
        log_file: The file of Spark's own log. Not used under spark-submit.
        master: Spark's master; None = as spark-submit says.
        state_partitions: The number of state partitions. That of the checkpoint, if there is one.
        java_options: More options of the JVM, in local mode.
        extra: More Spark settings, which override ours. Jars and JVM options are appended to ours.
    """

    checkpoint_location: str
    log_file: Path
    master: str | None = "local[*]"
    state_partitions: int = 2
    driver_memory: str = "1g"
    java_options: str = ""
    app_name: str = "inflight"
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJars:
    """The jars of Spark's JVM besides those that PySpark ships.

    Attributes:
        connectors: The jars of Kafka and Delta.
        local_fs: BareLocalFileSystem, which Spark needs before other jars are added.
        java_options: For a JVM on this machine.
    """

    connectors: tuple[Path, ...]
    local_fs: Path
    java_options: tuple[str, ...] = ()


def engine_spark_settings(settings: Settings, *, is_submitted: bool) -> SparkSettings:
    """Returns the settings of an engine's Spark.

    Args:
        is_submitted: True under spark-submit, which decides the master.
    """
    engine = settings.engine
    return SparkSettings(
        checkpoint_location=settings.checkpoint_location,
        log_file=engine.data_dir.absolute() / "logs" / "spark.log",
        master=None if is_submitted else spark_master(settings),
        state_partitions=engine.state_partitions,
        driver_memory=engine.driver_memory,
        java_options=NO_OPTIMIZING_COMPILER,
        extra={key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in engine.spark.items()},
    )


def spark_master(settings: Settings) -> str:
    """Returns Spark's master. `local[*]` gets two slots for each processor, because tasks wait half of their time.

    With the archive on it gets at least one more than the sessions have state partitions. A task of the archive runs for seconds;
    on a machine with few cores it would hold a slot that the sessions' next micro-batch needs. With a slot of its own the
    operating system shares the core between the two.
    """
    if settings.engine.master != "local[*]":
        return settings.engine.master
    slots = SLOTS_OF_A_PROCESSOR * len(os.sched_getaffinity(0))
    return f"local[{max(slots, settings.engine.state_partitions + 1) if settings.archive.enabled else slots}]"


def all_options(settings: SparkSettings, jars: SparkJars | None) -> dict[str, str]:
    """Returns all Spark settings for `settings` in this process: `spark_options`, its master and its temporary directory."""
    options = spark_options(settings, jars)
    if settings.master is not None:
        options["spark.master"] = settings.master
        options |= temporary_options(temporary_directory(settings.checkpoint_location), options.get(_JAVA_OPTIONS, ""))
    return options


def spark_options(settings: SparkSettings, jars: SparkJars | None) -> dict[str, str]:
    """Returns all Spark settings for `settings`."""
    options = dict(_query_options(settings))
    if settings.master is not None and jars is not None:
        if settings.master.startswith("local"):
            options |= _local_options(settings, jars)
        else:
            options |= _cluster_options(settings, jars)
        options |= _DELTA
    both = _LISTS.keys() & options.keys() & settings.extra.keys()
    joined = {name: _LISTS[name].join((options[name], settings.extra[name])) for name in both}
    return options | dict(settings.extra) | joined


def launch_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that the JVM needs before Spark starts in it, without those that are named like secrets.

    They become flags, which every user of the machine can read. Spark gets all settings over the connection to its JVM.
    """
    return {name: value for name, value in options.items() if name.startswith(_AT_LAUNCH) and not names_a_secret(name)}


def temporary_options(directory: Path, java_options: str) -> dict[str, str]:
    """Returns the options by which Spark on this machine uses a directory for temporary files.

    Args:
        java_options: Options that follow ours.
    """
    # The sockets of Python workers are in it, too, unless their paths would be longer than the system allows.
    is_too_long = len(os.fsencode(directory)) > _MAX_SOCKET_DIRECTORY_BYTES
    sockets = {"spark.python.unix.domain.socket.dir": tempfile.gettempdir()} if is_too_long else {}
    return {_JAVA_OPTIONS: f"{quoted_java_option(f'-Djava.io.tmpdir={directory}')} {java_options}".strip(), **sockets}


def _query_options(settings: SparkSettings) -> dict[str, str]:
    return {
        # One state store and two Python runs (data, time-outs) for each partition and micro-batch.
        "spark.sql.shuffle.partitions": str(settings.state_partitions),
        _STATE_STORE: _ROCKSDB,
        # Writes changes in each micro-batch instead of a snapshot of everything.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Counting rows reads before every write.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
        # Groups or records of an Arrow batch; bounds the memory of a worker.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        # Over TCP each Python run waits 40 ms for a delayed acknowledgement (docs/decisions/0031).
        "spark.python.unix.domain.socket.enabled": "true",
        # A second copy of a task would write its records to Kafka a second time.
        "spark.speculation": "false",
        "spark.executor.killOnFatalError.depth": "0",
        # Hides options in plans and in Spark's UI: Spark's own default, and what else streaming/config/secrets.py knows.
        "spark.redaction.regex": "(?i)secret|passw(or)?d|passphrase|token|(access|account|private|encryption)[. ]?key|jaas"
        "|[.]sas[.]|user[.]info",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_options(settings: SparkSettings, jars: SparkJars) -> dict[str, str]:
    """Returns options for one JVM of ours that is driver and executor."""
    options = {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.memory": settings.driver_memory,
        _JAVA_OPTIONS: " ".join(
            (_log_options(settings), *map(quoted_java_option, jars.java_options), settings.java_options)
        ).strip(),
        # Python workers import `state` and `streaming` by name.
        "spark.executorEnv.PYTHONPATH": str(_PACKAGES),
        "spark.python.daemon.module": _DAEMON,
        "spark.sql.warehouse.dir": str(settings.log_file.parent / "warehouse"),
        # Not `spark.jars`: those are copied at each start, and come too late for the file system of the checkpoint.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in (jars.local_fs, *jars.connectors)),
    }
    return options | _LOCAL_CHECKPOINT if is_local_path(settings.checkpoint_location) else options


def _cluster_options(settings: SparkSettings, jars: SparkJars) -> dict[str, str]:
    """Returns options for a driver in a JVM of ours and executors on a cluster, which gets the jars from the driver."""
    return {
        "spark.driver.memory": settings.driver_memory,
        _JAVA_OPTIONS: _log_options(settings),
        "spark.sql.warehouse.dir": str(settings.log_file.parent / "warehouse"),
        "spark.jars": ",".join(jar.as_uri() for jar in jars.connectors),
    }


def _log_options(settings: SparkSettings) -> str:
    log_configuration = conf_file("spark-log4j2.properties").as_uri()
    log = str(settings.log_file)
    # A percent sign begins a conversion in log4j's pattern for the names of old logs.
    files = f"-Dinflight.spark.log={log}", f"-Dinflight.spark.old_logs={log.replace('%', '%%')}"
    return " ".join((f"-Dlog4j2.configurationFile={log_configuration}", *map(quoted_java_option, files)))


_DELTA: Final = {
    # Delta's commands (OPTIMIZE, MERGE) and its tables in SQL. Under spark-submit its jars have them: docs/operate/archive.md.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Times with their zone, for readers other than Spark; the default is a format that Parquet has deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A table's log is replayed with this many partitions; the default of 50 is for clusters.
    "spark.databricks.delta.snapshotPartitions": "1",
    # VACUUM lists directories with this many tasks; the default of 10,000 takes half a minute for an empty table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # Compaction uses one core and leaves the others to the sessions.
    "spark.databricks.delta.optimize.maxThreads": "1",
    "spark.databricks.delta.optimize.maxFileSize": str(256 << 20),
    # Two queries in one Spark: a task of `sessions` gets the next free core even when `archive` has many waiting.
    "spark.scheduler.mode": "FAIR",
}

_LOCAL_CHECKPOINT: Final = {
    # Hadoop's own local file system forks a process for every checkpoint file when its native library is missing.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
}
