import pytest

from state.records.settings import RecordLimits


def test_a_record_takes_the_largest_message_with_its_headers_twice() -> None:
    RecordLimits(max_payload_bytes=100, max_headers_bytes=10, max_record_bytes=120)
    with pytest.raises(ValueError, match="max_record_bytes is 119, but a message of the largest size needs 120"):
        RecordLimits(max_payload_bytes=100, max_headers_bytes=10, max_record_bytes=119)


def test_events_may_be_larger_than_what_is_written_now() -> None:
    limits = RecordLimits(max_payload_bytes=100, max_headers_bytes=10, max_record_bytes=120)
    assert (limits.max_message_record_bytes, limits.max_event_record_bytes) == (120, 480)
