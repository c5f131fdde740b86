"""conf/cluster/docker-compose.yml runs, and a message and its receipt come through after each kind of kill."""

import pytest

from tests.integration.containers.conftest import CLUSTER
from tests.integration.containers.receiving_device import ReceivingDevice
from tests.support.containers.composition import Composition

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3_600)]

COMPOSE = CLUSTER
GATEWAYS = ("gateway-1", "gateway-2")


def holder(composition: Composition) -> str:
    """Returns the gateway that has the device's connection."""
    read = "import urllib.request as http; print(http.urlopen('http://127.0.0.1:9462/metrics').read().decode())"

    def connections(gateway: str) -> float:
        lines = composition.execute(gateway, "python", "-c", read).splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("inflight_gateway_connections "))

    composition.wait_until(lambda: any(connections(name) for name in GATEWAYS), "a gateway has the device")
    return next(name for name in GATEWAYS if connections(name))


def test_a_message_comes_through_haproxy(composition: Composition, device: ReceivingDevice) -> None:
    device.gets_a_message()
    for gateway in GATEWAYS:
        composition.wait_until(lambda gateway=gateway: composition.health(gateway) == "healthy", f"{gateway} is healthy")  # type: ignore[misc]


def test_the_other_gateway_serves_the_device_of_a_killed_one(composition: Composition, device: ReceivingDevice) -> None:
    killed = holder(composition)
    composition.kill(killed)
    device.gets_a_message()
    composition.start(killed)
    composition.wait_until(lambda: composition.health(killed) == "healthy", f"{killed} is healthy")


@pytest.mark.parametrize("service", ["kafka-2", "spark-worker-1"])
def test_a_message_comes_through_without(service: str, composition: Composition, device: ReceivingDevice) -> None:
    composition.kill(service)
    device.gets_a_message()
    composition.start(service)


@pytest.mark.parametrize("service", ["balancer", "engine", "spark-master"])
def test_a_message_comes_through_after_a_kill_of(service: str, composition: Composition, device: ReceivingDevice) -> None:
    composition.kill(service)
    composition.wait_until(lambda: not composition.is_running(service), f"{service} has ended")
    composition.start(service)
    device.gets_a_message()
