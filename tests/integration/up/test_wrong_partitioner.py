"""A backend whose Kafka client has the default partitioner of sarama, beside a running system: `inflight status` says so."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from inflight.demo.up import UpProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.faults]


def status_of(up: UpProcess) -> dict[str, Any]:
    command = [sys.executable, "-m", "inflight", "status", "--quick", "--json", "--data-dir", str(up.data_dir)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def partitioner_findings(up: UpProcess) -> list[str]:
    return [str(finding) for finding in status_of(up)["findings"] if "another partition" in str(finding)]


@pytest.mark.promise("other-partitioner")
def test_status_says_that_a_backend_has_a_wrong_partitioner(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "data") as up:

        def found_after_more() -> list[str]:
            backend = Producer({"bootstrap.servers": up.kafka, "partitioner": "fnv1a_random"})
            for number in range(40):
                backend.produce("inflight.messages", b"now", key=f"pump-{number}", headers=[("mqtt-topic", b"t")])
            assert backend.flush(30) == 0
            return partitioner_findings(up)

        assert partitioner_findings(up) == []
        wait_until(found_after_more, "the finding")
        assert "murmur2" in partitioner_findings(up)[0]
        assert "wrong_partitioner" in up.log_tail("engine")
