"""`inflight engine` dies of the same record at each start: it names the record and the cause, and so does `inflight status`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaProducer

from state.events import PubAckReceived
from state.records.events import encode_event
from tests.spark.next_version import next_version
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.timeout(400)]


def inflight(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "inflight", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.promise("repeated-ends")
def test_an_engine_that_dies_of_a_record_each_time_names_it(kafka: SharedKafka, tmp_path: Path) -> None:
    options = ["--data-dir", str(tmp_path)]
    for setting in (
        f"kafka.bootstrap_servers={kafka.bootstrap_servers}",
        "topics.prefix=repeated-ends",
        "topics.partitions.events=1",
        "engine.state_partitions=1",
        "engine.driver_memory=512m",
    ):
        options += ["--set", setting]
    assert inflight("topics", *options[2:]).returncode == 0
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    event = next_version(encode_event(PubAckReceived(connection_id=1, packet_id=1)))
    producer.send("repeated-ends.events", event, key=b"c").get(DEADLINE_S)
    producer.close()

    runs = [inflight("engine", *options) for _ in range(3)]
    assert [run.returncode for run in runs] == [1, 1, 1], runs[-1].stderr[-3_000:]
    assert "engine_ends_repeatedly" not in runs[1].stderr
    assert "engine_ends_repeatedly" in runs[2].stderr
    assert "micro-batch 0 (repeated-ends.events-0 from 0 to " in runs[2].stderr

    seen = json.loads(inflight("status", "--json", *options).stdout)
    (found,) = [finding for finding in seen["findings"] if "times in a row" in finding["what"]]
    assert "the engine has ended 3 times in a row at micro-batch 0 (repeated-ends.events-0 from 0 to " in found["what"]
    assert "has version 6, and this Inflight reads 5" in found["what"]
