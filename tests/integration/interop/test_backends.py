"""Backends in other languages: the programs of examples/ send, and read the receipt and the dead letter."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.demo.up import UpProcess
from inflight.local.jars import ensure_jars, kafka_classpath
from streaming.config.settings import Settings
from streaming.engine.watching.misplaced_records import right_partition
from tests.integration.up.wire_device import WireDevice
from tests.support.kafka_topics import read_topic

pytestmark = pytest.mark.interop

EXAMPLES = Path(__file__).parents[3] / "examples"
GO = EXAMPLES / "go"
GO_VERSION = (1, 24)
GO_MAIN = """package main

import (
	"encoding/binary"
	"fmt"
	"hash"
	"os"
)

func main() {
	for _, key := range os.Args[1:] {
		hashed := newMurmur2()
		hashed.Write([]byte(key))
		fmt.Println((hashed.Sum32() & 0x7fffffff) % 7)
	}
}

"""
LONGEST_S = 120
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "kafka_clients.md"
PARTITIONS = Settings().topics.partitions.messages


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("up") / "data", "--set", "engine.nice=0") as running:
        yield running


def check(up: UpProcess, name: str, command: list[str | Path], **environment: str) -> None:
    """Runs a backend that sends to a device which answers, and to one which never comes."""
    online, away = f"{name}-online", f"{name}-away"
    with WireDevice(up.mqtt, online, 5) as device:
        whole = [*command, up.kafka, online, away]
        backend = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        try:
            message = device.receive()
            assert (message.topic, message.payload) == ("commands/switch", b"on")
            device.finish(message)
            said, errors = backend.communicate(timeout=LONGEST_S)
        finally:
            backend.kill()
    assert backend.returncode == 0, errors
    assert sorted(said.splitlines()) == [f"dead letter of {away}: expired", f"{away}: expired", f"{online}: delivered"], errors
    written = {record.key: record.partition for record in read_topic(up.kafka, "inflight.messages") if record.key}
    ours = {key: written[key] for key in (online.encode(), away.encode())}
    assert ours == {key: right_partition(key, PARTITIONS) for key in ours}


def test_the_example_of_a_backend_in_javascript_runs(up: UpProcess) -> None:
    check(up, "js", ["node", EXAMPLES / "backend.mjs"])


@pytest.mark.promise("other-partitioner")
def test_the_example_of_a_backend_in_java_runs(up: UpProcess) -> None:
    check(up, "java", ["java", "-cp", kafka_classpath(ensure_jars()), EXAMPLES / "Backend.java"])


def go_version() -> tuple[int, ...]:
    """Returns the version of the installed Go; an empty one if there is none."""
    found = shutil.which("go")
    said = "" if found is None else subprocess.run([found, "version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"go(\d+)\.(\d+)", said)[0])) if said else ()


if go_version() >= GO_VERSION:  # Debian 12 has 1.19, which cannot build today's modules: `make test-interop` says NOT RUN then

    def test_the_example_of_a_backend_in_go_runs(up: UpProcess, tmp_path: Path) -> None:
        assert {path.name for path in GO.iterdir()} == {"backend.go", "go.mod", "go.sum"}
        program = tmp_path / "backend"
        built = subprocess.run(
            ["go", "build", "-C", GO, "-o", program, "."], capture_output=True, text=True, timeout=250, check=False
        )
        assert built.returncode == 0, built.stderr
        check(up, "go", [program])

    def test_the_hash_of_the_page_for_sarama_is_that_of_kafka(tmp_path: Path) -> None:
        (code,) = re.findall(r"^```go\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        keys = [f"{'pümp-' * (number % 4)}{number}" for number in range(200)]
        (tmp_path / "main.go").write_text(GO_MAIN + code, encoding="utf-8")
        done = subprocess.run(
            ["go", "run", tmp_path / "main.go", *keys], capture_output=True, text=True, timeout=250, check=False
        )
        assert done.returncode == 0, done.stderr
        assert [int(line) for line in done.stdout.split()] == [right_partition(key.encode(), 7) for key in keys]
