"""The HEALTHCHECK of the image finds the probes of whatever process 1 runs, and says what is wrong."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inflight.cli.metrics_server import serving_metrics
from inflight.local.endpoints import Endpoints
from inflight.local.health_check import CommandLine, main, probed, read_command_line
from sinks.health import UnmetCondition
from streaming.config.settings import load_settings


def words(text: str) -> bytes:
    return text.replace(" ", "\0").encode() + b"\0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tini -- inflight engine --standby", CommandLine("engine")),
        ("/sbin/docker-init -- tini -- inflight topics", CommandLine("topics")),
        ("python /opt/inflight/venv/bin/inflight gateway --config /etc/a.toml", CommandLine("gateway", Path("/etc/a.toml"))),
        (
            "tini -- inflight bridge --config=b.toml --set a.b=1 --set c=2",
            CommandLine("bridge", Path("b.toml"), ("a.b=1", "c=2")),
        ),
        ("tini -- inflight up --data-dir /data --mqtt-port 0", CommandLine("up", data_dir=Path("/data"))),
        ("tini -- inflight", CommandLine("")),
        ("tini -- spark-class org.apache.spark.deploy.worker.Worker", None),
    ],
)
def test_the_command_and_its_configuration_are_read_from_the_words(text: str, expected: CommandLine | None) -> None:
    assert read_command_line(text.split()) == expected


@pytest.mark.parametrize("command", ["engine", "gateway", "bridge", "matcher"])
def test_each_process_is_asked_at_its_own_port(command: str) -> None:
    settings = load_settings(None, [f"metrics.{command}_port=9470", "metrics.host=0.0.0.0"])
    assert list(probed(CommandLine(command), settings)) == [("127.0.0.1", 9_470)]


def test_each_process_of_a_gateway_is_asked() -> None:
    settings = load_settings(None, ["metrics.gateway_port=9470", "gateway.processes=3", "metrics.host=10.0.0.7"])
    assert list(probed(CommandLine("gateway"), settings)) == [("10.0.0.7", port) for port in (9_470, 9_471, 9_472)]


@pytest.mark.parametrize("port", [-1, 0])
def test_a_process_without_a_known_port_is_not_asked(port: int) -> None:
    assert list(probed(CommandLine("engine"), load_settings(None, [f"metrics.engine_port={port}"]))) == []
    assert main(words(f"tini -- inflight engine --set metrics.engine_port={port}")) == 0


def test_all_processes_of_up_are_asked(tmp_path: Path) -> None:
    Endpoints(pids={"up": os.getpid()}, metrics={"engine": "127.0.0.1:1001", "gateway": "0.0.0.0:1002"}).write(tmp_path)
    found = probed(CommandLine("up", data_dir=tmp_path), load_settings())
    assert list(found) == [("127.0.0.1", 1_001), ("127.0.0.1", 1_002)]


class SetHealth:
    """A health that a test sets."""

    def __init__(self) -> None:
        self.missing: list[UnmetCondition] = []

    def not_alive(self) -> list[UnmetCondition]:
        return self.missing

    def not_ready(self) -> list[UnmetCondition]:
        return self.missing


@pytest.fixture
def health() -> SetHealth:
    return SetHealth()


@pytest.fixture
def served(health: SetHealth) -> Iterator[str]:
    """Serves the probes of an engine; yields what process 1 would be."""
    with serving_metrics("127.0.0.1", 0, "engine_port", CollectorRegistry(), health) as ready:
        yield f"tini -- inflight engine --set metrics.engine_port={ready.rpartition(':')[2]}"


def test_a_process_that_is_alive_is_healthy(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(served)) == 0
    assert capsys.readouterr().out == "1 of 1 alive\n"


def test_a_process_that_is_not_alive_says_what_is_wrong(
    served: str, health: SetHealth, capsys: pytest.CaptureFixture[str]
) -> None:
    health.missing = [UnmetCondition("it stands still", "restart it")]
    assert main(words(served)) == 1
    assert "answers 503" in (said := capsys.readouterr().out)
    assert "it stands still" in said


def test_a_process_that_does_not_answer_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("tini -- inflight gateway --set metrics.gateway_port=1")) == 1
    assert "127.0.0.1:1 does not answer" in capsys.readouterr().out


def test_a_wrong_configuration_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("tini -- inflight gateway --set metrics.gateway_prt=1")) == 1
    assert "gateway_prt" in capsys.readouterr().out
