"""The built wheel in a virtual environment of its own, away from the checkout: what people import and type works there."""

import os
import re
import subprocess
import sys
import time
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


BACKEND_ALONE = """
import sys
from paho.mqtt.client import Client, CallbackAPIVersion
from queue import Queue
from time import sleep
from inflight import Presence, Producer, Receipts, Uplink

mqtt, kafka = (part.partition("=")[2] for part in sys.argv[1:])
host, _, port = mqtt.rpartition(":")
subscribed = Queue()
device = Client(CallbackAPIVersion.VERSION2, client_id="pump-8", clean_session=False)
device.on_connect = lambda *_: device.subscribe("cmd/#", qos=1)
device.on_subscribe = lambda *_: subscribed.put(True)
device.connect(host, int(port))
device.loop_start()
subscribed.get(timeout=60)
device.publish("state/pump", b"on", qos=1).wait_for_publish(60)
with Producer(kafka) as producer:
    sent = producer.deliver("pump-8", "cmd/reboot", b"now")
    print(sent.result(60).outcome)
with Uplink(kafka, group="wheel", topics=["state/pump"]) as uplink:
    print(next(uplink).payload.decode())
with Receipts(kafka, group="wheel") as receipts:
    print(next(one.outcome for one in receipts if one.message_id == sent.message_id))
with Presence(kafka) as presence:
    while (seen := presence.get("pump-8")) is None:
        sleep(0.1)
    print(seen.status)
device.disconnect()
"""
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)]
    subprocess.run(build, check=True)
    (found,) = directory.glob("inflight-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The directory of programs of a new environment with the wheel and exactly the pinned requirements."""
    venv.create(wheel.parent / "venv", with_pip=True)
    programs = wheel.parent / "venv" / "bin"
    install = [str(programs / "python"), *PIP, "install", "--no-deps"]
    subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements.txt")], check=True)
    subprocess.run([*install, str(wheel)], check=True)
    return programs


@pytest.fixture(scope="module")
def without_extra(wheel: Path) -> tuple[Path, float, float]:
    """The directory of programs of a new environment with `pip install inflight`, and the installation's seconds and bytes."""
    place = wheel.parent / "backend"
    venv.create(place, with_pip=True)
    before = size_of(place)
    pinned = wheel.parent / "pinned.txt"
    pinned.write_text("\n".join(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)))
    began = time.monotonic()
    subprocess.run([place / "bin" / "python", *PIP, "install", "--constraint", pinned, wheel], check=True, env=own_environment())
    seconds = time.monotonic() - began
    return place / "bin", seconds, size_of(place) - before


def own_environment() -> dict[str, str]:
    """Returns the caller's environment without what leads to other packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def environment(jars: Jars) -> dict[str, str]:
    """The caller's, without what would lead back to the checkout; the cache of jars is shared, because it is large."""
    cache = jars.local_fs.parents[3]
    return own_environment() | {"INFLIGHT_CACHE": str(cache)}


def test_a_backend_imports_the_producer_without_java_and_spark(installed: Path, tmp_path: Path) -> None:
    program = "import sys; from inflight import Producer; print(sorted({'pyspark', 'streaming'} & sys.modules.keys()))"
    said = subprocess.run(
        [installed / "python", "-c", program], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"


def test_the_command_is_there(installed: Path, tmp_path: Path) -> None:
    said = subprocess.run([installed / "inflight", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Usage: inflight" in said.stdout


@pytest.fixture(scope="module")
def up(installed: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The line that a running `inflight up` of the wheel has printed."""
    directory = tmp_path_factory.mktemp("up")
    command = [installed / "inflight", "up", "--data-dir", directory / "data", "--mqtt-port=0", "--kafka-port=0"]
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
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


def test_without_the_extra_there_is_no_spark_and_the_command_says_so(
    without_extra: tuple[Path, float, float], tmp_path: Path
) -> None:
    programs, _, _ = without_extra
    spark = subprocess.run(
        [programs / "python", "-c", "import pyspark"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "No module named 'pyspark'" in spark.stderr
    for command in ("up", "engine", "demo", "sessions", "trace m"):
        words = [str(programs / "inflight"), *command.split()]
        said = subprocess.run(words, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False)
        assert (said.returncode, said.stdout) == (1, ""), said
        *notes, last = said.stderr.splitlines()
        assert last.endswith("pip install 'inflight[engine]' (970 MB, and Java 17 to run it)"), said.stderr
        assert all(note.startswith("note: ") for note in notes), said.stderr
    for command in ("gateway", "bridge", "matcher", "status", "topics", "send", "publish", "config"):
        subprocess.run([programs / "inflight", command, "--help"], cwd=tmp_path, capture_output=True, check=True)


def test_without_the_extra_a_backend_sends_and_reads(
    without_extra: tuple[Path, float, float], up: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs, seconds, size = without_extra
    program = [programs / "python", "-c", BACKEND_ALONE, *up.split()[1:]]
    said = subprocess.run(program, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, timeout=200, check=False)
    assert said.stdout.splitlines() == ["delivered", "on", "delivered", "online"], said.stderr
    with capsys.disabled():
        sys.stdout.write(f"\npip install inflight: {seconds:.0f} s, {size / 1e6:.0f} MB\n")
    (said_mb,) = re.findall(r"needs no Java: (\d+) MB", (ROOT / "docs" / "guides" / "backend.md").read_text(encoding="utf-8"))
    assert size < 1.2e6 * int(said_mb), "docs/guides/backend.md says how much it is"
