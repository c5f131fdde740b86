import pytest

from state.commands import EndSessionMark, MarkSession
from state.model import NEVER_EXPIRES_S
from state.records.record import Header, SinkRecord
from state.records.session_marks import FOREVER_MS, MARK, kept_header, kept_until_ms, mark_key, mark_record
from state.records.subscriptions import SubscriptionList, decode_subscriptions, ended_connection


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
    ],
)
def test_a_mark_counts_from_the_time_of_its_record(headers: list[tuple[str, bytes | None]], until_ms: int) -> None:
    """Sessions and earlier versions say nothing about it."""
    assert kept_until_ms(headers, 5_000) == until_ms


@pytest.mark.parametrize("timestamp_ms", [-1, -(2**63), 0])
def test_a_mark_without_a_time_says_that_nothing_is_kept(timestamp_ms: int) -> None:
    """0 would take nothing back, and less is no time of a table."""
    assert kept_until_ms([kept_header(0)], timestamp_ms) == 1


def test_the_latest_time_of_a_mark_fits_in_64_bits() -> None:
    assert kept_until_ms([kept_header(NEVER_EXPIRES_S - 1)], 2**63 - 1) < FOREVER_MS
