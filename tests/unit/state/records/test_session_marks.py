import pytest

from state.commands import EndSessionMark, MarkSession
from state.events import ExpiredSession
from state.model import NEVER_EXPIRES_S
from state.records.record import Header, SinkRecord
from state.records.session_marks import (
    CLOCKS_MS,
    FOREVER_MS,
    MARK,
    SessionMark,
    encode_mark,
    has_expired,
    kept_header,
    left_headers,
    mark_key,
    mark_record,
    read_mark,
    settled_header,
)
from state.records.subscriptions import SubscriptionList, decode_subscriptions, ended_connection

LEFT = ExpiredSession(connection_id=7, left_ms=10_000, interval_s=5, claimed_ms=15_000)


def test_a_mark_has_a_key_of_its_own_and_names_the_connection() -> None:
    record = mark_record("s", "ü", MarkSession(connection_id=2**40))
    assert (record.topic, record.key, record.headers, record.partition) == ("s", MARK + "ü".encode(), None, None)
    assert decode_subscriptions(record.value or b"") == SubscriptionList(connection_id=2**40, version=0)


def test_the_end_of_a_mark_names_the_last_connection_of_the_session() -> None:
    record = mark_record("s", "c", EndSessionMark(connection_id=7))
    assert record == SinkRecord("s", mark_key("c"), None, headers=(Header("ended", b"7"),))
    assert ended_connection([(header.key, header.value) for header in record.headers or ()]) == 7


@pytest.mark.parametrize(
    ("headers", "until_ms"),
    [
        ([kept_header(0)], 5_000),
        ([("other", b"1"), kept_header(59)], 64_000),
        ([kept_header(NEVER_EXPIRES_S)], FOREVER_MS),
        ([], 0),
        ([("kept", b"-1")], 0),
        ([("kept", None)], 0),
        ([("kept", b"1" * 40)], 0),
        ([("left", b"1")], 0),
    ],
)
def test_a_mark_counts_from_the_time_of_its_record(headers: list[tuple[str, bytes | None]], until_ms: int) -> None:
    """Sessions and earlier versions say nothing about it."""
    assert read_mark(7, headers, 5_000) == SessionMark(7, until_ms)


@pytest.mark.parametrize("timestamp_ms", [-1, -(2**63), 0])
def test_a_mark_without_a_time_says_that_nothing_is_kept(timestamp_ms: int) -> None:
    """0 would take nothing back, and less is no time of a table."""
    assert read_mark(7, [kept_header(0)], timestamp_ms).kept_until_ms == 1


def test_the_latest_time_of_a_mark_fits_in_64_bits() -> None:
    assert read_mark(7, [kept_header(NEVER_EXPIRES_S - 1)], 2**63 - 1).kept_until_ms < FOREVER_MS


@pytest.mark.parametrize(("kept_s", "left_s"), [(0, 0), (5, 5), (NEVER_EXPIRES_S, None)])
def test_a_mark_may_say_that_its_connection_is_over(kept_s: int, left_s: int | None) -> None:
    assert read_mark(7, left_headers(kept_s), 5_000).left_s == left_s


@pytest.mark.parametrize(("now_ms", "is_expired"), [(15_000, False), (14_999 + CLOCKS_MS, False), (15_000 + CLOCKS_MS, True)])
def test_a_session_has_expired_when_all_clocks_say_so(now_ms: int, is_expired: bool) -> None:
    expired = ExpiredSession(connection_id=7, left_ms=10_000, interval_s=5)
    assert SessionMark(7, 15_000, 5).expired(now_ms) == (expired if is_expired else None)


def test_the_end_of_a_connection_without_an_interval_needs_no_clock() -> None:
    assert SessionMark(7, 10_000, 0).expired(0) == ExpiredSession(connection_id=7, left_ms=10_000, interval_s=0)


@pytest.mark.parametrize("others", [[], [kept_header(59)], left_headers(59), [kept_header(NEVER_EXPIRES_S)]])
def test_a_mark_may_say_that_no_will_may_come(others: list[tuple[str, bytes]]) -> None:
    """A mark without the header leaves it open."""
    assert not read_mark(7, others, 5_000).wills_settled
    assert read_mark(7, [*others, settled_header()], 5_000) == read_mark(7, others, 5_000)._replace(wills_settled=True)


def test_a_session_that_is_over_may_have_a_will_to_come() -> None:
    """Nobody finds the session, and whoever connects knows that the will may come."""
    record = mark_record("s", "c", EndSessionMark(connection_id=7, has_will=True))
    headers = [(header.key, header.value) for header in record.headers or ()]
    assert (record.key, record.value) == (mark_key("c"), encode_mark(7))
    assert read_mark(7, headers, 5_000) == SessionMark(7, 5_000, 0, wills_settled=False)


def test_a_mark_of_a_connection_that_may_be_there_says_nothing_of_an_end() -> None:
    assert SessionMark(7, 10_000).expired(FOREVER_MS) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"started_by": 7}, True),
        ({"started_by": 8, "newest_connection_id": 8}, False),  # a later session
        ({"newest_connection_id": 6}, False),  # it has not read the connection
        ({"is_connected": True}, False),  # nor its end
        ({"interval_s": 6}, False),
        ({"interval_s": 6, "now_ms": 16_000}, True),
        ({"interval_s": 0}, False),
        ({"interval_s": NEVER_EXPIRES_S, "now_ms": FOREVER_MS}, False),
        # A connection without CONNACK has resumed it.
        ({"newest_connection_id": 9, "interval_s": 3_600}, True),
        ({"newest_connection_id": 9, "is_connected": True}, True),
    ],
)
def test_the_session_verifies_that_it_has_expired(changed: dict[str, int], expected: bool) -> None:
    session = {"started_by": 5, "newest_connection_id": 7, "interval_s": 5, "is_connected": False, "now_ms": 0}
    assert has_expired(LEFT, **{**session, **changed}) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("claimed_ms", "now_ms", "expected"), [(14_999, 14_999, False), (15_000, 0, True), (0, 15_000, True)])
def test_the_time_of_the_claim_or_of_the_micro_batch_has_to_be_late_enough(claimed_ms: int, now_ms: int, expected: bool) -> None:
    claimed = ExpiredSession(connection_id=7, left_ms=10_000, interval_s=5, claimed_ms=claimed_ms)
    verified = has_expired(claimed, started_by=7, newest_connection_id=7, interval_s=5, is_connected=False, now_ms=now_ms)
    assert verified is expected
