import json

import pytest

from state.commands import ClearThrottle, SetThrottle
from state.records.throttle import TOO_MANY_REQUESTS, Throttle, decode_throttle, encode_throttle, partition_key, throttle_record


def test_a_throttle_says_code_reason_and_time() -> None:
    value = encode_throttle("long queue", 7)
    expected = {"code": TOO_MANY_REQUESTS, "reason": "long queue", "since_ms": 7, "is_progressing": False}
    assert json.loads(value) == expected
    assert decode_throttle(value) == Throttle(reason="long queue", since_ms=7)


@pytest.mark.parametrize("is_progressing", [False, True])
def test_a_throttle_says_whether_its_client_catches_up(is_progressing: bool) -> None:
    record = throttle_record("throttle", "c", SetThrottle(since_ms=7, reason="behind", is_progressing=is_progressing))
    assert record.key == b"c"
    assert record.value is not None
    assert decode_throttle(record.value) == Throttle(reason="behind", since_ms=7, is_progressing=is_progressing)
    assert throttle_record("throttle", "c", ClearThrottle()).value is None


def test_the_key_of_a_partition_is_no_client_id() -> None:
    assert partition_key("inflight.uplink", 12) == "\x00partition\x00inflight.uplink:12"


def test_unknown_fields_are_ignored_and_missing_fields_have_defaults() -> None:
    assert decode_throttle(b'{"new": 1}') == Throttle()


def test_what_cannot_be_read_still_throttles() -> None:
    assert decode_throttle(b"\xff") == Throttle(reason=r"unreadable: b'\xff'")
    assert decode_throttle(b'{"reason":"\xff"}').reason.startswith("unreadable")
    assert decode_throttle(b'{"new":' + b"[" * 100_000).reason.startswith("unreadable")
