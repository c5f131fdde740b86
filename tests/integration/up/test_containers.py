"""The image of conf/Dockerfile is built and docker-compose.yml is started: a device gets a message of a backend.

It needs Docker with its Compose, the ports of docker-compose.yml, and a network for the packages of the image. Where no container
engine answers it is skipped with NOT RUN.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from inflight import Producer
from inflight.demo.paho_device import paho_client
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3_600)]

ROOT = Path(__file__).parents[3]
PROJECT = "inflight-test"
KAFKA = "127.0.0.1:29092"
STARTED_WITHIN_S = 600.0


def docker(*arguments: str, within_s: float = 60.0) -> str:
    """Returns what it prints. Raises AssertionError with its error."""
    done = subprocess.run(("docker", *arguments), cwd=ROOT, capture_output=True, text=True, timeout=within_s, check=False)
    if done.returncode:
        raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr.strip()[-4_000:]}")
    return done.stdout


def compose(*arguments: str, within_s: float = 60.0) -> str:
    return docker("compose", "--project-name", PROJECT, *arguments, within_s=within_s)


def missing() -> str:
    """Returns why no container can be started; empty if one can."""
    for question in ("info",), ("compose", "version"):
        try:
            docker(*question)
        except (OSError, subprocess.TimeoutExpired, AssertionError) as error:
            return " ".join(str(error).split())
    return ""


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """Builds the image, and starts Kafka, engine, standby and gateway."""
    if why := missing():
        pytest.skip(f"NOT RUN: the image was not built and no container was started, because no container engine answers: {why}")
    try:
        compose("build", within_s=1_800)
        compose("up", "--detach", "engine", "standby", "gateway", within_s=1_200)
        yield
    finally:
        compose("down", "--volumes", "--timeout", "30", within_s=300)


def health(service: str) -> str:
    container = compose("ps", "--quiet", service).strip()
    return docker("inspect", "--format", "{{.State.Health.Status}}", container).strip() if container else "not started"


def logs() -> str:
    return compose("logs", "--no-color", "--tail", "40")


@pytest.mark.usefixtures("started")
def test_the_image_is_built_and_a_message_reaches_a_device() -> None:
    wait_until(lambda: health("gateway") == "healthy", logs, within_s=STARTED_WITHIN_S)
    arrived: Queue[bytes] = Queue()
    device = paho_client("in-a-container", mqtt5=False)
    device.on_message = lambda _client, _userdata, message: arrived.put(message.payload)
    device.connect("127.0.0.1", 1883)
    device.loop_start()
    try:
        with Producer(KAFKA) as producer:
            delivery = producer.deliver("in-a-container", "cmd", b"now", qos=1)
            assert delivery.result(STARTED_WITHIN_S).outcome == "delivered", logs()
        assert arrived.get(timeout=60) == b"now"
    finally:
        device.disconnect()
        device.loop_stop()
    assert "healthy" in {health("engine"), health("standby")}
