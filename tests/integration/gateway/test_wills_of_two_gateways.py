"""Two gateways and an engine: a device publishes at one of them behind the will of its connection to the other one."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from inflight.local.jars import Jars
from tests.integration.gateway.gateways_and_engine import Site, running_site
from tests.integration.up.wire_device import Backend, DeviceWithWill, both_versions
from tests.support.inflight_process import InflightProcess

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("wills"), jars, "routing.enabled=true") as running:
        yield running


@pytest.fixture(scope="module")
def gateways(site: Site) -> Iterator[list[InflightProcess]]:
    with site.gateways([], []) as running:
        yield running


@pytest.fixture(scope="module")
def backend(site: Site) -> Iterator[Backend]:
    with Backend(site.bootstrap_servers) as backend:
        yield backend


@both_versions
def test_a_takeover_at_another_gateway_publishes_behind_the_will(
    gateways: list[InflightProcess], backend: Backend, level: int
) -> None:
    """[MQTT-3.1.4-3]"""
    name, (first, second) = f"moves-{level}", [gateway.address("mqtt") for gateway in gateways]
    with DeviceWithWill(first, name, level) as device:
        device.retain(b"online 1")
        with DeviceWithWill(second, name, level) as again:
            again.retain(b"online 2")
            assert backend.uplink(name, last=b"online 2") == [b"online 1", b"offline", b"online 2"]
            assert again.retained_value() == b"online 2"


def test_a_device_of_a_killed_gateway_publishes_behind_its_will(gateways: list[InflightProcess], backend: Backend) -> None:
    first, second = gateways
    with ExitStack() as stack:
        for level in (4, 5):
            device = stack.enter_context(DeviceWithWill(first.address("mqtt"), f"orphan-{level}", level))
            device.retain(b"online 1")
        first.kill()
        for level in (4, 5):
            again = stack.enter_context(DeviceWithWill(second.address("mqtt"), f"orphan-{level}", level))
            again.retain(b"online 2")
            assert backend.uplink(f"orphan-{level}", last=b"online 2") == [b"online 1", b"offline", b"online 2"]
            assert again.retained_value() == b"online 2"
