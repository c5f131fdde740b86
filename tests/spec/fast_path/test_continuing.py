"""protocol.md, section 7, the session's side: a client comes back to the gateway that it has left."""

from dataclasses import replace
from typing import Any

import pytest

from state.commands import AcceptConnection, AnnounceSubscriptions, OpenFastPath
from state.connection import PathState
from state.dead_letters.policy import Policy
from state.events import Continued
from state.model import Outcome
from tests.scenarios.scenario import START_MS, Scenario
from tests.spec.fast_path.scenes import FAST, Y, at, opened, path_of

KEPT = Policy(message_ttl_ms=1_000)


def left(**settings: Any) -> Scenario:
    """The client has got a message at offset 1 by the fast path, and has left."""
    s = opened(**settings).fast_sent("a", Y, at=at(1), previous=0).puback(Y).submit("a", at=at(1)).disconnect()
    s.sees()
    return s


def come_back(s: Scenario, *, connection_id: int = 1, after: int = 1, is_granted: bool = True, partition: int = 0) -> bool:
    """Returns what AcceptConnection says."""
    continued = Continued(connection_id=connection_id, after=at(after, partition), is_granted=is_granted)
    s.connect(capabilities=FAST, continued=continued)
    return bool(s.sent(AcceptConnection)[-1].continues)


def limits(s: Scenario) -> tuple[int, int]:
    accept = s.sent(AcceptConnection)[-1]
    return accept.max_left, accept.max_left_bytes


def test_the_path_of_a_client_that_comes_back_is_open_from_its_connect() -> None:
    s = left().submit("b", at=at(2))
    with s.micro_batch():
        assert not s.sent(OpenFastPath)[1:]
        s.connect(capabilities=FAST, continued=Continued(connection_id=1, after=at(1), is_granted=True))
        s.fast_sent("b", Y + 1, at=at(2), previous=1).puback(Y + 1)
    assert s.sent(AcceptConnection)[-1].continues
    assert s.outcomes["b"] is Outcome.DELIVERED
    assert s.sees() == ["CONNACK present", "OPEN 2"], "the session has nothing to send"


def test_what_the_gateway_may_be_sending_is_fenced_until_the_path_closes() -> None:
    s = left(max_inflight=1, max_mqueue_len=2)
    assert come_back(s.submit("b", at=at(2)))
    s.submit("c", "d", "e", at=at(3))
    assert "d" not in s.outcomes
    assert path_of(s) is not PathState.CLOSED


def test_a_gateway_without_a_grant_goes_on_with_what_is_routed() -> None:
    s = Scenario(routing=True).connect(capabilities=FAST, connection_id=1).subscribe("t", 1, version=1).disconnect()
    s.route("a", mark=1, entry=(1, 1), at=at(7))
    assert come_back(s, after=5, is_granted=False)
    assert s.session.connection is not None
    assert s.session.connection.fast_path is not None


def test_a_gateway_with_another_list_is_overruled() -> None:
    """It has told the device that it is subscribed, and ends the connection."""
    s = Scenario(routing=True).connect(capabilities=FAST).subscribe("t", 1, version=1).disconnect()
    continued = Continued(connection_id=1, after=at(0), is_granted=False, list_connection_id=1, list_version=2)
    s.connect(capabilities=FAST, continued=continued)
    own = s.sent(AnnounceSubscriptions)[-1]
    s.subscribe("u", 1, version=1)
    assert (own.connection_id, own.version) > (2, 1)
    assert "u" not in s.session.outbound.subscriptions


@pytest.mark.parametrize("reason", ["other connection", "other partition", "a later message has ended", "an earlier one waits"])
def test_a_session_that_is_not_as_it_was_left_does_not_go_on(reason: str) -> None:
    s = left()
    match reason:
        case "other connection":
            s.connect(capabilities=FAST).disconnect()
            assert not come_back(s)
        case "other partition":
            assert not come_back(s, partition=1)
        case "a later message has ended":
            s.submit("b", at=at(2), expires_at_ms=START_MS + 1).after(1)
            assert not come_back(s)
        case _:
            s.submit("b", at=at(2))
            assert not come_back(s, after=2)


def test_messages_that_end_in_the_activation_of_the_connect_count() -> None:
    s = left(max_mqueue_len=1)
    with s.micro_batch():
        s.submit("b", at=at(2)).submit("c", at=at(3))
        s.connect(capabilities=FAST, continued=Continued(connection_id=1, after=at(1), is_granted=True))
    assert not s.sent(AcceptConnection)[-1].continues


def test_a_message_that_is_unfinished_is_not_gone_past() -> None:
    s = opened().submit("a", at=at(1)).disconnect()
    assert not come_back(s)
    assert "PUBLISH 2 a DUP" in s.sees()


def test_dead_letters_that_wait_are_not_gone_past() -> None:
    """They have no position, so a gateway cannot know of them."""
    s = left().submit("returned")
    assert not come_back(s)


@pytest.mark.parametrize("capabilities", [0, FAST])
def test_a_path_that_cannot_be_open_is_not_continued(capabilities: int) -> None:
    s = left()
    s.settings = replace(s.settings, fast_path=capabilities == 0)
    s.session.settings = s.session.outbound.settings = s.settings
    s.connect(capabilities=capabilities, continued=Continued(connection_id=1, after=at(1), is_granted=True))
    assert not s.sent(AcceptConnection)[-1].continues


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (500, 524_288)),
        ({"max_mqueue_len": 0}, (1 << 20, 1 << 20)),
        ({"max_mqueue_bytes": 0}, (500, 1 << 20)),
        ({"mqueue_store_qos0": False}, (0, 0)),
        ({"policy": KEPT}, (0, 0)),
        ({"max_send_rate": 5}, (0, 0)),
        ({"fast_path": False}, (0, 0)),
    ],
)
def test_a_gateway_holds_half_of_what_surely_stays_in_the_queue(settings: dict[str, Any], expected: tuple[int, int]) -> None:
    assert limits(Scenario(**settings).connect(capabilities=FAST)) == expected


def test_a_gateway_holds_nothing_while_a_message_will_become_due() -> None:
    s = Scenario().connect(capabilities=FAST)
    s.submit("later", headers=(("deliver-at", b"%d" % (START_MS + 60_000)),), at=at(0)).disconnect().connect(capabilities=FAST)
    assert limits(s) == (0, 0)
