"""The engine on a Spark cluster: executors in processes of their own, one of which is killed while messages flow."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from inflight.local.child_process import start_child
from tests.integration.engine.counting_device import CountingDevice
from tests.integration.engine.spark_cluster import SPARK_HOME, SparkCluster
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(480)]

WORKERS = 2
DEVICES = 20
ROUNDS = 10
SETTINGS = {
    "engine.state_partitions": "2",
    "retry_interval": "2s",
    'engine.spark."spark.driver.host"': "127.0.0.1",
    'engine.spark."spark.executor.memory"': "600m",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "cluster", WORKERS) as cluster:
        yield cluster


def options(more: Mapping[str, str]) -> list[str]:
    return [part for key, value in {**SETTINGS, **more}.items() for part in ("--set", f"{key}={value}")]


def kill_an_executor(cluster: SparkCluster) -> None:
    executors = {executor.pid: executor for executor in cluster.executors()}
    assert len(executors) == WORKERS, "the sessions are spread over all workers"
    _, victim = executors.popitem()
    victim.kill()
    wait_until(
        lambda: bool({executor.pid for executor in cluster.executors()} - {victim.pid, *executors}),
        "the cluster starts another executor",
    )


@pytest.mark.promise("executor-dies")
def test_sessions_survive_the_death_of_an_executor(cluster: SparkCluster, tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data", *options({"engine.master": cluster.url})) as up:
        seen: Counter[bytes] = Counter()
        clients = [CountingDevice(f"device-{number}", up.mqtt, seen) for number in range(DEVICES)]
        producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
        sent: list[bytes] = []

        def missing() -> str:
            return f"{len(set(sent) - set(seen))} messages missing; {up.log_tail('engine')}"

        engine = None
        for number in range(ROUNDS):
            for client in range(DEVICES):
                payload = b"%d/%d" % (client, number)
                headers = [("mqtt-topic", b"cmd"), ("mqtt-qos", b"2")]
                producer.send("inflight.messages", payload, key=b"device-%d" % client, headers=headers)
                sent.append(payload)
            producer.flush()
            if number == ROUNDS // 2:
                engine = up.engine_pid()
                kill_an_executor(cluster)
            wait_until(lambda: set(sent) <= set(seen), missing)
        producer.close()
        assert up.engine_pid() == engine, "the query goes on without a restart of the engine"
        for device in clients:
            device.close()
        assert seen == Counter(sent)


def test_spark_submit_decides_on_the_master_and_brings_the_jars(
    cluster: SparkCluster, kafka: SharedKafka, tmp_path: Path
) -> None:
    inflight = [sys.executable, "-m", "inflight"]
    here = options({"kafka.bootstrap_servers": kafka.bootstrap_servers, "engine.data_dir": str(tmp_path / "data")})
    subprocess.run([*inflight, "topics", *here], check=True, timeout=120)
    jars = subprocess.run([*inflight, "jars", "--spark"], check=True, timeout=120, capture_output=True, text=True).stdout.strip()
    application = tmp_path / "start_engine.py"  # a script called inflight.py would hide the package
    application.write_text("from inflight.cli import main\n\nmain()\n")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url, "--jars", jars]
    environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    with start_child(
        [*submit, str(application), "engine", *here], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, environment=environment
    ) as engine:
        try:
            assert engine.stdout is not None
            assert b"ready engine\n" in iter(engine.stdout.readline, b"")
            assert len(cluster.executors()) == WORKERS
        finally:
            for process in (*psutil.Process(engine.pid).children(recursive=True), engine):
                process.kill()
