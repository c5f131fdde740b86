"""Secrets of the configuration are neither in command lines nor in logs."""

from contextlib import suppress

import psutil

from inflight.local.endpoints import Endpoints
from tests.integration.up.conftest import SECRET, SharedUp
from tests.support.processes import family


def test_secrets_are_not_in_the_command_lines_of_up_and_its_children(up: SharedUp) -> None:
    pid = Endpoints.read(up.data_dir).pids["up"]
    lines = []
    for process in (psutil.Process(pid), *family(pid)):
        with suppress(psutil.NoSuchProcess):  # a worker may end meanwhile
            lines.append(" ".join(process.cmdline()))
    for part in "inflight up", "inflight engine", "inflight gateway", "kafka.Kafka", "SparkSubmit":
        assert any(part in line for line in lines), (part, lines)
    assert [line for line in lines if SECRET in line] == []


def test_secrets_are_not_in_the_logs(up: SharedUp) -> None:
    logs = {path.name: path.read_text(errors="replace") for path in (up.data_dir / "logs").glob("*.log*")}
    assert {"engine.log", "gateway.log", "kafka.log", "spark.log"} <= logs.keys()
    assert [name for name, text in logs.items() if SECRET in text] == []
