"""Several gateway processes on one port: `inflight gateway` with gateway.processes, on a real broker."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inflight.local.child_process import free_port
from sinks.mqtt.settings import GatewaySettings
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, RawClient
from tests.integration.gateway.gateway_process import SessionsOnKafka
from tests.integration.gateway.own_topics import settings_on
from tests.support.inflight_process import InflightProcess
from tests.support.processes import family, is_gone
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

pytestmark = pytest.mark.servers

DEVICES = 32
"""Enough devices for every process to get one: all of them at one process of two has a chance of one in two billion."""
CONNECTION = "inflight_gateway_connections"
CONNACKS = (b"\x20\x02\x00\x00", b"\x20\x02\x01\x00")
"""CONNACK without and with a session."""


class Processes:
    """Two gateway processes and their output."""

    def __init__(self, command: InflightProcess) -> None:
        self.command = command
        self.under_test = GatewayUnderTest(None, None, *command.address("mqtt"))  # type: ignore[arg-type]

    def children(self) -> list[psutil.Process]:
        return family(self.command.process.pid)

    @property
    def metrics(self) -> list[str]:
        """The address of each process."""
        return self.command.ready["metrics"].split(",")

    def connections(self) -> list[int]:
        """Returns the number of connections of each process; -1 = the process does not answer."""
        return [_sample(address, CONNECTION) for address in self.metrics]

    def account(self) -> str:
        """Returns the metrics of connections and the end of the log, for the message of a failed test."""
        lines = [line for address in self.metrics for line in _page(address).splitlines() if line.startswith(CONNECTION)]
        return "\n".join([*lines, self.command.log_tail()])


def _page(address: str) -> str:
    """Returns the metrics page; an empty text if the process does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def _sample(address: str, name: str) -> int:
    families = text_string_to_metric_families(_page(address))
    return next((int(sample.value) for family in families for sample in family.samples if sample.name == name), -1)


@pytest.fixture(scope="module")
def settings(kafka: SharedKafka) -> GatewaySettings:
    return settings_on(kafka, "processes")


@pytest.fixture(scope="module")
def processes(settings: GatewaySettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    name = settings.group_id
    overrides = (
        f"kafka.bootstrap_servers={settings.bootstrap_servers}",
        f"topics.prefix={name}",
        f"gateway.group_id={name}",
        f"fast_path.group_id={name}-routers",
        "routing.enabled=false",
        "gateway.processes=2",
        "gateway.port=0",
        "gateway.group_instance_id=g",
        "gateway.drain_ms=0",
        "metrics.gateway_port=0",
    )
    directory = tmp_path_factory.mktemp("processes")
    config = directory / "inflight.toml"
    config.write_text(f'[[listeners]]\ntransport = "websocket"\nport = {free_port()}\n', encoding="utf-8")
    arguments = ("gateway", "gateway", "--config", str(config))
    with SessionsOnKafka(settings), InflightProcess(directory, *arguments, settings=overrides) as command:
        yield Processes(command)


def _connected(processes: Processes, opened: ExitStack, number: int) -> RawClient:
    """A device whose session is kept: only the engine accepts it, by a command to the process that has its connection."""
    device = opened.enter_context(processes.under_test.socket())
    device.send(connect(flags=0, payload=text(f"device-{number}")))
    answer = device.packet()
    assert answer in CONNACKS, f"{answer.hex()}\n{processes.account()}"
    return device


def _answers(device: RawClient) -> bool:
    """A PING; else its connection has ended."""
    try:
        device.send(b"\xc0\x00")
        return device.packet() == b"\xd0\x00"
    except ConnectionError:
        return False


def test_the_ready_line_names_every_listener(processes: Processes) -> None:
    ready = processes.command.ready
    assert ready["listeners"].startswith("ws://127.0.0.1:")
    assert ready["listeners"].endswith("/mqtt")
    for address in ready["mqtt"], ready["listeners"].removeprefix("ws://").removesuffix("/mqtt"):
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()


def test_each_has_devices_and_what_they_say_is_answered(processes: Processes) -> None:
    with ExitStack() as opened:
        devices = [_connected(processes, opened, number) for number in range(DEVICES)]
        first, second = processes.connections()
        assert first + second == DEVICES, processes.account()
        assert first
        assert second
        for device in devices:
            device.send(publish("up", b"p", first_byte=0x32, packet_id=7))
        assert {device.packet() for device in devices} == {b"\x40\x02\x00\x07"}
        again = [_connected(processes, opened, number) for number in range(DEVICES)]
        # Whichever process has the other connection of its session.
        assert {device.packet() for device in devices} == {b""}
        assert sum(processes.connections()) == len(again), processes.account()


def test_one_that_is_killed_costs_only_its_own_devices_and_comes_back(processes: Processes) -> None:
    with ExitStack() as opened:
        devices = [_connected(processes, opened, number) for number in range(DEVICES)]
        before = processes.connections()
        victim = next(child for child in processes.children() if "--number" in child.cmdline() and child.cmdline()[-1] == "1")
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(victim), "it is gone")
        assert sum(_answers(device) for device in devices) == before[1]
        wait_until(lambda: processes.connections()[0] >= 0, "its numbers are served where they were")
        for number in range(DEVICES):
            _connected(processes, opened, number)
    processes.command.check()


def test_nobody_else_shares_the_port(processes: Processes, kafka: SharedKafka) -> None:
    port = processes.under_test.port
    overrides = (f"kafka.bootstrap_servers={kafka.bootstrap_servers}", "gateway.processes=2", f"gateway.port={port}")
    flags = [word for override in overrides for word in ("--set", override)]
    other = subprocess.run([sys.executable, "-m", "inflight", "gateway", *flags], capture_output=True, timeout=60)
    assert other.returncode == 2, "it is found before anything starts"
    assert f"cannot listen on 127.0.0.1:{port}" in other.stderr.decode()


def test_all_stop_with_the_one_that_is_asked_to(settings: GatewaySettings, processes: Processes) -> None:
    """The last test of this file."""
    children = processes.children()
    assert len(children) == 2
    processes.command.stop()
    wait_until(lambda: all(is_gone(child) for child in children), "all have ended")
