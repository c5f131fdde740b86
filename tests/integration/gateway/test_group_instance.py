"""Two gateways share one `group_instance_id`: one works, and the other one reports why it does not."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.gateway.gateway_fakes import RawClient
from tests.support.inflight_process import InflightProcess
from tests.support.kafka_topics import create_topics
from tests.support.processes import frozen
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

pytestmark = pytest.mark.servers

REFUSED = "is in the consumer group gateways-{0} as 'gateway-0': stop that one"
FENCED = "another process has joined the consumer group gateways-{0} as 'gateway-0' and has taken the partitions over"


def gateway(kafka: SharedKafka, prefix: str, directory: Path, name: str) -> InflightProcess:
    """Returns an `inflight gateway` that is not started. name: of its log."""
    settings = (
        f"kafka.bootstrap_servers={kafka.bootstrap_servers}",
        f"topics.prefix={prefix}",
        "gateway.port=0",
        f"gateway.group_id=gateways-{prefix}",
        "gateway.group_instance_id=gateway-0",
        "routing.enabled=false",
    )
    return InflightProcess(directory, name, "gateway", settings=settings)


def connected_to(gateway: InflightProcess) -> RawClient:
    return RawClient(socket.create_connection(gateway.address("mqtt"), DEADLINE_S))


def refused(gateway: InflightProcess, reason: str) -> None:
    """Starts a gateway, which ends with status 1 and the reason."""
    with pytest.raises(AssertionError, match=f"ended with 1(?s:.*){reason}"):
        gateway.start()


def topics(kafka: SharedKafka, prefix: str) -> None:
    create_topics(
        kafka.bootstrap_servers, *(f"{prefix}.{name}" for name in ("events", "commands", "uplink", "leases", "wake-ups"))
    )


@pytest.mark.promise("group-instance-id")
def test_a_gateway_does_not_start_under_the_name_of_one_that_runs(kafka: SharedKafka, tmp_path: Path) -> None:
    topics(kafka, "twice")
    with gateway(kafka, "twice", tmp_path, "first") as first:
        with connected_to(first) as device:
            refused(gateway(kafka, "twice", tmp_path, "second"), REFUSED.format("twice"))
            device.send(connect(level=5, flags=0, keep_alive_s=0, payload=text("d")))
            assert device.is_silent(), "accepted by the engine only, and still attached"
        first.stop()
        with gateway(kafka, "twice", tmp_path, "third"):
            pass


@pytest.mark.faults
@pytest.mark.promise("group-instance-id")
def test_a_frozen_gateway_that_was_replaced_stops_and_does_not_come_back(kafka: SharedKafka, tmp_path: Path) -> None:
    topics(kafka, "replaced")
    with gateway(kafka, "replaced", tmp_path, "first") as first, connected_to(first) as device, ExitStack() as replacing:
        with frozen(first.process.pid):
            second = replacing.enter_context(gateway(kafka, "replaced", tmp_path, "second"))
        assert first.process.wait(DEADLINE_S) == 1
        assert FENCED.format("replaced") in first.log_tail()
        assert device.rest() == b"", "no CONNECT was sent, so nothing is said"
        refused(gateway(kafka, "replaced", tmp_path, "again"), REFUSED.format("replaced"))
        second.check()
        second.kill()
        with gateway(kafka, "replaced", tmp_path, "last"):
            pass
