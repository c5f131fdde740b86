"""docs/guides/presence.md: what a backend and an operator see of connections, by real processes."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from inflight import ClientPresence, Presence, PresenceStatus
from inflight.console.query_page import REFRESH_HEADER
from tests.integration.up.conftest import SharedUp
from tests.integration.up.wire_device import WireDevice
from tests.support.console import running_console
from tests.support.waiting import DEADLINE_S, wait_until

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "presence.md"
KEPT = "present-device"
SEEN = "seen-on-the-console"
BRIEF = "brief-present"
"""A profile of conftest.py ends its session after a second."""


@pytest.fixture
def changes(up: SharedUp) -> Iterator["Changes"]:
    with Presence(up.kafka) as presence:
        yield Changes(presence)


class Changes:
    """Reads what the topic says of single clients; other tests run beside this one."""

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self._changes = presence.changes(timeout_s=DEADLINE_S)

    def next(self, *client_ids: str) -> ClientPresence:
        return next(change for change in self._changes if change.client_id in client_ids)


@pytest.mark.promise("presence")
def test_a_backend_sees_connections_takeovers_and_ends(up: SharedUp, changes: Changes) -> None:
    began_ms = time.time_ns() // 1_000_000
    with WireDevice(up.mqtt, KEPT, 5, expiry_s=600):
        first = changes.next(KEPT)
        assert (first.is_online, first.protocol_version, first.session_expiry_interval_s) == (True, 5, 600)
        assert first.gateway
        assert first.since_ms >= began_ms
        with WireDevice(up.mqtt, KEPT, 4, expiry_s=600):
            second = changes.next(KEPT)
            assert second.is_online
            assert (second.protocol_version, int(second.connection_id) > int(first.connection_id)) == (4, True)
            assert changes.presence.get(KEPT) == second
    offline = changes.next(KEPT)
    assert (offline.status, offline.connection_id) == (PresenceStatus.OFFLINE, second.connection_id)
    assert offline.reason
    assert offline.expires_ms is not None
    assert offline.expires_ms > offline.since_ms


def test_a_session_that_expires_is_gone_and_nobody_is_found(up: SharedUp, changes: Changes) -> None:
    with WireDevice(up.mqtt, BRIEF, 4, expiry_s=1):
        assert changes.next(BRIEF).is_online
    assert changes.next(BRIEF).status is PresenceStatus.OFFLINE
    gone = changes.next(BRIEF)
    assert (gone.status, gone.reason) == (PresenceStatus.GONE, "session expiry interval passed")
    assert changes.presence.get(BRIEF) is None
    assert BRIEF not in changes.presence.read()


@pytest.mark.servers
def test_the_commands_and_the_program_of_the_page_run_as_written(up: SharedUp, changes: Changes) -> None:
    commands = re.findall(r"^inflight (presence[^#\n]*)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "INFLIGHT__ENGINE__DATA_DIR": str(up.data_dir)}
    with WireDevice(up.mqtt, "pump-1", 5, expiry_s=600):
        assert changes.next("pump-1").is_online
        said = [run(environment, "-m", "inflight", *command.split()) for command in commands]
        assert len(said) == 3
        assert "pump-1" in said[0].stdout
        assert "MQTT 5" in said[1].stdout
        assert said[1].stderr == "no session: pump-2\n"
        documents = {document["client_id"]: document for document in map(json.loads, said[2].stdout.splitlines())}
        assert documents["pump-1"]["status"] == "online"
        assert "pump-1 online" in run(environment, "-c", program).stdout


@pytest.mark.servers
def test_the_console_shows_a_device_that_comes_and_goes(up: SharedUp) -> None:
    with running_console(up.data_dir) as console:

        def statuses() -> list[str]:
            """Returns the events of the device on an open page, the newest first."""
            page = Request(f"{console}presence?client={SEEN}", headers={REFRESH_HEADER: "1"})
            with urlopen(page, timeout=DEADLINE_S) as answer:
                return re.findall(rf">{SEEN}</span></a></td><td[^>]*>(\w+)<", answer.read().decode())

        with WireDevice(up.mqtt, SEEN, 4, expiry_s=600):
            wait_until(lambda: statuses() == ["online"], statuses)
        wait_until(lambda: statuses() == ["offline", "online"], statuses)


def run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
