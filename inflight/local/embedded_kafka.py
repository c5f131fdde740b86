"""Runs a real Kafka broker as a child process: one KRaft node, for `inflight up`, tests and benchmarks.

It is the broker that everybody runs, from the jars of conf/jars.txt, with settings for one small node. It has one disk:
acknowledged records survive killed processes (even SIGKILL: they are in the page cache), but not a lost disk, and the newest ones
not a power cut. For that use a cluster with replication and `kafka.bootstrap_servers`.

Under the data directory: `kafka/data` (records), `kafka/server.properties` (written at every start), `logs/kafka.log`.
"""

import base64
import re
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from inflight.local.child_process import bound_to_parent, free_port, start_child, tail
from inflight.local.class_data_sharing import archive_options, records_classes
from inflight.local.errors import ChildProcessFailed
from inflight.local.jars import Jars, kafka_classpath
from inflight.local.java import find_java
from inflight.local.start_watch import PATIENCE_S, StartWatch
from streaming.config.resources import conf_file
from streaming.engine.watching.full_disk import is_full
from streaming.spark_internals.jvm_launch import java_environment

_HOST: Final = "127.0.0.1"
_STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.02
_WATCH_S: Final = 1.0
_DATA: Final = "data"
_META: Final = "meta.properties"
_PROPERTIES_FILE: Final = "server.properties"
_PORT_ATTEMPTS: Final = 5
# No optimizing compiler, and a collector that stops the broker for 4 ms instead of 13: see
# docs/decisions/0031. Java refuses to start with two collectors; JDK_JAVA_OPTIONS may have named one.
_JVM: Final = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:-UseSerialGC",
    "-XX:-UseG1GC",
    "-XX:+UseParallelGC",
    "-XX:ParallelGCThreads=2",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)
_BIND_FAILURE: Final = re.compile(r"BindException|Address already in use|Socket server failed to bind")

