"""`inflight status` and `inflight top` of a running `inflight up`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.local.endpoints import Endpoints
from inflight.status.probes import probe_process
from tests.integration.up.conftest import SharedUp
from tests.support.metrics import every_metric
from tests.support.waiting import DEADLINE_S, wait_until

CLIENT = "status-waits"


def inflight(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "inflight", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.faults
def test_the_screen_has_what_runs_what_waits_and_whose_queue_is_long(up: SharedUp) -> None:
    producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    for number in range(50):
        headers = [("mqtt-topic", b"t"), ("mqtt-qos", b"1")]
        producer.send("inflight.messages", b"%d" % number, key=CLIENT.encode(), headers=headers).get(30)
    producer.close()

    def once_the_session_has_them() -> "subprocess.CompletedProcess[str] | None":
        """The engine leaves messages for devices that are away to a later micro-batch."""
        said = inflight("status", "--data-dir", up.data_dir, "--json")
        worst = json.loads(said.stdout)["sessions"]["worst"]
        return said if CLIENT in [client["client_id"] for client in worst] or len(worst) == 10 else None

    said = wait_until(once_the_session_has_them, "the session has its messages")
    assert [line for line in said.stderr.splitlines() if not line.startswith("NOTE: Picked up JDK_JAVA_OPTIONS")] == []
    seen = json.loads(said.stdout)
    assert (seen["kafka"]["servers"], seen["kafka"]["error"], seen["kafka"]["engines"]) == (up.kafka, None, 1)
    assert {process["name"]: process["error"] for process in seen["processes"]} == {"engine": None, "gateway": None}
    assert any(holder["name"].startswith("gateway ") for holder in seen["kafka"]["holders"])
    topics = {topic["name"]: topic for topic in seen["kafka"]["topics"]}
    assert topics["inflight.messages"]["end"] >= 50
    assert topics["inflight.messages"]["waiting"] is not None
    assert seen["kafka"]["matchers"]["members"] == 1
    assert {name for name, topic in topics.items() if topic["unrouted"] is not None} >= {"inflight.publications"}
    assert seen["sessions"]["source"] == "engine"
    assert seen["sessions"]["sessions"] >= 1
    critical = [finding for finding in seen["findings"] if finding["severity"] == "critical"]
    assert (said.returncode == 1) == bool(critical)
    shown = inflight("status", "--data-dir", up.data_dir, "--quick")
    assert "Traceback" not in shown.stderr
    for words in "Processes", "micro-batches, the last one took", "Topics", "inflight.messages":
        assert words in shown.stdout


def test_running_processes_serve_the_metrics_of_the_page_and_no_others(up: SharedUp) -> None:
    def served(process: str) -> dict[str, float]:
        return dict(probe_process(process, Endpoints.read(up.data_dir).metrics[process]).values)

    # Nothing may wait for its acknowledgement now.
    known = {name for name in every_metric() if name.startswith("inflight_engine_")}
    known -= {"inflight_engine_oldest_unacknowledged_timestamp_seconds"}
    engine = wait_until(lambda: found if known <= (found := served("engine")).keys() else None, "each was measured once")
    # Labels without a value yet are left out; a histogram has three names.
    gateway = {re.sub(r"_(append|match)_seconds_\w+", r"_\1_seconds", name) for name in served("gateway")}
    for names in engine.keys(), gateway:
        ours = {name for name in names if name.startswith("inflight_") and not name.endswith("_created")}
        assert ours - every_metric().keys() == set()
    assert "inflight_gateway_append_seconds" in gateway
    assert served("gateway")["inflight_gateway_partitions_owned"] > 0


def test_top_goes_on_until_it_is_interrupted(up: SharedUp) -> None:
    command = [sys.executable, "-m", "inflight", "top", "--quick", "--interval", "0.5", "--data-dir", str(up.data_dir)]
    environment = os.environ | {"TTY_COMPATIBLE": "1", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        screens = 0
        for line in process.stdout:
            screens += "Topics" in line
            if screens == 2:
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
