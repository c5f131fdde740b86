"""A configuration that changes while the engine runs: policies of the new file hold from a micro-batch on, connections stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.config.settings import load_settings
from streaming.topics import ensure_topics
from tests.spark.child_engine import READY_S
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]


class Installation(EngineTopics):
    """Topics with a configuration file."""

    def __init__(self, kafka: SharedKafka, directory: Path) -> None:
        self.file = directory / "inflight.toml"
        super().__init__(kafka, "reload")
        self._lines = (
            f'kafka.bootstrap_servers = "{self.kafka}"\ntopics.prefix = "{self.prefix}"\nengine.data_dir = "{directory}"\n'
            "topics.partitions.commands = 1\n"
        )
        self.configure("")
        ensure_topics(load_settings(self.file))

    def configure(self, text: str) -> None:
        self.file.write_text(self._lines + text, encoding="utf-8")


@pytest.mark.promise("engine-reload", "engine-stop")
def test_a_running_engine_reloads_a_changed_file_and_continues(kafka: SharedKafka, tmp_path: Path) -> None:
    """Pace, archive, leases and backpressure continue, and a stop ends between two micro-batches."""
    installation = Installation(kafka, tmp_path)
    log = tmp_path / "engine.log"
    command = [sys.executable, "-m", "inflight", "engine", "--config", str(installation.file)]
    command += ["--set", "archive.enabled=true", "--set", "session.max_inflight=7"]

    def said(event: str) -> list[str]:
        return [line for line in log.read_text(encoding="utf-8").splitlines() if event in line]

    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
    try:
        wait_until(lambda: said("ready engine") or process.poll() is not None, "the engine", within_s=READY_S)
        installation.connect(1, b"here")
        installation.send(b"1", b"here")
        installation.commands(lambda found: len(found) >= 2)
        installation.configure("[[policies]]\nname = 1\n")
        wait_until(lambda: said("settings_not_taken"), "the report")
        installation.configure('[[policies]]\nname = "short"\nclients = "away"\nmessage_ttl = "1s"\n')
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: len(said("settings_in_force")) == 2, "the new settings")
        assert "policies" in said("settings_changed")[0]
        installation.send(b"late", b"away")
        installation.send(b"2", b"here")
        assert installation.outcomes(1) == {"late": "expired"}
        commands = installation.commands(lambda found: len(found) >= 3)
        assert [(command.connection_id, command.sequence) for command in commands] == [(1, 1), (1, 2), (1, 3)]
        installation.configure("engine.trigger_interval_ms = 77\n")
        wait_until(lambda: said("settings_need_a_restart"), "the report")
        wait_until(lambda: len(said("settings_in_force")) == 3, "the policy is gone")
        assert not said("Traceback")  # before the stop, which interrupts a micro-batch of the archive
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == 0
    finally:
        process.kill()
        process.wait()
    checkpoint = tmp_path / "checkpoint" / "sessions"
    planned, committed = (max(int(path.name) for path in (checkpoint / name).glob("[0-9]*")) for name in ("offsets", "commits"))
    assert planned == committed
