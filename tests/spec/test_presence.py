"""Backends are told of a client's connections: state/presence.py, docs/guides/presence.md."""

from typing import Any

import pytest

from state.commands import ClearPresence, SetPresence
from state.events import ClientConnected
from tests.scenarios.scenario import START_MS, Scenario


def told(s: Scenario) -> list[tuple[Any, ...]]:
    """Returns what each activation has announced so far: (online, connection id, reason), or ("gone", …)."""
    return [
        ("gone", command.connection_id, command.reason)
        if isinstance(command, ClearPresence)
        else (command.online, command.connection_id, command.reason)
        for command in s.commands
        if isinstance(command, SetPresence | ClearPresence)
    ]


def test_a_connection_and_its_end_are_announced_with_reason_and_time() -> None:
    s = Scenario().connect(version=5, expiry_s=60, gateway="g-1").after(5).lose_connection(reason="keep alive")
    online, offline = s.sent(SetPresence)
    assert online == SetPresence(
        online=True, since_ms=START_MS, connection_id=1, gateway="g-1", protocol_version=5, session_expiry_interval_s=60
    )
    assert offline == SetPresence(
        online=False,
        since_ms=START_MS + 5_000,
        connection_id=1,
        gateway="",
        protocol_version=5,
        session_expiry_interval_s=60,
        reason="keep alive",
    )


def test_nothing_else_that_a_client_does_is_announced() -> None:
    s = Scenario().connect().submit("a").puback(1).subscribe("t", 0).lose_connection(reason="").submit("b").after(60)
    assert told(s) == [(True, 1, ""), (False, 1, "")]


def test_a_session_that_ends_with_its_connection_is_gone() -> None:
    s = Scenario().connect(expiry_s=0).disconnect()
    assert told(s) == [(True, 1, ""), ("gone", 1, "DISCONNECT 0x00")]


def test_a_session_that_expires_is_gone() -> None:
    s = Scenario().connect(version=5, expiry_s=60).lose_connection(reason="socket").after(60)
    assert told(s) == [(True, 1, ""), (False, 1, "socket"), ("gone", 1, "session expiry interval passed")]
    assert s.last[-1] == ClearPresence(connection_id=1, since_ms=s.now_ms, reason="session expiry interval passed")


def test_a_session_that_is_purged_is_gone() -> None:
    s = Scenario().connect().lose_connection().purge()
    assert told(s)[-1] == ("gone", 1, "purged by an operator")


@pytest.mark.promise("presence")
def test_a_takeover_announces_the_later_connection_alone() -> None:
    s = Scenario().connect().connect(gateway="g-2").lose_connection(1)
    assert told(s) == [(True, 1, ""), (True, 2, "")]
    assert s.sent(SetPresence)[-1].gateway == "g-2"


def test_a_clean_start_leaves_the_client_online() -> None:
    s = Scenario().connect().connect(clean_start=True)
    assert told(s) == [(True, 1, ""), (True, 2, "")]


def test_an_older_connect_that_is_refused_changes_nothing() -> None:
    s = Scenario().connect().connect()
    s.handle(ClientConnected(connection_id=1, commands_partition=9))
    s.lose_connection(1)
    assert told(s) == [(True, 1, ""), (True, 2, "")]


def test_a_client_that_flaps_costs_one_record_a_micro_batch() -> None:
    s = Scenario().connect().lose_connection(reason="a")
    with s.micro_batch():
        s.connect().lose_connection(reason="b").connect().lose_connection(reason="c")
    assert told(s) == [(True, 1, ""), (False, 1, "a"), (False, 3, "c")]
    with s.micro_batch():
        s.lose_connection(3).connect()
    assert told(s)[3:] == [(True, 4, "")]


def test_one_that_came_and_went_for_good_is_announced_as_gone() -> None:
    s = Scenario()
    with s.micro_batch():
        s.connect(expiry_s=0).disconnect()
    assert told(s) == [("gone", 1, "DISCONNECT 0x00")]


def test_messages_for_a_client_that_never_connected_announce_nothing() -> None:
    s = Scenario().submit("a").after(10_000_000)
    assert told(s) == []
