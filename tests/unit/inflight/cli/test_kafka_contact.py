import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from inflight.cli import app
from inflight.cli.kafka_contact import await_kafka, require_kafka
from inflight.local.child_process import free_port
from streaming.config.errors import KafkaUnreachable
from tests.support.waiting import wait_until

RUNNER = CliRunner()
PROBED_HOST = "127.0.0.2"
"""An address of this machine at which no other test listens: they take free ports of 127.0.0.1 at the same time."""
COMMANDS = (
    ("topics",),
    ("client", "c"),
    ("trace", "m"),
    ("dead-letters",),
    ("presence",),
    ("subscriptions", "--topic", "t"),
    ("replay", "--all"),
    ("campaign", "status"),
    ("sessions", "restore", "c"),
)


@pytest.fixture(autouse=True)
def _logging_of_this_process_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of a process of its own configures the logs for good; later tests of this one look at theirs."""
    for module in ("logs", "send_display"):
        monkeypatch.setattr(f"inflight.cli.{module}.configure_logging", lambda **_: None)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_without_kafka_says_within_seconds_where_it_looked(command: tuple[str, ...], tmp_path: object) -> None:
    server = f"127.0.0.1:{free_port()}"
    began_s = time.monotonic()
    done = RUNNER.invoke(app, [*command, "--data-dir", str(tmp_path), "--set", f"kafka.bootstrap_servers={server}"])
    assert isinstance(done.exception, KafkaUnreachable)
    assert f"Kafka at {server} does not answer ({server}: Connection refused)" in str(done.exception)
    assert time.monotonic() - began_s < 10, "clients of Kafka try for 10 to 30 s; the imports of a first command take time too"


def test_a_send_says_at_once_that_it_goes_on_trying(tmp_path: object) -> None:
    server = f"127.0.0.1:{free_port()}"
    done = RUNNER.invoke(app, ["send", "c", "t", "--payload", "p", "--kafka", server, "--timeout", "1s"])
    assert f"Kafka at {server} does not answer ({server}: Connection refused); trying for 1 s" in done.output


def test_a_process_waits_for_kafka_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    waiting = threading.Thread(target=await_kafka, args=(f"127.0.0.1:{port}",), kwargs={"pause_s": 0.01})
    waiting.start()
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "waiting for Kafka" in said

    wait_until(has_said, "it says that it waits")
    with socket.create_server(("127.0.0.1", port)):
        waiting.join(10)
    assert not waiting.is_alive()
    said += capsys.readouterr().err
    assert [line.partition(" at ")[0] for line in said.splitlines()] == ["waiting for Kafka", "Kafka"]
    assert "is there after" in said


def test_a_kafka_that_listens_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        require_kafka(f"127.0.0.1:{listener.getsockname()[1]}")


def answer(port: int, path: str) -> tuple[int, dict[str, object]] | None:
    """The answer of a process to a probe; None = nobody listens, or what listens there answers no probes."""
    with contextlib.suppress(ConnectionError, urllib.error.URLError, json.JSONDecodeError):
        try:
            with urllib.request.urlopen(f"http://{PROBED_HOST}:{port}{path}", timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
    return None


def test_a_process_that_waits_for_kafka_is_alive_and_not_ready() -> None:
    kafka, probed = free_port(), free_port()
    options = {"pause_s": 0.01, "probes": [(PROBED_HOST, probed), (PROBED_HOST, 0), (PROBED_HOST, -1)]}
    waiting = threading.Thread(target=await_kafka, args=(f"127.0.0.1:{kafka}",), kwargs=options)
    waiting.start()
    wait_until(lambda: answer(probed, "/healthz") is not None, "it answers probes")
    assert answer(probed, "/healthz") == (200, {"ok": True, "missing": []})
    status, found = answer(probed, "/readyz") or (0, {})
    assert status == 503
    assert f"Kafka at 127.0.0.1:{kafka} does not answer (127.0.0.1:{kafka}: Connection refused)" in str(found["missing"])
    with socket.create_server(("127.0.0.1", kafka)):
        waiting.join(10)
    assert not waiting.is_alive()
    assert answer(probed, "/healthz") is None, "the process takes the port for itself"


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["gateway", "--set", "gateway.port=0"], "gateway_port"),
        (["gateway", "--set", "gateway.port=0", "--set", "gateway.processes=2"], "gateway_port"),
        (["engine"], "engine_port"),
        (["bridge"], "bridge_port"),
        (["matcher", "--set", "routing.enabled=true"], "matcher_port"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_each_process_answers_probes_while_it_waits(
    command: list[str], key: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waits(Exception): ...

    probed: list[tuple[str, int]] = []

    def await_nothing(servers: str, *, probes: list[tuple[str, int]]) -> None:
        probed.extend(probes)
        raise Waits

    monkeypatch.setattr("inflight.cli.kafka_contact.await_kafka", await_nothing)
    monkeypatch.setattr("inflight.cli.logs.configure_logging", lambda **_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    port = free_port()
    options = ["--set", f"metrics.{key}={port}", "--set", f"engine.data_dir={tmp_path}"]
    assert isinstance(RUNNER.invoke(app, [*command, *options]).exception, Waits)
    count = 2 if "gateway.processes=2" in command else 1
    assert probed == [("127.0.0.1", port + number) for number in range(count)]


def test_a_standby_starts_although_its_metrics_port_is_taken(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(Exception): ...

    def await_nothing(servers: str, *, probes: list[tuple[str, int]]) -> None:
        raise Waits

    monkeypatch.setattr("inflight.cli.kafka_contact.await_kafka", await_nothing)
    monkeypatch.setattr("inflight.cli.logs.configure_logging", lambda **_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--set", f"metrics.engine_port={port}", "--set", f"engine.data_dir={tmp_path}"]
        assert isinstance(RUNNER.invoke(app, ["engine", "--standby", *options]).exception, Waits)
        assert "Address already in use" in str(RUNNER.invoke(app, ["engine", *options]).exception)
