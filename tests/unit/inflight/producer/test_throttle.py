"""The table of throttled clients."""

from inflight.producer.throttle import ThrottleTable
from state.records.throttle import Throttle


def test_a_client_is_throttled_from_its_record_to_its_tombstone() -> None:
    table = ThrottleTable()
    table.apply(b"slow", b'{"code": 530, "reason": "queue", "since_ms": 5}')
    assert table.of("slow") == Throttle(code=530, reason="queue", since_ms=5)
    assert table.of("other") is None
    table.apply(b"slow", None)
    assert table.of("slow") is None


def test_a_star_throttles_everybody() -> None:
    table = ThrottleTable()
    table.apply(b"*", b'{"reason": "disk"}')
    assert table.of("anyone") == Throttle(reason="disk")


def test_a_tombstone_of_an_unknown_client_changes_nothing() -> None:
    table = ThrottleTable()
    table.apply(b"nobody", None)
    assert table.of("nobody") is None


def test_fields_of_a_newer_version_are_ignored_and_an_unreadable_record_still_throttles() -> None:
    table = ThrottleTable()
    table.apply(b"new", b'{"code": 530, "weight": 3}')
    table.apply(b"broken", b"{")
    assert table.of("new") == Throttle()
    broken = table.of("broken")
    assert broken is not None
    assert "unreadable" in broken.reason


def test_reading_the_topic_again_forgets_what_is_not_in_it_any_more() -> None:
    table = ThrottleTable()
    table.apply(b"old", b"{}")
    table.replace([(b"new", b"{}"), (b"gone", b"{}"), (b"gone", None)])
    assert table.of("old") is None
    assert table.of("gone") is None
    assert table.of("new") is not None
