"""The command line: what can be known without Kafka, Spark or a device."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

import inflight
from inflight.cli import app, main
from inflight.cli.options import load_for_running_system
from inflight.cli.sending import _clients
from inflight.local.child_process import free_port, is_free
from inflight.local.endpoints import Endpoints
from state.events import DropRequested, RestoreRequested, SessionPurged
from state.records.events import decode_events
from streaming.config.resources import conf_file
from streaming.history.errors import BadQuestion
from streaming.history.operator_requests import this_user
from tests.support.waiting import DEADLINE_S

RUNNER = CliRunner()
COMMANDS = (
    *(
        "status",
        "top",
        "console",
        "sessions",
        "users",
        "up",
        "engine",
        "gateway",
        "bridge",
        "demo",
        "send",
        "cancel",
        "topics",
        "jars",
    ),
    *("config", "matcher", "publish", "subscriptions", "presence"),
)
COMPOSE = Path(__file__).parents[4] / "docker-compose.yml"
HEAVY = ("pyspark", "pandas", "kafka", "pydantic", "starlette", "uvicorn", "jinja2", "opentelemetry")


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "inflight", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input="", timeout=DEADLINE_S, check=False)


@pytest.fixture
def main_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[object, str, str]]]:
    """The command in this process, which saves a second of CPU: exit code, standard output, standard error."""
    at_interrupt = signal.getsignal(signal.SIGINT)

    def call(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["inflight", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    yield call
    signal.signal(signal.SIGINT, at_interrupt)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = RUNNER.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.processes
def test_the_command_line_starts_without_heavy_imports() -> None:
    code = f"import sys, inflight.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_configuration_in_force_is_shown_as_toml(tmp_path: Path, main_with: Callable[..., tuple[object, str, str]]) -> None:
    code, shown, _ = main_with("config", "--set", "max_inflight=7")
    assert code == 0
    assert "\nmax_inflight = 7\n" in shown
    copy = tmp_path / "copy.toml"
    copy.write_text(shown)
    assert main_with("config", "--config", str(copy))[1] == shown


@pytest.mark.parametrize("command", ["up", "engine", "gateway", "topics"])
def test_every_command_refuses_a_wrong_key_before_anything_starts(
    command: str, main_with: Callable[..., tuple[object, str, str]]
) -> None:
    code, output, errors = main_with(command, "--set", "max_inflihgt=7")
    assert code == 2
    assert "did you mean session.max_inflight?" in errors
    assert "Traceback" not in errors
    assert output == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--payload", "x", "--qos", "3"], "--qos"),
        (["--payload", "x", "--expiration", "soon"], "not a duration"),
        (["--payload", "x", "--header", "nothing"], "NAME=VALUE"),
        (["--payload", "x", "--file", str(conf_file("ivy.xml"))], "not both"),
    ],
)
def test_send_refuses_what_breaks_the_contract_of_messages(arguments: list[str], words: str) -> None:
    result = RUNNER.invoke(app, ["send", "client", "topic", *arguments])
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["client"], "CLIENT and TOPIC"),
        (["client", "topic", "--client", "other"], "only TOPIC"),
        (["topic", "--client", "a", "--payload", "x", "--count", "2"], "to one client"),
        (["topic", "--clients-file", os.devnull], "names no client"),
    ],
)
def test_send_refuses_an_unclear_choice_of_clients(arguments: list[str], words: str) -> None:
    result = RUNNER.invoke(app, ["send", *arguments])
    assert result.exit_code == 2
    assert re.search(words, result.output)


def test_a_file_names_many_clients(tmp_path: Path) -> None:
    file = tmp_path / "clients.txt"
    file.write_text("gate 1\n\ngate-2\n")
    assert _clients("topic", None, ["gate-0"], file) == ["gate-0", "gate 1", "gate-2"]
    file.write_bytes(b"\xff\n")
    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        _clients("topic", None, None, file)


@pytest.mark.parametrize("arguments", [["publish", "--topic", "a", "--payload", "x"], ["subscriptions", "--topic", "a"]])
def test_commands_of_routing_say_that_nobody_routes(
    arguments: list[str], main_with: Callable[..., tuple[object, str, str]]
) -> None:
    code, output, errors = main_with(*arguments, "--set", "routing.enabled=false")
    assert (code, output) == (1, "")
    assert "nobody routes: routing.enabled is false" in errors


@pytest.mark.parametrize("arguments", [[], ["--topic", "a", "--client", "c"], ["--topic", "a/#"]])
def test_subscriptions_are_those_of_a_topic_or_of_a_client(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, ["subscriptions", *arguments])
    assert result.exit_code == 2
    assert "--topic" in result.output


@pytest.mark.processes
def test_send_without_kafka_gives_an_instruction() -> None:
    options = ["--kafka", f"127.0.0.1:{free_port()}", "--set", "kafka.options.bootstrap_timeout_ms=500", "--timeout", "1s"]
    result = run("send", "client", "topic", "--payload", "x", *options)
    assert result.returncode == 1
    assert "check that `inflight up` runs" in result.stderr
    assert result.stdout == "", "it is for message ids"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["gateway", "bridge", "matcher"])
def test_a_process_waits_for_kafka_and_names_the_address(
    command: str, main_with: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.cli.logs.configure_logging", lambda **_: None)  # it is for processes, and these are the tests'
    server = f"127.0.0.1:{free_port()}"

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inflight.cli.kafka_contact.time.sleep", interrupted)
    options = [f"kafka.bootstrap_servers={server}", "gateway.port=0", "routing.enabled=true"]
    code, _, errors = main_with(command, *(word for option in options for word in ("--set", option)))
    assert code == 130
    assert errors.splitlines()[-1].startswith(f"waiting for Kafka at {server}: {server}: Connection refused. Check kafka.boot")
    assert "Traceback" not in errors


def test_a_second_ctrl_c_is_as_silent_as_the_first(
    main_with: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would write a traceback while it waits for threads at its end."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["inflight.cli.app"], "app", interrupted)
    assert main_with("status") == (130, "", "")
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_matcher_needs_routing() -> None:
    result = RUNNER.invoke(app, ["matcher", "--set", "routing.enabled=false"])
    assert result.exit_code != 0
    assert "routing.enabled" in str(result.exception)


@pytest.mark.parametrize("command", ["restore", "drop"])
def test_the_end_of_a_quarantine_names_clients_or_all(command: str) -> None:
    for arguments in ((), ("lamp", "--all")):
        result = RUNNER.invoke(app, ["sessions", command, *arguments])
        assert result.exit_code == 2
        assert "choose the clients" in result.output
    result = RUNNER.invoke(app, ["sessions", "--data-dir", "elsewhere", command, "lamp"])
    assert result.exit_code == 2
    assert f"after {command}" in result.output


@pytest.mark.parametrize(("command", "request_"), [("restore", RestoreRequested()), ("drop", DropRequested())])
def test_the_end_of_a_quarantine_is_an_event_for_each_client(
    command: str, request_: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[tuple[str, bytes, bytes]] = []

    class Producer:
        def __init__(self, **options: Any) -> None:
            assert options["bootstrap_servers"] == "kafka:1"

        def send(self, topic: str, *, key: bytes, value: bytes) -> "Producer":
            sent.append((topic, key, value))
            return self

        def get(self, timeout: float) -> None:
            assert timeout > 0

        def close(self, timeout: float) -> None:
            assert timeout > 0

    monkeypatch.setattr("inflight.cli.kafka_contact.first_contact", lambda servers: None)
    monkeypatch.setattr("kafka.KafkaProducer", Producer)
    options = ["--data-dir", str(tmp_path), "--set", "kafka.bootstrap_servers=kafka:1"]
    result = RUNNER.invoke(app, ["sessions", command, "lamp-1", "lämp-2", *options])
    assert result.exit_code == 0, result.output
    assert [(topic, key.decode()) for topic, key, _ in sent] == [
        (topic, client) for topic in ("inflight.ledger", "inflight.events") for client in ("lamp-1", "lämp-2")
    ]
    assert [decode_events(value) for _, _, value in sent[2:]] == [(request_,)] * 2
    assert all(f"{command} by {this_user()}" in value.decode() for _, _, value in sent[:2])


def test_a_purge_lists_the_clients_and_asks_for_confirmation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[tuple[str, SessionPurged]] = []
    asked: list[str] = []

    def purgeable(_: object, condition: str) -> Iterator[str]:
        asked.append(condition)
        return iter([f"lamp-{number}" for number in range(12)] if condition == "queued > 9" else [])

    def send(_: object, clients: list[str], request: SessionPurged, *, why: str) -> int:
        assert why == "queued > 9"
        sent.extend((client, request) for client in clients)
        return len(clients)

    monkeypatch.setattr("inflight.cli.sessions.open_store", lambda *_, **__: nullcontext())
    monkeypatch.setattr("streaming.history.requests.purgeable_clients", purgeable)
    monkeypatch.setattr("inflight.cli.sessions._send", send)
    command = ["sessions", "purge", "--data-dir", str(tmp_path), "--where"]
    assert RUNNER.invoke(app, command[:2]).exit_code == 2
    nobody = RUNNER.invoke(app, [*command, "queued > 99"])
    assert nobody.exit_code == 0
    assert "no session of an offline client" in nobody.output
    refused = RUNNER.invoke(app, [*command, "queued > 9"], input="n\n")
    assert refused.exit_code == 1
    assert "lamp-9\nand 2 more\nEnd 12 sessions?" in refused.output
    assert sent == []
    for arguments, answer in ((), "y\n"), (("--yes",), None):
        sent.clear()
        assert RUNNER.invoke(app, [*command, "queued > 9", *arguments], input=answer).exit_code == 0
        assert sent == [(f"lamp-{number}", SessionPurged()) for number in range(12)]
    assert asked == ["queued > 99", *["queued > 9"] * 3]


def test_a_statement_is_refused_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the configuration was loaded")

    monkeypatch.setattr("inflight.cli.history.load_for_running_system", opened)
    for statement in "DROP TABLE ledger", "COPY ledger TO 'x'", "SELECT * FROM read_csv('/etc/passwd')":
        assert isinstance(RUNNER.invoke(app, ["sql", statement]).exception, BadQuestion)


def test_main_reports_an_error_in_one_paragraph(main_with: Callable[..., tuple[object, str, str]]) -> None:
    code, _, errors = main_with("config", "--config", "/nowhere.toml")
    assert code == 2
    assert "/nowhere.toml: cannot be read" in errors


def compose_services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return services


def test_compose_asks_each_process_on_its_port_whether_it_is_ready() -> None:
    for name in ("engine", "gateway"):
        service = compose_services()[name]
        port = service["environment"][f"INFLIGHT__METRICS__{name.upper()}_PORT"]
        probe, *command = service["healthcheck"]["test"]
        assert (probe, command[0]) == ("CMD", "python"), "there is no curl in the image"
        assert f"http://127.0.0.1:{port}/readyz" in command[-1]
        compile(command[-1], name, "exec")


def test_the_environment_in_compose_is_a_valid_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from streaming.config.settings import load_settings

    for service in compose_services().values():
        for name, value in service.get("environment", {}).items():
            if name.startswith("INFLIGHT__"):
                monkeypatch.setenv(name, str(value))
    settings = load_settings()
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.gateway.host == "0.0.0.0"


@pytest.mark.processes
def test_endpoints_are_only_believed_while_their_up_is_alive(tmp_path: Path) -> None:
    assert Endpoints.read(tmp_path) == Endpoints()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    Endpoints(mqtt="h:1", kafka="h:2", pids={"up": ended.pid}).write(tmp_path)
    assert Endpoints.read(tmp_path) == Endpoints()


def test_endpoints_read_back(tmp_path: Path) -> None:
    import os

    written = Endpoints(mqtt="h:1", kafka="h:2", pids={"up": os.getpid(), "engine": 7})
    written.write(tmp_path)
    assert Endpoints.read(tmp_path) == written


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert port < first_outgoing
    assert is_free(port)


def test_up_has_a_plain_listener(main_with: Callable[..., tuple[object, str, str]]) -> None:
    tls = 'listeners=[{"host": "0.0.0.0", "anonymous": true, "tls_certfile": "server.pem"}]'
    code, _, errors = main_with("up", "--set", "gateway.port=-1", "--set", tls)
    assert code == 2
    assert "plain listener" in errors
    assert "server.pem cannot be read" in errors, "everything is said at once"


def test_an_unexpected_error_is_a_sentence_and_a_file(
    main_with: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("wires crossed\n  at line 7")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("inflight.cli.administration.load", fail)
    code, _, said = main_with("config")
    [details] = tmp_path.glob("inflight-error-*.txt")
    assert code == 1
    assert said == (f"inflight: unexpected RuntimeError: wires crossed; {details} has the details for a report.\n")
    assert "Traceback" in details.read_text()
    assert details.stat().st_mode & 0o777 == 0o600


def test_a_path_that_fails_is_named(
    main_with: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var").touch()
    assert "inflight: var: File exists. Check that path and its permissions" in main_with("demo")[2]


def test_the_version_is_that_of_the_package() -> None:
    assert inflight.__version__ == version("inflight")
    assert RUNNER.invoke(app, ["--version"]).output == f"inflight {inflight.__version__}\n"


def test_commands_have_the_configuration_of_the_running_system(tmp_path: Path) -> None:
    """Their own options override it."""
    file, data_dir = tmp_path / "inflight.toml", tmp_path / "data"
    file.write_text('[topics]\nprefix = "theirs"\n[kafka]\nsecurity_protocol = "SSL"\n')
    data_dir.mkdir()
    given = ["max_inflight=7", "delivery_limit=3"]
    Endpoints(kafka="127.0.0.1:1234", pids={"up": os.getpid()}, config=str(file), overrides=given).write(data_dir)
    settings = load_for_running_system(None, ["delivery_limit=4"], data_dir)
    assert (settings.topics.prefix, settings.session.max_inflight, settings.session.delivery_limit) == ("theirs", 7, 4)
    assert (settings.kafka.bootstrap_servers, settings.kafka.security_protocol) == ("127.0.0.1:1234", "PLAINTEXT")
    assert settings.engine.data_dir == data_dir
    assert load_for_running_system(conf_file("inflight.toml"), None, data_dir).topics.prefix == "inflight"


def test_a_missing_data_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load_for_running_system(None, None)
    assert f"note: there is no var/inflight in {tmp_path}" in capsys.readouterr().err
    load_for_running_system(None, ["kafka.bootstrap_servers=kafka:9092"])
    Path("var/inflight").mkdir(parents=True)
    load_for_running_system(None, None)
    assert capsys.readouterr().err == ""
