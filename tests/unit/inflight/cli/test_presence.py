import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inflight.cli import app
from inflight.cli import presence as command
from inflight.presence import ClientPresence, PresenceStatus

ONLINE = ClientPresence(
    client_id="pump-1", status=PresenceStatus.ONLINE, since_ms=1_000, connection_id="9", gateway="g-1", protocol_version=5
)
OFFLINE = ClientPresence(
    client_id="pump-2",
    status=PresenceStatus.OFFLINE,
    since_ms=2_000,
    connection_id="8",
    protocol_version=4,
    session_expiry_interval_s=60,
    expires_ms=62_000,
    reason="keep alive",
)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def call(*arguments: str, known: tuple[ClientPresence, ...] = (ONLINE, OFFLINE)) -> Result:
        monkeypatch.setattr(command, "_read", lambda settings: {client.client_id: client for client in known})
        monkeypatch.setattr(command, "load_for_running_system", lambda *given: None)
        return CliRunner().invoke(app, ["presence", *arguments])

    return call


def test_all_clients_with_a_session_are_shown(ask: Callable[..., Result]) -> None:
    lines = ask().stdout.splitlines()
    assert lines[0].split() == ["client", "id", "status", "since", "gateway", "protocol", "session", "ends", "reason"]
    assert "pump-1" in lines[-2]
    assert "MQTT 5" in lines[-2]
    assert "1970-01-01 00:01:02.000" in lines[-1]
    assert "keep alive" in lines[-1]


@pytest.mark.parametrize(("option", "expected"), [("--online", ["pump-1"]), ("--offline", ["pump-2"])])
def test_one_kind_can_be_chosen(ask: Callable[..., Result], option: str, expected: list[str]) -> None:
    documents: list[dict[str, Any]] = [json.loads(line) for line in ask(option, "--json").stdout.splitlines()]
    assert [document["client_id"] for document in documents] == expected


def test_a_document_has_all_that_is_known(ask: Callable[..., Result]) -> None:
    (document,) = [json.loads(line) for line in ask("pump-2", "--json").stdout.splitlines()]
    assert (document["status"], document["connection_id"], document["expires_ms"]) == ("offline", "8", 62_000)


def test_a_client_without_a_session_is_named(ask: Callable[..., Result]) -> None:
    result = ask("pump-1", "pump-9")
    assert "pump-1" in result.stdout
    assert result.stderr == "no session: pump-9\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no client is connected or has a session\n"),
        (("--online",), "no client is online\n"),
        (("--offline",), "no client is offline with a session\n"),
    ],
)
def test_it_is_said_clearly_that_there_is_none(ask: Callable[..., Result], arguments: tuple[str, ...], said: str) -> None:
    result = ask(*arguments, known=())
    assert (result.stdout, result.stderr) == ("", said)


def test_online_and_offline_together_are_refused(ask: Callable[..., Result]) -> None:
    assert ask("--online", "--offline").exit_code == 2
