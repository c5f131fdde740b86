"""docker-compose.yml runs, and a message and its receipt come through after each container was killed."""

import json
import urllib.request
from typing import Any

import pytest

from tests.integration.containers.conftest import ONE_MACHINE, Prepared
from tests.integration.containers.receiving_device import ReceivingDevice
from tests.support.containers.composition import Composition
from tests.support.containers.images import OURS, images_of

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3_600)]

COMPOSE = ONE_MACHINE
ENGINES = ("engine", "standby")
NOT_IN_THE_IMAGE = ("ruff", "mypy", "pytest", "hypothesis", "matplotlib", "pip", "setuptools")
PROBED = ("engine", "standby", "gateway")


def working(composition: Composition) -> str:
    """Returns the service whose engine works; waits for it."""
    composition.wait_until(lambda: "engine" in [composition.role(name) for name in ENGINES], "an engine works")
    return next(name for name in ENGINES if composition.role(name) == "engine")


def waiting(composition: Composition) -> str:
    """Returns the service whose engine waits with Spark started."""
    composition.wait_until(lambda: "standby" in [composition.role(name) for name in ENGINES], "an engine waits")
    return next(name for name in ENGINES if composition.role(name) == "standby")


def asked_of_prometheus(path: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
            return found
    except OSError:
        return {}


def targets_up() -> set[str]:
    return {target["scrapeUrl"] for target in asked_of_prometheus("targets").get("activeTargets", ()) if target["health"] == "up"}


def test_all_services_start_and_a_message_arrives(composition: Composition, device: ReceivingDevice, prepared: Prepared) -> None:
    device.gets_a_message()
    assert composition.exit_code("topics") == 0
    for service, image in images_of(COMPOSE).items():
        assert service == "topics" or image in prepared.missing or composition.is_running(service), composition.logs(service)


def test_every_process_becomes_healthy(composition: Composition) -> None:
    for service in ("kafka", *PROBED):
        composition.wait_until(lambda service=service: composition.health(service) == "healthy", f"{service} is healthy")  # type: ignore[misc]


def test_the_image_has_only_what_runs_and_is_not_root(composition: Composition, prepared: Prepared) -> None:
    assert composition.execute("engine", "id", "--user").strip() == "999"
    find = "from importlib.util import find_spec; import sys; print([name for name in sys.argv[1:] if find_spec(name)])"
    assert composition.execute("gateway", "python", "-c", find, *NOT_IN_THE_IMAGE).strip() == "[]"
    assert composition.execute("engine", "cat", "/proc/1/comm").strip() == "tini"
    configured = json.loads(prepared.engine.docker("image", "inspect", "--format", "{{json .Config}}", OURS))
    assert configured["User"] == "999"
    check = configured["Healthcheck"]["Test"]
    for service in PROBED:
        assert composition.execute(service, *check[1:]) == "1 of 1 alive\n"


def test_prometheus_scrapes_every_process_and_has_the_alerts(composition: Composition) -> None:
    everything = {"http://engine:9461/metrics", "http://standby:9461/metrics", "http://gateway:9462/metrics"}
    composition.wait_until(lambda: targets_up() == everything, f"Prometheus scrapes {sorted(everything)}")
    assert asked_of_prometheus("rules")["groups"]


@pytest.mark.parametrize("service", ["kafka", "gateway", "prometheus"])
def test_a_message_comes_through_after_a_kill_of(service: str, composition: Composition, device: ReceivingDevice) -> None:
    composition.kill(service)
    composition.wait_until(lambda: not composition.is_running(service), f"{service} has ended")
    composition.start(service)
    device.gets_a_message()


def test_the_standby_takes_over_from_a_killed_engine(composition: Composition, device: ReceivingDevice) -> None:
    waiting(composition)
    killed = working(composition)
    composition.kill(killed)
    other = next(name for name in ENGINES if name != killed)
    composition.wait_until(lambda: composition.role(other) == "engine", f"{other} works")
    device.gets_a_message()
    composition.start(killed)
    composition.wait_until(lambda: composition.role(killed) == "standby", f"{killed} waits")


@pytest.mark.parametrize("service", ["gateway", "standby"])
def test_docker_starts_a_crashed_process_again(service: str, composition: Composition, device: ReceivingDevice) -> None:
    crashed = waiting(composition) if service == "standby" else service
    before = composition.restarts(crashed)
    composition.crash(crashed)
    composition.wait_until(lambda: composition.restarts(crashed) > before, f"Docker starts {crashed} again")
    device.gets_a_message()
