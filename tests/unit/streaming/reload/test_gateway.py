from typing import Any

import pytest
from structlog.testing import capture_logs

from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.settings import GatewaySettings
from streaming.config.settings import Settings
from streaming.reload.gateway import GatewayReload


class Gateway:
    """refuses: says that a file cannot be used."""

    def __init__(self, **configuration: Any) -> None:
        self.taken: list[GatewaySettings] = []
        self.refuses = False
        self.asked = 0
        self._new: Settings | None = None
        self._reload = GatewayReload(Settings(**configuration), new=lambda: self._new, ask=self._ask)

    def look(self, new: dict[str, Any] | None, *, read_file: bool = False) -> list[dict[str, Any]]:
        """Returns the log messages."""
        self._new = None if new is None else Settings(**new)
        with capture_logs() as logs:
            self._reload.poll(self._take, read_file=read_file)
        return [dict(line) for line in logs]

    def _take(self, settings: GatewaySettings) -> None:
        if self.refuses:
            raise UnusableFile("no such file")
        self.taken.append(settings)

    def _ask(self) -> None:
        self.asked += 1


@pytest.mark.promise("gateway-reload")
def test_limits_rules_logins_and_session_settings_come_into_force() -> None:
    gateway = Gateway()
    (said,) = gateway.look(
        {
            "limits": {"max_connections": 7},
            "rules": [{"users": ["a*"], "client_ids": ["*"]}],
            "gateway": {"login": {"password_file": "users"}},
            "session": {"max_awaiting_rel": 9},
            "profiles": [{"clients": "x*", "prefetch": 7}],
        }
    )
    assert said["event"] == "settings_changed"
    assert said["keys"] == [
        "gateway.login.password_file",
        "limits.max_connections",
        "profiles",
        "rules",
        "session.max_awaiting_rel",
    ]
    (taken,) = gateway.taken
    assert taken.device_limits.max_connections == 7
    assert [rule.users for rule in taken.rules] == [("a*",)]
    assert taken.login.password_file == "users"
    assert taken.session.max_awaiting_rel == taken.session_of("x1").max_awaiting_rel == 9
    assert taken.session_of("x1").prefetch == 7


def test_settings_that_need_a_restart_are_named_and_keep_their_value() -> None:
    gateway = Gateway()
    said = gateway.look(
        {"gateway": {"port": 1, "drain_ms": "1s"}, "kafka": {"bootstrap_servers": "x:1"}, "limits": {"max_connections": 7}}
    )
    assert [(line["event"], line["keys"]) for line in said] == [
        ("settings_need_a_restart", ["gateway.drain_ms", "gateway.port", "kafka.bootstrap_servers"]),
        ("settings_changed", ["limits.max_connections"]),
    ]
    assert (gateway.taken[0].port, gateway.taken[0].drain_ms) == (1883, 10_000)
    assert [line["event"] for line in gateway.look({"gateway": {"port": 1}})] == ["settings_need_a_restart", "settings_changed"]


def test_settings_of_other_processes_are_no_change() -> None:
    gateway = Gateway()
    assert [line["event"] for line in gateway.look({"engine": {"receipts": False}, "bridge": {"name": "b"}})] == [
        "settings_unchanged"
    ]
    assert gateway.taken == []


def test_nothing_is_logged_without_a_change() -> None:
    gateway = Gateway()
    assert gateway.look(None) == []
    assert gateway.asked == 0
    gateway.look(None, read_file=True)
    assert gateway.asked == 1


def test_unusable_settings_are_reported_and_loaded_when_usable() -> None:
    gateway, new = Gateway(), {"gateway": {"login": {"password_file": "users"}}, "limits": {"max_connections": 7}}
    gateway.refuses = True
    (said,) = gateway.look(new)
    assert (said["event"], said["problems"]) == ("settings_not_taken", "no such file")
    gateway.refuses = False
    (said,) = gateway.look(new)
    assert said["keys"] == ["gateway.login.password_file", "limits.max_connections"], "none of it was in force"


def test_a_file_without_the_login_that_was_there_waits_for_a_restart() -> None:
    gateway = Gateway(gateway={"login": {"password_file": "users"}})
    (said,) = gateway.look({"limits": {"max_connections": 7}})
    assert (said["event"], said["log_level"]) == ("settings_not_taken", "error")
    assert said["problems"] == ["gateway.login.password_file is gone: devices could connect without a login"]
    assert gateway.taken == [], "not even the limit"
    assert [line["event"] for line in gateway.look({"gateway": {"login": {"password_file": "others"}}})] == ["settings_changed"]


def test_a_login_that_could_not_be_used_may_be_removed_again() -> None:
    gateway = Gateway()
    gateway.refuses = True
    gateway.look({"gateway": {"login": {"password_file": "users"}}})
    gateway.refuses = False
    assert [line["event"] for line in gateway.look({"limits": {"max_connections": 7}})] == ["settings_changed"]
