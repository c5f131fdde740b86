import json

from state.records.throttle import TOO_MANY_REQUESTS, Throttle, decode_throttle, encode_throttle


def test_a_throttle_says_code_reason_and_time() -> None:
    value = encode_throttle("long queue", 7)
    assert json.loads(value) == {"code": TOO_MANY_REQUESTS, "reason": "long queue", "since_ms": 7}
    assert decode_throttle(value) == Throttle(reason="long queue", since_ms=7)


def test_unknown_fields_are_ignored_and_missing_fields_have_defaults() -> None:
    assert decode_throttle(b'{"new": 1}') == Throttle()


def test_what_cannot_be_read_still_throttles() -> None:
    assert decode_throttle(b"\xff") == Throttle(reason=r"unreadable: b'\xff'")
    assert decode_throttle(b'{"reason":"\xff"}').reason.startswith("unreadable")
    assert decode_throttle(b'{"new":' + b"[" * 100_000).reason.startswith("unreadable")
