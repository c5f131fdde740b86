"""The built wheel in a virtual environment of its own, away from the checkout: what people import and type works there."""

import os
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.local.jars import Jars

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
DEVICE_AND_BACKEND = """
import sys
from paho.mqtt.client import Client, CallbackAPIVersion
from queue import Queue
from inflight import Producer

mqtt, kafka = (part.partition("=")[2] for part in sys.argv[1:])
host, _, port = mqtt.rpartition(":")
arrived, subscribed = Queue(), Queue()
device = Client(CallbackAPIVersion.VERSION2, client_id="pump-7", clean_session=False)
device.on_message = lambda _client, _data, message: arrived.put(message.payload)
device.on_connect = lambda *_: subscribed.put(True)
device.connect(host, int(port))
device.loop_start()
subscribed.get(timeout=60)
with Producer(kafka) as producer:
    producer.send("pump-7", "cmd/reboot", b"now", qos=2)
assert arrived.get(timeout=60) == b"now"
device.disconnect()
print("delivered")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of a new environment with the wheel and exactly the pinned requirements."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = directory.glob("inflight-*.whl")
    venv.create(directory / "venv", with_pip=True)
    programs = directory / "venv" / "bin"
    install = [str(programs / "python"), *pip, "install", "--no-deps"]
    subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements.txt")], check=True)
    subprocess.run([*install, str(wheel)], check=True)
    return programs


@pytest.fixture
def environment(jars: Jars) -> dict[str, str]:
    """The caller's, without what would lead back to the checkout; the cache of jars is shared, because it is large."""
    cache = jars.local_fs.parents[3]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"INFLIGHT_CACHE": str(cache)}


def test_a_backend_imports_the_producer_without_java_and_spark(installed: Path, tmp_path: Path) -> None:
    program = "import sys; from inflight import Producer; print(sorted({'pyspark', 'streaming'} & sys.modules.keys()))"
    said = subprocess.run(
        [installed / "python", "-c", program], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"


def test_the_command_is_there(installed: Path, tmp_path: Path) -> None:
    said = subprocess.run([installed / "inflight", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Usage: inflight" in said.stdout


@pytest.fixture
def up(installed: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The line that a running `inflight up` of the wheel has printed."""
    command = [installed / "inflight", "up", "--data-dir", tmp_path / "data", "--mqtt-port=0", "--kafka-port=0"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_up_delivers_a_message(installed: Path, environment: dict[str, str], up: str, tmp_path: Path) -> None:
    ready, *addresses = up.split()
    assert ready == "ready"
    program = [installed / "python", "-c", DEVICE_AND_BACKEND, *addresses]
    said = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert said.stdout == "delivered\n", said.stderr


def test_the_console_has_its_pages_script_and_stylesheet(installed: Path, environment: dict[str, str], tmp_path: Path) -> None:
    command = [installed / "inflight", "console", "--data-dir", tmp_path, "--set", "kafka.bootstrap_servers=127.0.0.1:1"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as console:
        assert console.stdout is not None
        address = console.stdout.readline().strip().partition("console=")[2]
        for path in "", "trace", "client", "static/console.js", "static/console.css":
            with urllib.request.urlopen(address + path, timeout=30) as answer:
                assert answer.status == 200, path
        console.terminate()
        assert console.wait(timeout=30) == 0
