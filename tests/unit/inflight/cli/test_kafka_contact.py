import socket
import threading
import time

import pytest
from typer.testing import CliRunner

from inflight.cli import app
from inflight.cli.kafka_contact import await_kafka, require_kafka
from inflight.local.child_process import free_port
from streaming.config.errors import KafkaUnreachable
from tests.support.waiting import wait_until

RUNNER = CliRunner()
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
