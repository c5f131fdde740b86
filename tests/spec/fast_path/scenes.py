"""Starts the scenarios of the fast path, and reads what they check."""

from dataclasses import replace
from typing import Any

from state.commands import OpenFastPath, SendPublish
from state.connection import PathState
from state.events import Capability
from state.model import Position
from state.session_codec import decode_session, encode_session
from tests.scenarios.scenario import CLIENT, Scenario

FAST = Capability.FAST_PATH
Y = 32_768
RETRY_S = 30


def at(offset: int, partition: int = 0) -> Position:
    return Position(partition, offset)


def opened(*, version: int = 4, **settings: Any) -> Scenario:
    """Connected, the path is open after offset 0, and nothing is under way."""
    s = Scenario(**settings).connect(version=version, capabilities=FAST).submit("first", at=at(0)).puback(1)
    assert s.sees() == ["CONNACK", "PUBLISH 1 first", "OPEN 0"]
    return s


def recreate_messages(s: Scenario) -> None:
    """The engine has gone on after `inflight.messages` was deleted and created again."""
    s.settings = replace(s.settings, messages_generation=s.settings.messages_generation + 1)
    s.session = decode_session(encode_session(s.session), client_id=CLIENT, settings=s.settings)


def path_of(s: Scenario) -> PathState:
    assert s.session.connection is not None
    assert s.session.connection.fast_path is not None
    return s.session.connection.fast_path.state


def grant(s: Scenario) -> OpenFastPath:
    """The latest."""
    last: OpenFastPath = s.sent(OpenFastPath)[-1]
    return last


def positions(s: Scenario) -> list[tuple[str, Position | None]]:
    return [(publish.message_id, publish.position) for publish in s.sent(SendPublish)]
