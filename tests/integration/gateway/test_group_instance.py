"""Two gateways share one `group_instance_id`: one works, and the other one reports why it does not."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.local.child_process import start_child
from tests.integration.gateway.gateway_fakes import GatewayUnderTest
from tests.support.kafka_topics import create_topics
from tests.support.processes import frozen
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

pytestmark = pytest.mark.servers

REFUSED = "is in the consumer group gateways-{0} as 'gateway-0': stop that one"
FENCED = "another process has joined the consumer group gateways-{0} as 'gateway-0' and has taken the partitions over"


class Gateway:
    """`inflight gateway` in a process of its own."""

    def __init__(self, kafka: SharedKafka, prefix: str, directory: Path) -> None:
        directory.mkdir()
        self.output, self.errors = directory / "output", directory / "errors"
        values = (
            f"kafka.bootstrap_servers={kafka.bootstrap_servers}",
            f"topics.prefix={prefix}",
            "gateway.port=0",
            f"gateway.group_id=gateways-{prefix}",
            "gateway.group_instance_id=gateway-0",
        )
        command = [sys.executable, "-m", "inflight", "gateway", *(word for value in values for word in ("--set", value))]
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process: subprocess.Popen[bytes] = start_child(command, stdout=output, stderr=errors)

    def ready(self) -> GatewayUnderTest:
        line = wait_until(self.output.read_text, lambda: self.errors.read_text()[-2_000:])
        port = int(line.split("mqtt=127.0.0.1:")[1].split()[0])
        return GatewayUnderTest(None, None, "127.0.0.1", port, self.process.terminate)  # type: ignore[arg-type]

    def refusal(self) -> str:
        """Waits until the gateway ends with status 1. Returns its standard error."""
        assert self.process.wait(DEADLINE_S) == 1, self.errors.read_text()
        return self.errors.read_text()


@contextlib.contextmanager
def gateway(kafka: SharedKafka, prefix: str, directory: Path) -> Iterator[Gateway]:
    started = Gateway(kafka, prefix, directory)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def topics(kafka: SharedKafka, prefix: str) -> None:
    create_topics(kafka.bootstrap_servers, *(f"{prefix}.{name}" for name in ("events", "commands", "uplink", "leases")))


def test_a_gateway_does_not_start_under_the_name_of_one_that_runs(kafka: SharedKafka, tmp_path: Path) -> None:
    topics(kafka, "twice")
    with gateway(kafka, "twice", tmp_path / "first") as first:
        with first.ready().socket() as device, gateway(kafka, "twice", tmp_path / "second") as second:
            assert REFUSED.format("twice") in second.refusal()
            device.send(connect(level=5, flags=0, keep_alive_s=0, payload=text("d")))
            assert device.is_silent(), "accepted by the engine only, and still attached"
        assert first.process.poll() is None
        first.process.terminate()
        assert first.process.wait(DEADLINE_S) == 0
        with gateway(kafka, "twice", tmp_path / "third") as third:
            third.ready()


@pytest.mark.faults
def test_a_frozen_gateway_that_was_replaced_stops_and_does_not_come_back(kafka: SharedKafka, tmp_path: Path) -> None:
    topics(kafka, "replaced")
    with gateway(kafka, "replaced", tmp_path / "first") as first, first.ready().socket() as device:
        with frozen(first.process.pid):
            second = Gateway(kafka, "replaced", tmp_path / "second")
            second.ready()
        try:
            assert FENCED.format("replaced") in first.refusal()
            assert device.rest() == b"", "no CONNECT was sent, so nothing is said"
            with gateway(kafka, "replaced", tmp_path / "again") as again:
                assert REFUSED.format("replaced") in again.refusal()
            assert second.process.poll() is None
            second.process.kill()
            second.process.wait()
            with gateway(kafka, "replaced", tmp_path / "last") as last:
                last.ready()
        finally:
            second.process.kill()
            second.process.wait()
