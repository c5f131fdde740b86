"""The session gives a gateway more than the wire has slots for (state/outbound/transmission.py, the numbered rules)."""

from typing import Any

import pytest

from state.outbound.transmission import MAX_READ_AHEAD_BYTES, READ_AHEAD_BYTES
from state.records.messages import message_bytes
from state.records.scheduling import COLLAPSE_KEY
from tests.scenarios.scenario import Scenario, message

QUOTA = 4


def keeping_up(**settings: Any) -> Scenario:
    """A client with messages that wait, because more than half of its window is old."""
    s = Scenario(**{"max_inflight": QUOTA, "prefetch": 4} | settings).connect()
    s.submit("a", "b", "c").later(1)
    return s


def published(s: Scenario) -> list[str]:
    return [line.split()[2] for line in s.sees() if line.startswith("PUBLISH")]


def burst(s: Scenario, *names: str, **fields: Any) -> list[str]:
    """Returns what the gateway gets of a micro-batch with these messages."""
    s.sees()
    with s.micro_batch():
        s.submit(*names, **fields)
    return published(s)


def test_a_client_that_keeps_up_gets_the_queue_before_it_acknowledges() -> None:
    s = keeping_up().puback(1)
    assert burst(s, *"defghijk") == ["d", "e", "f", "g", "h", "i"], "the two of before, two free slots, four ahead"
    assert s.queued == ["j", "k"]


def test_a_client_with_more_than_half_of_its_window_open_gets_its_slots() -> None:
    s = keeping_up()
    assert burst(s, *"defg") == ["d"]
    assert s.queued == ["e", "f", "g"]


def test_a_slow_client_gets_one_message_for_each_acknowledgement() -> None:
    s = keeping_up()
    burst(s, *"defg")
    for packet_id, name in ((1, "e"), (2, "f"), (3, "g")):
        assert published(s.later(1).puback(packet_id)) == [name]


@pytest.mark.parametrize(
    "fields", [{"expires_at_ms": 10**15}, {"headers": ((COLLAPSE_KEY, b"k"),)}], ids=["may expire", "may be replaced"]
)
def test_what_may_still_change_waits_in_the_session_with_all_behind(fields: dict[str, Any]) -> None:
    s = keeping_up().puback(1, 2, 3)
    s.sees()
    with s.micro_batch():
        s.submit("d", "e", "f", "g", "h").submit("i", **fields).submit("j")
    assert (published(s), s.queued) == (["d", "e", "f", "g", "h"], ["i", "j"])


def test_messages_of_several_priorities_wait_in_the_session() -> None:
    s = keeping_up().puback(1, 2, 3)
    s.sees()
    with s.micro_batch():
        s.submit("d", "e", "f", "g", "h").submit("i", priority=1)
    assert (published(s), s.queued) == (["d", "e", "f", "g"], ["i", "h"])


def test_no_more_bytes_are_read_ahead_than_the_limit() -> None:
    s = keeping_up().puback(1, 2, 3)
    half = b"x" * (READ_AHEAD_BYTES // 2 - message_bytes(message("d", payload=b"")))
    assert len(burst(s, *"defghij", payload=half)) == QUOTA + 2


def test_a_client_with_a_send_rate_gets_nothing_ahead() -> None:
    s = keeping_up(max_send_rate=100).puback(1, 2, 3)
    assert burst(s, *"defgh") == ["d", "e", "f", "g"]


def test_nothing_is_read_ahead_during_a_backoff() -> None:
    s = Scenario(max_inflight=QUOTA, prefetch=4).connect(version=5).submit("a").puback(1, reason_code=0x97)
    assert burst(s, "b", "c") == []


def test_what_was_read_ahead_is_replayed_in_its_order() -> None:
    s = keeping_up().puback(1, 2, 3)
    burst(s, *"defghi")
    s.lose_connection().connect()
    assert published(s) == list("defghi")
    assert set(s.attempts.values()) == {1}, "the gateway had no time to write them before"


def test_no_more_is_read_ahead_than_there_are_packet_ids() -> None:
    s = Scenario(max_inflight=0, prefetch=65_535).connect().submit("a", "b")
    connection = s.session.connection
    assert connection is not None
    assert s.session.outbound.read_ahead_quota(connection) == 32_765


def test_what_is_read_ahead_grows_with_what_the_client_acknowledges() -> None:
    s = Scenario(max_inflight=QUOTA, prefetch=1_000, max_mqueue_len=0)
    s.submit(*(f"m{i}" for i in range(600)), payload=b"x" * 5_000).connect()
    given = [len(published(s))]
    for _ in range(3):
        with s.micro_batch():
            s.puback(*s.packet_ids)
        given.append(len(published(s)))
    assert given == [QUOTA + 3, QUOTA + 8 * (QUOTA + 3), QUOTA + 209, QUOTA + 209]
    assert MAX_READ_AHEAD_BYTES // message_bytes(message("m", payload=b"x" * 5_000)) == 209
