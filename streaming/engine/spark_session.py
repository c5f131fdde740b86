"""The Spark session of the engine: every setting that the pipeline depends on, with its reason.

Three ways to run (docs/deployment.md): in one JVM of ours (master `local[…]`); with the driver here and executors on a cluster
(any other master); under spark-submit, whose business is then all that concerns machines: master, jars, memory, Python. What
concerns the query is always set here.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from streaming.config.resources import conf_file
from streaming.config.section import names_a_secret

_PACKAGES: Final = Path(__file__).resolve().parents[2]
_LOOPBACK: Final = "127.0.0.1"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LISTS: Final = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep, _JAVA_OPTIONS: " "}
_DAEMON: Final = "streaming.engine.operator.worker_daemon"
"""Its name, because the driver needs nothing of it. Elsewhere than on this machine the daemon may not find our packages."""
_ROCKSDB: Final = f"{_STREAMING}.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """checkpoint_location: a path or URI; decides on the file system. master: None = as spark-submit says.
    state_partitions: those of the checkpoint, if there is one. log_file: where Spark's own log goes (not under spark-submit).
    java_options: more options of the JVM (local mode). extra: more Spark settings, which win over ours; jars and options
    of the JVM come behind ours.
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
    """What Spark's JVM gets besides what PySpark ships.

    connectors: the jars of Kafka and Delta. local_fs: BareLocalFileSystem, which Spark needs before other jars are added.
    java_options: of a JVM on this machine.
    """

    connectors: tuple[Path, ...]
    local_fs: Path
    java_options: tuple[str, ...] = ()


def under_spark_submit() -> bool:
    """True when spark-submit has started this process: the JVM is there already, with its master and its jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_session(settings: SparkSettings, jars: SparkJars | None, *, stderr: int | None = None) -> SparkSession:
    """Starts Spark (some seconds). jars: None when spark-submit brings them. stderr: a file descriptor, where the JVM's
    goes; None = to ours.

    There is one session in a process; a second call with other settings gets the first one's JVM.
    """
    # PySpark looks at the environment only; without this the workers are whatever `python3` is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings.log_file.parent.mkdir(parents=True, exist_ok=True)
    options = spark_options(settings, jars)
    if settings.master is not None:
        options["spark.master"] = settings.master
    _start_jvm({name: value for name, value in options.items() if not names_a_secret(name)}, stderr)
    builder = SparkSession.builder.appName(settings.app_name)
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start_jvm(options: Mapping[str, str], stderr: int | None) -> None:
    """Unless there is one. PySpark gives it all options that are known by then as flags, which everybody on the machine can read:
    so the secret ones come later.
    """
    conf = SparkConf()
    for name, value in options.items():
        conf.set(name, value)
    gateway = None
    if SparkContext._gateway is None and stderr is not None:
        gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(conf=conf, gateway=gateway)


def end_jvm(timeout_s: float) -> None:
    """Ends the JVM of this process and waits for it: it ends when its standard input does. Spark has to be stopped before."""
    gateway = SparkContext._gateway
    if gateway is None:
        raise AssertionError("the engine has started a JVM")
    jvm = gateway.proc
    gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(timeout_s)


def spark_options(settings: SparkSettings, jars: SparkJars | None) -> dict[str, str]:
    """All Spark settings for `settings`."""
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


def keeps_keys_in_order(options: Mapping[str, object]) -> bool:
    """Whether the state store goes through the sessions in the same order whenever a micro-batch is executed.

    options: Spark settings that win over ours. Only of RocksDB this is known.
    """
    return options.get(_STATE_STORE, _ROCKSDB) == _ROCKSDB


def is_local_path(checkpoint_location: str) -> bool:
    """True for a path of this machine's file system, False for HDFS and object stores."""
    return urlparse(checkpoint_location).scheme in ("", "file")


def _query_options(settings: SparkSettings) -> dict[str, str]:
    return {
        # One state store and two Python runs (data, time-outs) for each partition and micro-batch.
        "spark.sql.shuffle.partitions": str(settings.state_partitions),
        _STATE_STORE: _ROCKSDB,
        # Writes what has changed, not a snapshot of everything, in each micro-batch.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Counting rows reads before every write.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
        # A batch of Arrow holds this many groups or records; bounds what a worker has in memory at once.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
        # Over TCP each Python run waits 40 ms for a delayed acknowledgement (docs/decisions/0034).
        "spark.python.unix.domain.socket.enabled": "true",
        # A second copy of a task would write its records to Kafka a second time.
        "spark.speculation": "false",
        # What Spark shows of options, in plans and in its UI: its own default, and the key of a client certificate.
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|private key",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_options(settings: SparkSettings, jars: SparkJars) -> dict[str, str]:
    """Driver and executor are one JVM, which we start."""
    options = {
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.memory": settings.driver_memory,
        _JAVA_OPTIONS: " ".join((_log_options(settings), *jars.java_options, settings.java_options)).strip(),
        # Python workers import `state` and `streaming` by name.
        "spark.executorEnv.PYTHONPATH": str(_PACKAGES),
        "spark.python.daemon.module": _DAEMON,
        "spark.sql.warehouse.dir": str(settings.log_file.parent / "warehouse"),
        # Not `spark.jars`: those are copied at each start, and come too late for the file system of the checkpoint.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in (jars.local_fs, *jars.connectors)),
    }
    return options | _LOCAL_CHECKPOINT if is_local_path(settings.checkpoint_location) else options


def _cluster_options(settings: SparkSettings, jars: SparkJars) -> dict[str, str]:
    """The driver's JVM is ours, the executors come from a cluster, which gets the jars from the driver."""
    return {
        "spark.driver.memory": settings.driver_memory,
        _JAVA_OPTIONS: _log_options(settings),
        "spark.sql.warehouse.dir": str(settings.log_file.parent / "warehouse"),
        "spark.jars": ",".join(jar.as_uri() for jar in jars.connectors),
    }


def _log_options(settings: SparkSettings) -> str:
    log_configuration = conf_file("spark-log4j2.properties").as_uri()
    return f"-Dlog4j2.configurationFile={log_configuration} -Dinflight.spark.log={settings.log_file}"


_DELTA: Final = {
    # Delta's commands (OPTIMIZE, MERGE) and its tables in SQL. Under spark-submit they come with its jars: docs/archive.md.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Times with their zone, for readers that are not Spark; the default is a format that Parquet has given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A table's log is replayed with this many partitions; the default of 50 is for clusters.
    "spark.databricks.delta.snapshotPartitions": "1",
    # VACUUM lists directories with this many tasks; the default of 10,000 takes half a minute for an empty table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # Compaction takes one core, the others are the sessions'.
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
