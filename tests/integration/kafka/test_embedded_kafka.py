"""A real broker starts, keeps its data through everything, and dies with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer

from inflight.local.child_process import free_port
from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.errors import ChildProcessFailed
from inflight.local.jars import Jars
from streaming.config.errors import KafkaUnreachable, UnsafeTopics
from streaming.config.settings import Settings
from streaming.engine.errors import EngineClockOff
from streaming.engine.kafka_access import require_right_clock, write_wake_up
from streaming.topics import check_topics, ensure_topics, planned_topics, require_safe_topics
from tests.support.kafka_topics import create_topics, read_topic
from tests.support.processes import is_gone
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.servers
TOPIC = "survivors"


def append(broker: EmbeddedKafka, *values: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all", enable_idempotence=True)
    for future in [producer.send(TOPIC, value.encode()) for value in values]:
        future.get(DEADLINE_S)
    producer.close()


@pytest.mark.faults
def test_confirmed_records_survive_a_clean_stop_a_sigkill_and_another_port(tmp_path: Path, jars: Jars) -> None:
    first = EmbeddedKafka(tmp_path, jars=jars)
    with first:
        create_topics(first.bootstrap_servers, TOPIC)
        append(first, "before the stop")
        address = first.bootstrap_servers
        first.stop()
        assert not first.is_running
        first.start()
        assert first.bootstrap_servers == address
        append(first, "before the kill")
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: not first.is_running, "a killed broker is noticed")
    other = EmbeddedKafka(tmp_path, port=free_port(), jars=jars)
    with other:
        assert other.bootstrap_servers != first.bootstrap_servers
        found = [record.value for record in read_topic(other.bootstrap_servers, TOPIC)]
        assert found == [b"before the stop", b"before the kill"]


@pytest.mark.faults
def test_the_broker_dies_with_its_parent_even_if_that_is_killed(tmp_path: Path, jars: Jars) -> None:
    program = (
        "import sys, time; from pathlib import Path; from inflight.local.embedded_kafka import EmbeddedKafka; "
        "from inflight.local.jars import ensure_jars; "
        "kafka = EmbeddedKafka(Path(sys.argv[1]), jars=ensure_jars(progress=False)); "
        "kafka.start(); print(kafka.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        broker = psutil.Process(int(parent.stdout.readline()))
        assert broker.parent() == psutil.Process(parent.pid)
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: is_gone(broker), "the broker is gone")


@pytest.mark.faults
def test_a_broker_that_cannot_start_shows_the_end_of_its_log(kafka: SharedKafka, tmp_path: Path, jars: Jars) -> None:
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    second = EmbeddedKafka(tmp_path / "second", port=port, jars=jars)
    with pytest.raises(ChildProcessFailed, match=r"(?s)before it was ready.*kafka\.log.*If the port is taken, choose another"):
        second.start()
    create_topics(kafka.bootstrap_servers, "the-first-one-works")


def test_the_topics_of_inflight_are_created_once_and_then_found_right(kafka: SharedKafka) -> None:
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": "created"})
    planned = {plan.name for plan in planned_topics(settings)}
    missing = {f"{name}: does not exist; `inflight topics` creates it" for name in planned}
    assert set(check_topics(settings).problems) == missing
    report = ensure_topics(settings)
    assert set(report.created) == planned
    assert report.problems == report.warnings == ()
    assert {topic.name: topic.partitions for topic in report.topics}["created.commands"] == 8
    assert ensure_topics(settings).created == ()
    assert require_safe_topics(settings).problems == ()


def test_the_engine_refuses_topics_that_would_lose_data(kafka: SharedKafka) -> None:
    create_topics(kafka.bootstrap_servers, "lossy.events", cleanup_policy="compact")
    create_topics(kafka.bootstrap_servers, "lossy.messages", retention_ms="60000")
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": "lossy"})
    with pytest.raises(UnsafeTopics) as caught:
        ensure_topics(settings)
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {"lossy.events", "lossy.messages"}


def test_topics_with_the_time_of_their_writers_are_repaired(kafka: SharedKafka) -> None:
    """An older version made them so: a gateway whose clock was behind had its records deleted within minutes."""
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": "timely"})
    create_topics(kafka.bootstrap_servers, "timely.uplink", message_timestamp_type="CreateTime")
    [warning] = [warning for warning in check_topics(settings).warnings if "timestamp" in warning]
    assert warning.startswith("timely.uplink: message.timestamp.type=CreateTime")
    report = ensure_topics(settings)
    assert (report.repaired, report.warnings) == (("timely.uplink",), ())
    assert {topic.configs["message.timestamp.type"] for topic in report.topics} == {"LogAppendTime"}
    assert ensure_topics(settings).repaired == ()


@pytest.mark.parametrize(("shift_s", "text"), [(7_200, "2.0 h ahead of"), (-864_000, "10.0 days behind"), (60, None)])
def test_an_engine_whose_clock_is_off_stops_before_anything_ends(kafka: SharedKafka, shift_s: int, text: str | None) -> None:
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": "clock"})
    ensure_topics(settings)
    skew_s = write_wake_up(settings, now_s=lambda: time.time() + shift_s)
    assert shift_s - 1 < skew_s < shift_s + DEADLINE_S
    if text is None:
        require_right_clock(skew_s)
    else:
        with pytest.raises(EngineClockOff, match=f"the clock is {text} that of Kafka's brokers.*NTP"):
            require_right_clock(skew_s)


def test_a_misspelt_topic_is_not_created(kafka: SharedKafka) -> None:
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    consumer.partitions_for_topic("mispelt")
    assert "mispelt" not in consumer.topics()
    consumer.close()


def test_a_kafka_that_is_not_there_is_named() -> None:
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(KafkaUnreachable, match=rf"{servers}.*Check kafka\.bootstrap_servers"):
        check_topics(Settings(kafka={"bootstrap_servers": servers, "options": {"bootstrap.timeout.ms": 500}}))
