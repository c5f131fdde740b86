"""Three Kafka brokers on loopback, each a process of its own, one of which may be killed: replicas, of which two confirm."""

import base64
import subprocess
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from inflight.local.child_process import bound_to_parent, free_port, start_child, tail
from inflight.local.class_data_sharing import archive_options
from inflight.local.jars import Jars, kafka_classpath
from inflight.local.java import find_java
from streaming.config.resources import conf_file
from tests.support.waiting import wait_until

BROKERS: Final = 3
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
# A broker that was killed leads for this long (the default is 9 s).
broker.session.timeout.ms=6000
log.cleaner.dedupe.buffer.size=16777216
"""


class KafkaCluster:
    """Brokers that are controllers, too, as in KRaft's combined mode: a quorum of two remains when one is killed.

    They say nothing about the replication of ordinary topics: Kafka's own defaults hold there, one replica.
    """

    def __init__(self, directory: Path, *, jars: Jars) -> None:
        self._directory = directory
        self._jars = jars
        self._ports = [free_port() for _ in range(BROKERS)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        controllers = [free_port() for _ in range(BROKERS)]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers))
        for number, (port, controller_port) in enumerate(zip(self._ports, controllers, strict=True)):
            home = self._home(number)
            home.mkdir(parents=True)
            text = _PROPERTIES.format(
                number=number, voters=voters, port=port, controller_port=controller_port, data=home / "data"
            )
            (home / "server.properties").write_text(text)
        with self._stack:
            self._format()
            for number in range(BROKERS):
                self.start(number)
            wait_until(lambda: self.alive() == set(range(BROKERS)), self._logs)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def start(self, number: int) -> None:
        """Starts a broker without waiting for it."""
        home = self._home(number)
        with (home / "output").open("ab") as output:
            command = [*self._java(number), "kafka.Kafka", str(home / "server.properties")]
            process = start_child(command, stdout=output, stderr=output)
        self._processes[number] = process
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def kill(self, number: int) -> None:
        """Sends SIGKILL to a broker."""
        self._processes[number].kill()
        self._processes[number].wait()

    def alive(self) -> set[int]:
        """Returns the numbers of the brokers that the cluster says are alive."""
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, bootstrap_timeout_ms=5_000)
        except KafkaError:
            return set()
        try:
            return {broker["broker_id"] for broker in admin.describe_cluster()["brokers"]}
        except KafkaError:
            return set()
        finally:
            admin.close()

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for number in range(BROKERS):
            tool = [*self._java(number), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
            subprocess.run(
                bound_to_parent([*tool, "--config", str(self._home(number) / "server.properties")]),
                check=True,
                timeout=120,
                capture_output=True,
            )

    def _java(self, number: int) -> list[str]:
        return [
            *(str(find_java().executable), "-Xmx256m", "-XX:+UseSerialGC", *archive_options("kafka", self._jars)),
            f"-Dlog4j2.configurationFile={conf_file('kafka-log4j2.properties').as_uri()}",
            f"-Dinflight.kafka.log={self._home(number) / 'log'}",
            *("-cp", kafka_classpath(self._jars)),
        ]

    def _home(self, number: int) -> Path:
        return self._directory / f"broker-{number}"

    def _logs(self) -> str:
        return "all brokers are there:\n" + "\n".join(tail(self._home(number) / "log") for number in range(BROKERS))
