"""state.records.scheduling: times and keys in the headers of a message."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.events import CancelRequested, MessageRefused, MessageSubmitted
from state.model import Position
from state.records.messages import message_event, parse_message
from state.records.scheduling import MAX_DELAY_MS, collapse_key, deliver_at_ms, due_at_ms, rfc_3339
from state.settings import RecordLimits
from tests.unit.state.records.test_messages import TOPIC, Header

NOW = 1_800_000_000_000
AT = Position(1, 2)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.datetimes(timezones=st.just(UTC)).filter(lambda time: 1970 < time.year < 9999)


def event_of(*headers: tuple[str, bytes | None]) -> MessageSubmitted | MessageRefused | CancelRequested:
    given_headers = [Header(name, value) for name, value in headers]
    return message_event(
        given_headers, b"p", accepted_ms=NOW, default_message_id="m", limits=RecordLimits(), position=AT, recipient=None
    )


def refusal(*headers: tuple[str, bytes | None]) -> str:
    event = event_of(*headers)
    assert isinstance(event, MessageRefused), event
    return event.detail


def since_1970_ms(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


@given(TIMES, st.integers(-23 * 60, 23 * 60), st.sampled_from(["T", "t", " "]), st.booleans())
def test_a_time_of_rfc_3339_is_read_as_by_pythons_datetime(time: datetime, offset: int, between: str, is_utc: bool) -> None:
    zoned = time if is_utc else time.astimezone(timezone(timedelta(minutes=offset)))
    text = zoned.isoformat(sep=between)
    text = text.replace("+00:00", "Z") if is_utc else text
    assert due_at_ms(text.encode(), 3 * 10**14) == since_1970_ms(time)


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_is_shown_so_that_it_is_read_again(time_ms: int) -> None:
    assert due_at_ms(rfc_3339(time_ms).encode(), 3 * 10**14) == time_ms
    assert since_1970_ms(datetime.fromisoformat(rfc_3339(time_ms))) == time_ms


@pytest.mark.parametrize(
    ("raw", "wait_ms"),
    [
        (b"+0s", 0),
        (b"+1500ms", 1_500),
        (b"+30s", 30_000),
        (b"+5m", 300_000),
        (b"+2h", 7_200_000),
        (b"+365d", MAX_DELAY_MS),
        (b"%d" % (NOW + 7), 7),
        (b"100000000000", 100_000_000_000 - NOW),
        (b"2027-01-15T08:00:00.0079Z", 7),
        (b"2027-01-15T10:00:01+02:00", 1_000),
    ],
)
def test_a_time_is_absolute_or_relative_to_the_record(raw: bytes, wait_ms: int) -> None:
    assert due_at_ms(raw, NOW) == NOW + wait_ms


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"+s", b"+30", b"30s", b"+1w", b"-30s", b"+1.5h", b"tomorrow", b"+1234567890123ms", "+３s".encode(), b"+3s\n"),
        *(b"1800000000", b"123456789012345", b"\xff", b"2030-01-01", b"2030-01-01T08:00:00", b"2030-13-01T08:00:00Z"),
        *(b"2030-00-01T08:00:00Z", b"2030-01-00T08:00:00Z", b"2030-01-32T08:00:00Z", b"2030-02-29T08:00:00Z"),
        *(b"2100-02-29T08:00:00Z", b"2030-04-31T08:00:00Z", b"2030-01-01T24:00:00Z", b"2030-01-01T08:60:00Z"),
        *(b"2030-01-01T08:00:60Z", b"2030-01-01T08:00:00+24:00", b"2030-01-01T08:00:00+00:60", b"2030-01-01T08:00:00.Z"),
    ],
)
def test_another_value_is_refused_with_what_is_allowed(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"header deliver-at is '.*': 2030-01-31T08:00:00Z, milliseconds since 1970, or \+30s"):
        due_at_ms(raw, NOW)


@pytest.mark.parametrize("raw", [b"2028-02-29T00:00:00Z", b"2000-02-29T00:00:00Z", b"2027-12-31T23:59:59+23:59"])
def test_days_and_offsets_that_exist_are_read(raw: bytes) -> None:
    assert due_at_ms(raw, 2 * 10**12)


def test_a_year_is_the_limit() -> None:
    with pytest.raises(ValueError, match=r"header deliver-at is 2028-01-15T08:00:00.001Z: at most 365 days ahead are allowed"):
        due_at_ms(b"%d" % (NOW + MAX_DELAY_MS + 1), NOW)


def test_a_message_keeps_its_time_as_milliseconds_and_its_key_as_it_is() -> None:
    event = event_of(TOPIC, ("deliver-at", b"+1s"), ("collapse-key", b"\xff"), ("other", b"o"))
    assert isinstance(event, MessageSubmitted)
    assert set(event.message.headers) == {("other", b"o"), ("deliver-at", b"%d" % (NOW + 1_000)), ("collapse-key", b"\xff")}
    assert (deliver_at_ms(event.message), collapse_key(event.message)) == (NOW + 1_000, b"\xff")


def test_a_message_without_them_has_neither() -> None:
    message, _ = parse_message([Header(*TOPIC)], payload=b"", accepted_ms=NOW, default_message_id="m")
    assert (message.headers, deliver_at_ms(message), collapse_key(message)) == ((), None, None)


def test_of_two_headers_the_last_one_counts() -> None:
    event = event_of(TOPIC, ("deliver-at", b"nonsense"), ("deliver-at", b"+1s"))
    assert isinstance(event, MessageSubmitted)
    assert deliver_at_ms(event.message) == NOW + 1_000


def test_a_bad_time_is_refused() -> None:
    assert refusal(TOPIC, ("deliver-at", b"soon")).startswith("header deliver-at is 'soon'")
    assert refusal(TOPIC, ("deliver-at", None)).startswith("header deliver-at is ''")


@pytest.mark.parametrize("key", [b"", b"k" * 257, None])
def test_a_bad_key_is_refused(key: bytes | None) -> None:
    assert "1…256 are allowed" in refusal(TOPIC, ("collapse-key", key))


def test_a_key_of_256_bytes_is_allowed() -> None:
    assert isinstance(event_of(TOPIC, ("collapse-key", b"k" * 256)), MessageSubmitted)


@pytest.mark.parametrize(("expiration", "is_refused"), [(b"0", True), (b"1000", True), (b"1001", False)])
def test_a_message_that_would_expire_before_its_time_is_refused(expiration: bytes, is_refused: bool) -> None:
    event = event_of(TOPIC, ("deliver-at", b"+1s"), ("expiration", expiration))
    assert isinstance(event, MessageRefused) == is_refused
    if isinstance(event, MessageRefused):
        assert event.detail.endswith("would expire before deliver-at, allow it more than 1000 ms")


@pytest.mark.parametrize("time", [b"+0s", b"%d" % (NOW - 5)])
def test_a_time_that_has_come_leaves_any_expiration(time: bytes) -> None:
    assert isinstance(event_of(TOPIC, ("deliver-at", time), ("expiration", b"0")), MessageSubmitted)


def test_a_cancellation_names_a_message() -> None:
    assert event_of(("cancel-message-id", b"m-1")) == CancelRequested(message_id="m-1", position=AT)


@pytest.mark.parametrize("raw", [b"", b"m" * 513, None, b"\xff"])
def test_a_cancellation_of_no_message_id_is_refused(raw: bytes | None) -> None:
    assert refusal(("cancel-message-id", raw)).startswith("header cancel-message-id ")


def test_a_record_is_a_message_or_a_cancellation() -> None:
    detail = refusal(TOPIC, ("cancel-message-id", b"m-1"))
    assert detail == "headers mqtt-topic and cancel-message-id: a record is a message or cancels one, write two records"
