"""A query that hangs: the watchdog ends the engine, and the next one goes on."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaProducer

from state.commands import SendPublish
from state.events import ClientConnected
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from streaming.engine.watching.watchdog import HUNG, Hangs
from tests.spark.child_engine import Engine, engine
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(300)]

PATIENCE_S = 10


def settings(kafka: SharedKafka, prefix: str, directory: Path) -> dict[str, Any]:
    return {
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "topics": {"prefix": prefix},
        "engine": {"data_dir": str(directory), "driver_memory": "512m", "master": "local[2]", "hangs_after_ms": f"{PATIENCE_S}s"},
    }


def connect_and_send(kafka: SharedKafka, prefix: str, message_id: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    connected = ClientConnected(
        connection_id=1,
        commands_partition=0,
        protocol_version=4,
        clean_start=False,
        session_expiry_interval_s=3_600,
        receive_maximum=65_535,
    )
    producer.send(f"{prefix}.events", encode_event(connected), key=b"c").get(30)
    headers = [("mqtt-topic", b"t"), ("message-id", message_id)]
    producer.send(f"{prefix}.messages", message_id, key=b"c", headers=headers).get(30)
    producer.close()


def publishes(records: list[ReadRecord]) -> list[bytes]:
    commands = [command for record in records for command in decode_command_batch(record.value or b"").commands]
    return [command.payload for command in commands if isinstance(command, SendPublish)]


def workers(process: Engine) -> list[psutil.Process]:
    """Spark's Python workers, and the process that forks them."""
    children = [child for child in psutil.Process(process.process.pid).children(recursive=True) if is_alive(child)]
    return [child for child in children if "pyspark" in " ".join(child.cmdline()) and child.name().startswith("python")]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("frozen", ["workers", "jvm"])
def test_an_engine_that_hangs_is_ended_and_continues_at_its_next_start(kafka: SharedKafka, tmp_path: Path, frozen: str) -> None:
    prefix = f"hangs-{frozen}"
    topics = f"{prefix}.commands"
    with engine(settings(kafka, prefix, tmp_path)) as first:
        connect_and_send(kafka, prefix, b"1")
        read_topic(kafka.bootstrap_servers, topics, lambda found: publishes(found) == [b"1"])
        wait_until(lambda: bool(workers(first)), "the Python workers")
        everything = psutil.Process(first.process.pid).children(recursive=True)
        jvm = [child for child in everything if child.name() == "java"]
        for process in workers(first) if frozen == "workers" else jvm:
            os.kill(process.pid, signal.SIGSTOP)
        connect_and_send(kafka, prefix, b"2")
        assert first.process.wait(6 * PATIENCE_S) == HUNG
        assert first.process.stderr is not None
        said = first.process.stderr.read()
        assert "query_hangs" in said
        wait_until(lambda: not any(is_alive(child) for child in everything), "it takes with it what it has started")
    assert Hangs.read(tmp_path).count == 1
    with engine(settings(kafka, prefix, tmp_path)) as second:
        read_topic(kafka.bootstrap_servers, topics, lambda found: b"2" in publishes(found))
        assert second.stop() == 0


def test_an_idle_engine_does_not_hang(kafka: SharedKafka, tmp_path: Path) -> None:
    with engine(settings(kafka, "hangs-not", tmp_path)) as idle:
        with pytest.raises(subprocess.TimeoutExpired):
            idle.process.wait(2 * PATIENCE_S)
        assert idle.stop() == 0
    assert Hangs.read(tmp_path).count == 0
