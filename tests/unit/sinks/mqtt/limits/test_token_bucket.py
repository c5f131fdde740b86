from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.limits.token_bucket import TokenBucket


@given(st.integers(1, 50), st.lists(st.integers(0, 300), max_size=200))
def test_in_no_second_more_is_admitted_than_two_seconds_allow(per_s: int, gaps_ms: list[int]) -> None:
    """A full bucket and a second of filling."""
    bucket, now_ms, admitted = TokenBucket(per_s, 0), 0, []
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        if bucket.admit(now_ms):
            admitted.append(now_ms)
    for start_ms in admitted:
        assert sum(start_ms <= at_ms < start_ms + 1_000 for at_ms in admitted) <= 2 * per_s


def test_a_steady_rate_is_never_refused() -> None:
    bucket = TokenBucket(10, 0)
    assert all(bucket.admit(number * 100) for number in range(1_000))


def test_no_limit_is_no_limit() -> None:
    bucket = TokenBucket(0, 0)
    assert all(bucket.admit(0) for _ in range(10_000))
    assert bucket.ready_ms(7) == 7


def test_a_smaller_bucket_admits_smaller_bursts() -> None:
    bucket = TokenBucket(100, 0, burst=2)
    assert [bucket.admit(0) for _ in range(3)] == [True, True, False]
    assert [bucket.admit(60_000) for _ in range(3)] == [True, True, False]


@given(st.integers(1, 5_000), st.integers(0, 10_000), st.integers(1, 100), st.sampled_from([1.0, 0.9, 1 / 64]))
def test_there_is_a_token_at_ready_ms(per_s: int, now_ms: int, burst: int, share: float) -> None:
    bucket = TokenBucket(per_s, 0, burst=burst)
    while bucket.admit(now_ms):
        pass
    ready_ms = bucket.ready_ms(now_ms, share)
    assert ready_ms > now_ms
    assert bucket.ready_ms(ready_ms, share) == ready_ms
    assert bucket.admit(ready_ms)
