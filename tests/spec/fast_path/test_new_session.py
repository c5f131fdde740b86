"""The connection that begins a session has an open path without a grant (state/outbound/fast_path/grants.py, rule 5)."""

from typing import Any

import pytest

from state.connection import PathState
from state.model import QoS, Routing
from state.records.routing import SourceKind, source_number
from tests.scenarios.scenario import Scenario
from tests.spec.fast_path.scenes import FAST, Y, at, grant, path_of

UPLINK = source_number(SourceKind.UPLINK, 0, "uplink")


def begun(**settings: Any) -> Scenario:
    """A new session with a subscription; its gateway knows no message of it."""
    s = Scenario(routing=True, **settings).connect(capabilities=FAST).subscribe("t", 2, version=1)
    assert s.sees() == ["CONNACK"]
    return s


def own(mark: int) -> Routing:
    return Routing(source=UPLINK, mark=mark, connection_id=1, version=1, qos=QoS.EXACTLY_ONCE)


def sent(s: Scenario, name: str, packet_id: int, *, at_offset: int, previous: int, qos: int = 1) -> Scenario:
    return s.fast_sent(name, packet_id, at=at(at_offset), previous=previous, qos=qos, routing=own(at_offset), is_granted=False)


def route(s: Scenario, name: str, at_offset: int) -> Scenario:
    return s.route(name, mark=at_offset, entry=(1, 1), at=at(at_offset))


@pytest.mark.promise("new-session")
def test_the_first_message_is_adopted_without_a_grant() -> None:
    s = sent(begun(), "a", Y, at_offset=5, previous=-1).puback(Y)
    route(s, "a", 5)
    assert s.sees() == ["OPEN 5"]
    assert s.session.summary().inflight == 0


def test_the_next_ones_are_adopted_before_they_are_read() -> None:
    s = sent(begun(), "a", Y, at_offset=5, previous=-1)
    sent(s, "b", Y + 1, at_offset=7, previous=5)
    assert s.packet_ids == [Y, Y + 1]
    assert path_of(s) is PathState.OPEN
    route(s, "a", 5)
    assert grant(s).after == at(5)
    assert grant(s).ids_in_use == (Y, Y + 1)
    assert grant(s).adopted == -1, "of what was sent without a grant the gateway remembers the positions for longer"


def test_a_message_that_names_the_client_is_not_passed_over() -> None:
    """It is earlier in the log, and read later."""
    s = sent(begun(), "b", Y, at_offset=7, previous=-1)
    s.submit("a", at=at(6))
    assert s.sees() == ["PUBLISH 1 a", "OPEN 6"]
    route(s, "b", 7)
    assert s.sees() == ["OPEN 7"]


def test_one_behind_a_missing_one_is_ignored() -> None:
    s = sent(begun(), "b", Y, at_offset=7, previous=5)
    assert s.packet_ids == []
    route(s, "a", 5)
    route(s, "b", 7)
    assert [line for line in s.sees() if line.startswith("PUBLISH")] == ["PUBLISH 1 a", "PUBLISH 2 b"]


def test_one_behind_a_message_that_waits_in_the_queue_is_ignored() -> None:
    s = begun(max_inflight=1)
    route(s, "a", 4)
    route(s, "b", 5)
    sent(s, "c", Y, at_offset=7, previous=5)
    assert (s.packet_ids, s.queued) == ([1], ["b"])


def test_one_that_passes_messages_in_the_queue_is_adopted() -> None:
    """They name the client, so they are of another publisher."""
    s = begun(max_inflight=1).submit("x", at=at(3)).submit("y", at=at(4))
    sent(s, "c", Y, at_offset=7, previous=-1)
    assert (s.packet_ids, s.queued) == ([1, Y], ["y"])


def test_a_message_that_the_session_has_read_first_moves_to_the_id_of_the_gateway() -> None:
    s = route(begun(), "a", 5)
    sent(s, "a", Y, at_offset=5, previous=-1).puback(Y)
    assert s.session.summary().inflight == 0


def test_at_qos_0_it_is_over_at_once() -> None:
    s = sent(begun(), "a", 0, at_offset=5, previous=-1, qos=0)
    over = s.ledger
    assert over[-2:] == ["fast_sent", "finished"]
    route(s, "a", 5)
    assert s.ledger == over


def test_what_the_gateway_may_be_sending_does_not_expire() -> None:
    s = begun(max_inflight=1)
    route(s, "a", 4)
    s.route("b", mark=5, entry=(1, 1), at=at(5), expires_at_ms=s.now_ms + 1_000)
    s.sees()
    s.after(2)
    assert "CLOSE PATH" in s.sees()
    assert s.dead_letters == []
    s.path_closed()
    assert s.dead_letters == [("b", "expired")]


def test_a_message_that_names_the_client_ends_while_the_path_is_open() -> None:
    """No gateway sends it without a grant, and the first grant begins behind it."""
    s = begun(delivery_limit=1).submit("a", at=at(4)).puback(1, reason_code=0x80)
    assert s.dead_letters == [("a", "delivery_limit")]
    assert "CLOSE PATH" not in s.sees()


@pytest.mark.parametrize("settings", [{"fast_path": False}, {"max_send_rate": 5}, {"routing": False}])
def test_where_there_is_no_fast_path_it_stays_closed(settings: dict[str, Any]) -> None:
    s = Scenario(**({"routing": True} | settings)).connect(capabilities=FAST)
    assert path_of(s) is PathState.CLOSED


def test_a_session_that_is_resumed_waits_for_a_grant() -> None:
    s = begun().lose_connection().connect(capabilities=FAST)
    assert path_of(s) is PathState.CLOSED


def test_a_gateway_without_a_fast_path_gets_none() -> None:
    s = Scenario(routing=True).connect()
    assert s.session.connection is not None
    assert s.session.connection.fast_path is None


def test_too_many_subscriptions_close_the_path() -> None:
    s = begun()
    with s.micro_batch():
        for number in range(40):
            s.subscribe(f"t/{number}", 1, version=2 + number)
    assert "CLOSE PATH" in s.sees()
    s.path_closed()
    assert path_of(s) is PathState.CLOSED