_PROPERTIES: Final = """\
# Written by Inflight at every start; changes are lost.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
# Relative to the broker's working directory: in a list of directories no comma could be escaped.
log.dirs={data}

# One node: nothing to replicate to.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
unclean.leader.election.enable=false

# A misspelt topic is an error, not a new topic without settings.
auto.create.topics.enable=false
num.partitions=4
# Consumers get their partitions at once, not after three seconds.
group.initial.rebalance.delay.ms=0
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
socket.request.max.bytes=104857600
# After a SIGKILL the controller takes the old registration for alive for this long, and the broker waits (the default is 9 s).
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# On a busy machine the broker may need longer than a minute to register; await_ready ends one that hangs.
initial.broker.registration.timeout.ms=600000
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""


class EmbeddedKafka:
    """One broker, on loopback, with its data under `data_dir`.

    Use it as a context manager, or call `start` and `stop`. Start it from the main thread: on Linux the broker is killed when the
    thread that started it ends (inflight/local/child_process.py).

    Args:
        port: Where clients connect; 0 = a free one, chosen at the first start and kept while this object lives.
        preferred_port: That one if it is free; 0 = any. Used if `port` is 0.

    Attributes:
        port: Where clients connect; valid after `start`.
    """

    def __init__(self, data_dir: Path, *, port: int = 0, preferred_port: int = 0, jars: Jars) -> None:
        self._directory = data_dir.absolute() / "kafka"
        self._temporary = self._directory / "tmp"
        self._logs = data_dir.absolute() / "logs"
        self.log_file = self._logs / "kafka.log"
        self._output = self._logs / "kafka.out"
        self._requested_port = port
        self.port = port or preferred_port
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; valid after `start`."""
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process id. Raises ChildProcessFailed if it was never started."""
        if self._process is None:
            raise ChildProcessFailed("Kafka has not been started: call start() first.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the broker and returns when it answers. Raises ChildProcessFailed with the end of its log."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self.spawn()
            try:
                self.await_ready()
            except ChildProcessFailed:
                # Another process took the free port before the broker could bind it; a port that was asked for is kept.
                words = tail(self.log_file, lines=60) + tail(self._output, lines=60)
                if attempt == _PORT_ATTEMPTS or self._requested_port or not _BIND_FAILURE.search(words):
                    raise
                self.port = 0
            else:
                return

    def spawn(self) -> None:
        """Does the first half of `start`: formats new storage and starts the process, without waiting for it.

        Raises ChildProcessFailed.
        """
        if self.is_running:
            return
        try:
            self._spawn()
        except OSError as error:
            raise ChildProcessFailed(f"Kafka cannot be started in {self._directory}: {error}. {self._advice()}") from error

    def _spawn(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)  # a killed broker leaves the libraries that Java had unpacked
        for directory in self._directory, self._temporary, self._logs:
            directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        self._write_properties()
        if not (self._directory / _DATA / _META).is_file():
            self._format()
        self._output.write_bytes(b"")
        with self._output.open("ab") as output:
            command = [*self._java(*archive_options("kafka", self._jars)), "kafka.Kafka", _PROPERTIES_FILE]
            self._process = start_child(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=self._directory, environment=java_environment()
            )

    def await_ready(self, patience_s: float = PATIENCE_S) -> None:
        """Does the second half of `start`: waits for the answer to a metadata request. Raises ChildProcessFailed.

        Args:
            patience_s: A broker that neither answers nor works for so many seconds is killed.
        """
        watch = StartWatch(self.pid, patience_s=patience_s)
        while not self._answers():
            if not self.is_running:
                status = None if self._process is None else self._process.returncode
                raise ChildProcessFailed(self._explain(f"Kafka ended with status {status} before it was ready"))
            if watch.is_stuck():
                self.kill()
                raise ChildProcessFailed(
                    self._explain(f"Kafka does not answer on {self.bootstrap_servers} after {watch.waited_s:.0f} s, nor work")
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stops the broker cleanly; kills it after 20 s. Does nothing if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Sends SIGKILL. `start` brings the broker back with its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()  # also on Ctrl-C during the start
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _java(self, *options: str) -> list[str]:
        logging = conf_file("kafka-log4j2.properties")
        return [
            str(find_java().executable),
            *_JVM,
            *options,
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            f"-Dinflight.kafka.log={Path('..', self.log_file.parent.name, self.log_file.name)}",
            f"-Djava.io.tmpdir={self._temporary.name}",
            "-cp",
            kafka_classpath(self._jars),
        ]

    def _write_properties(self) -> Path:
        text = _PROPERTIES.format(host=_HOST, port=self.port, controller_port=free_port(), data=_DATA)
        path = self._directory / _PROPERTIES_FILE
        path.write_text(text, encoding="utf-8")
        return path

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        # The id of a KRaft cluster is 22 characters of URL-safe base64; one that starts with "-" would be read as an option.
        # Recorded classes are those of the broker: this JVM would only take its time to write its own.
        options = () if records_classes() else archive_options("kafka", self._jars)
        arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", _PROPERTIES_FILE]
        with subprocess.Popen(
            bound_to_parent([*self._java(*options), *arguments]),
            cwd=self._directory,
            env=java_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            output = _output_of(process)
        if process.returncode != 0:
            raise ChildProcessFailed(f"Kafka's storage could not be formatted in {self._directory}:\n{output}\n{self._advice()}")

    def _answers(self) -> bool:
        # A TCP connection first: the client logs each refusal.
        try:
            socket.create_connection((_HOST, self.port), timeout=1).close()
        except OSError:
            return False
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5_000, bootstrap_timeout_ms=5_000
            )
        except KafkaError:
            return False
        try:
            cluster = admin.describe_cluster()
            # Another program's broker may sit on the port that ours is about to fail to bind.
            return bool(cluster["brokers"]) and cluster["cluster_id"] == self._cluster_id()
        except KafkaError:
            return False
        finally:
            admin.close()

    def _cluster_id(self) -> str | None:
        try:
            text = (self._directory / _DATA / _META).read_text(encoding="utf-8")
        except OSError:
            return None
        return next((line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("cluster.id=")), None)

    def _explain(self, what: str) -> str:
        output = tail(self._output)
        words = f"{tail(self.log_file)}\n" + (f"and of its output:\n{output}\n" if output else "")
        return f"{what}. The end of {self.log_file}:\n{words}{self._advice()}"

    def _advice(self) -> str:
        """Says what to do, for people."""
        if is_full(str(self._directory / _DATA)):
            return f"The disk of {self._directory} is full: make room there. Nothing that Kafka has confirmed is lost."
        return f"If the port is taken, choose another; if the data is damaged, move {self._directory} away."


def _output_of(process: "subprocess.Popen[str]") -> str:
    """Returns what a process has written until its end. Kills one that does nothing."""
    watch = StartWatch(process.pid)
    while True:
        try:
            return process.communicate(timeout=_WATCH_S)[0]
        except subprocess.TimeoutExpired:
            if watch.is_stuck():
                process.kill()
