"""Sessions, what waits in them, and their timers go with the checkpoint into another number of state partitions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(420)]

ONLINE, AWAY = 8, 16
EXPIRATION_MS = 60_000
COMMAND_S = 120


class Sessions:
    """Sessions of connected devices, each with a message in the window and one in the queue.

    Beside them, clients that have never connected have a message each that expires.
    """

    def __init__(self, kafka: SharedKafka, prefix: str, directory: Path) -> None:
        self.topics, self.directory = EngineTopics(kafka, f"repartition-{prefix}"), directory
        self.online = {number: b"online-%d" % number for number in range(ONLINE)}
        self.away = [b"away-%d" % number for number in range(AWAY)]
        self.checkpoint = directory / "checkpoint" / "sessions"

    def settings(self, state_partitions: int) -> dict[str, dict[str, object]]:
        return self.topics.settings(self.directory, state_partitions=state_partitions)

    def run(self, *arguments: str, state_partitions: int) -> "subprocess.Popen[str]":
        """`inflight` as a process group of its own."""
        options = ["--data-dir", str(self.directory), "--set=engine.driver_memory=512m"]
        command = [sys.executable, "-m", "inflight", *arguments, *options, f"--set=engine.state_partitions={state_partitions}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def say(self, *arguments: str, state_partitions: int) -> str:
        """Returns the output of the command."""
        output, errors = self.run(*arguments, state_partitions=state_partitions).communicate(timeout=COMMAND_S)
        assert output, errors[-4_000:]
        return output

    def repartition(self, number: int, *, before: int) -> None:
        assert f"engine.state_partitions = {number}" in self.say("sessions", "repartition", str(number), state_partitions=before)

    def connect(self, first_connection_id: int) -> None:
        """MQTT 5, so that nothing is sent again but to a new connection."""
        for number, client in self.online.items():
            self.topics.connect(first_connection_id + number, client, protocol_version=5, receive_maximum=1)

    def make(self) -> dict[bytes, int]:
        """Packet ids by payload, of what has been sent when the engine, with two state partitions, has stopped."""
        with engine(self.settings(2)) as first:
            self.connect(1)
            for number, client in self.online.items():
                self.topics.send(b"window-%d" % number, client)
                self.topics.send(b"queue-%d" % number, client)
            for client in self.away:
                self.topics.send(client, client, ("expiration", b"%d" % EXPIRATION_MS))
            self.topics.connect(99)
            self.topics.send(b"last")  # which is read with the others, or after them
            sent = self.topics.sent(ONLINE + 1)
            self.topics.acknowledge(next(publish for publish in sent if publish.payload == b"last"))
            assert self.topics.outcomes(1) == {"last": "delivered"}
            assert first.stop() == 0
        assert len(sent) == ONLINE + 1
        return {publish.payload: publish.packet_id for publish in sent}

    def listed(self, state_partitions: int) -> set[int]:
        """The state partitions that `inflight sessions` shows. All sessions are there."""
        lines = self.say("sessions", "--json", "--limit=100", state_partitions=state_partitions).splitlines()
        found = {session["client_id"]: session for session in map(json.loads, lines)}
        expected = {client.decode(): (1, 1) for client in self.online.values()}
        expected |= {client.decode(): (0, 1) for client in self.away} | {"c": (0, 0)}
        assert {name: (session["inflight"], session["queued"]) for name, session in found.items()} == expected
        assert len(lines) == len(expected)
        return {session["partition_id"] for session in found.values()}

    def go_on(self, state_partitions: int, packet_ids: dict[bytes, int]) -> None:
        """Runs an engine on the repartitioned sessions: they are unchanged, and every message ends once."""
        before = ONLINE + 1
        with engine(self.settings(state_partitions)) as second:
            self.connect(100)
            for publish in self.topics.sent(before + ONLINE)[before:]:
                assert (publish.packet_id, publish.dup) == (packet_ids[publish.payload], True)
                self.topics.acknowledge(publish, self.online[publish.connection_id - 100])
            for publish in self.topics.sent(before + 2 * ONLINE)[before + ONLINE :]:
                assert (publish.payload[:5], publish.dup) == (b"queue", False)
                self.topics.acknowledge(publish, self.online[publish.connection_id - 100])
            delivered = [f"{place}-{number}" for place in ("window", "queue") for number in self.online]
            expected = dict.fromkeys([*delivered, "last"], "delivered") | {client.decode(): "expired" for client in self.away}
            assert self.topics.outcomes(len(expected)) == expected
            assert second.stop() == 0
        assert len(self.topics.sent(0)) == before + 2 * ONLINE


@pytest.mark.promise("repartition")
def test_sessions_go_on_in_more_state_partitions_and_nothing_is_sent_twice(kafka: SharedKafka, tmp_path: Path) -> None:
    sessions = Sessions(kafka, "more", tmp_path)
    packet_ids = sessions.make()
    sessions.repartition(5, before=2)
    assert sessions.listed(5) == {0, 1, 2, 3, 4}
    assert "`inflight sessions repartition 2`" in Engine(sessions.settings(2)).await_failure()
    sessions.go_on(5, packet_ids)


def test_in_fewer_state_partitions_nothing_is_sent_twice(kafka: SharedKafka, tmp_path: Path) -> None:
    sessions = Sessions(kafka, "fewer", tmp_path)
    packet_ids = sessions.make()
    sessions.repartition(1, before=2)
    assert sessions.listed(1) == {0}
    sessions.repartition(3, before=1)
    assert sessions.listed(3) == {0, 1, 2}
    sessions.go_on(3, packet_ids)


@pytest.mark.promise("repartition")
def test_a_killed_repartitioning_is_finished_by_the_next_command(kafka: SharedKafka, tmp_path: Path) -> None:
    sessions = Sessions(kafka, "killed", tmp_path)
    packet_ids = sessions.make()
    offsets, commits = sessions.checkpoint / "offsets", sessions.checkpoint / "commits"
    batch_id = str(1 + max(int(path.name) for path in offsets.iterdir() if path.name.isdigit()))
    killed = sessions.run("sessions", "repartition", "5", state_partitions=2)
    first_new = sessions.checkpoint / "state/0/2"
    wait_until(first_new.exists, "the middle of the work", check=lambda: killed.poll() is None or pytest.fail("too late"))
    os.killpg(killed.pid, signal.SIGKILL)  # with Java
    killed.communicate(timeout=COMMAND_S)
    assert (offsets / batch_id).exists()
    assert not (commits / batch_id).exists()
    assert "`inflight sessions repartition 5` again" in Engine(sessions.settings(5)).await_failure()
    sessions.repartition(5, before=2)
    assert sessions.listed(5) == {0, 1, 2, 3, 4}
    sessions.go_on(5, packet_ids)
