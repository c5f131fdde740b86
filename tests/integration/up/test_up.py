"""`inflight up`, the real thing: every process started, killed, started again and stopped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from inflight.local.endpoints import Endpoints
from tests.support.processes import family, is_gone
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(480)]
ODD_NAME = "a b'c\"d,e\\f%20g ü$x#&{y}[z]*?~:@!"
"""Kafka, Spark, log4j and shells each give a meaning to some of these."""


class Up:
    """`inflight up` on a data directory, with what it says."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.said: list[str] = []
        self.process = subprocess.Popen(
            inflight("up", "--data-dir", str(data_dir), "--mqtt-port", "0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self._listener = threading.Thread(target=self.said.extend, args=[self.process.stderr], daemon=True)
        self._listener.start()

    def await_ready(self) -> Endpoints:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready mqtt="), "".join(self.said)
        return Endpoints.read(self.data_dir)

    def stop(self, number: int) -> tuple[int, str]:
        """Exit code, and what was still said on standard output."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        code = self.process.wait(timeout=90)
        self._listener.join(timeout=10)
        return code, rest


def inflight(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inflight", *arguments]


class Device:
    """An MQTT 3.1.1 client with a kept session; paho reconnects after a lost connection."""

    def __init__(self, name: str, endpoints: Endpoints) -> None:
        self.payloads: list[str] = []
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_message = self._received
        host, _, port = endpoints.mqtt.rpartition(":")
        self._client.connect(host, int(port))
        self._client.loop_start()

    def _received(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        self.payloads.append(message.payload.decode())

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def device_of() -> Iterator[Callable[[str, Endpoints], Device]]:
    made: list[Device] = []

    def make(name: str, endpoints: Endpoints) -> Device:
        made.append(Device(name, endpoints))
        return made[-1]

    yield make
    for device in made:
        device.stop()


def send(data_dir: Path, client: str, payload: str) -> str:
    command = inflight("send", client, "cmd/x", "--payload", payload, "--qos", "2", "--data-dir", str(data_dir))
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_up_goes_on_after_every_kind_of_death_and_stops_cleanly(tmp_path: Path, device_of: Callable[..., Device]) -> None:
    """Each start of the engine takes many seconds, so one test covers every kind of death, and more."""
    data_dir = tmp_path / ODD_NAME
    ups = [Up(data_dir)]
    try:
        endpoints = ups[0].await_ready()
        assert set(endpoints.pids) == {"up", "kafka", "engine", "gateway"}
        assert any("waiting for the engine" in line for line in ups[0].said), "a start is not silent"
        assert data_dir.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in tmp_path.iterdir()] == [ODD_NAME], "no program has made a directory of another name"
        device = device_of("d1", endpoints)
        assert len(send(data_dir, "d1", "one")) == 36, "the message id, a UUID"
        wait_until(lambda: device.payloads == ["one"], "the first message arrives")

        # A second `up` on the same data is refused.
        second = subprocess.run(
            inflight("up", "--data-dir", str(data_dir)), capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == 1
        assert f"in use by another `inflight up` (process {ups[0].process.pid})" in second.stderr

        # A killed gateway comes back to the same port, a killed engine to its checkpoint.
        engine_family = family(endpoints.pids["engine"])
        os.kill(endpoints.pids["gateway"], signal.SIGKILL)
        os.kill(endpoints.pids["engine"], signal.SIGKILL)
        send(data_dir, "d1", "two")
        wait_until(lambda: device.payloads == ["one", "two"], "what was sent without engine and gateway arrives")
        assert all(is_gone(process) for process in engine_family), "the killed engine left something running beside its successor"
        assert Endpoints.read(data_dir).mqtt == endpoints.mqtt
        wait_until(lambda: any("the engine is back" in line for line in ups[0].said), "this is said")
        assert any("the engine ended unexpectedly (signal SIGKILL)" in line for line in ups[0].said)

        # Nothing outlives a killed `up`, and the next one continues with the same data.
        device.stop()
        send(data_dir, "d1", "three")
        everything = family(ups[0].process.pid)
        ups[0].process.kill()
        ups[0].process.wait()
        wait_until(lambda: all(is_gone(process) for process in everything), "no process is left", within_s=20)
        assert Endpoints.read(data_dir) == Endpoints()
        ups.append(Up(data_dir))
        again = ups[1].await_ready()
        assert again.kafka == endpoints.kafka, "backends find Kafka where it was"
        late = device_of("d1", again)
        wait_until(lambda: late.payloads == ["three"], "the message from before the kill arrives")

        # Spark's reader of a checkpoint finds it, whatever its name.
        sessions = subprocess.run(inflight("sessions", "--data-dir", str(data_dir)), capture_output=True, text=True, check=True)
        assert "d1" in sessions.stdout

        # SIGTERM ends it in order, with nothing else on standard output.
        everything = family(ups[1].process.pid)
        code, rest = ups[1].stop(signal.SIGTERM)
        assert (code, rest) == (0, "")
        assert all(is_gone(process) for process in everything)
        said = "".join(ups[1].said)
        assert said.index("stopping the gateway") < said.index("stopping the engine") < said.index("stopping Kafka")
        assert not (data_dir / "endpoints.json").exists()
    finally:
        for up in ups:
            up.process.kill()
            up.process.wait()
