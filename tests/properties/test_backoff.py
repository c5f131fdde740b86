"""protocol.md, section 5, the backoff that the session and the Producer share."""

from hypothesis import given
from hypothesis import strategies as st

from state.outbound.retry import backoff_wait_ms
from state.settings import BackoffSettings

DEFAULT = BackoffSettings()
keys = st.text(max_size=30)
retries = st.integers(1, 10_000)


@given(keys)
def test_the_first_wait_is_exactly_the_initial_one(key: str) -> None:
    assert backoff_wait_ms(1, DEFAULT, jitter_key=key) == 1_000


@given(st.integers(2, 11), keys)
def test_the_nth_wait_is_1_6_to_the_n_within_20_percent(retry: int, key: str) -> None:
    nominal_ms = min(1_000 * 1.6 ** (retry - 1), 120_000)
    assert 0.8 * nominal_ms - 1 <= backoff_wait_ms(retry, DEFAULT, jitter_key=key) <= 1.2 * nominal_ms + 1


@given(st.integers(12, 10**9), keys)
def test_at_the_cap_the_wait_stays_between_96_and_144_seconds(retry: int, key: str) -> None:
    """The jitter comes after the cap."""
    assert 96_000 <= backoff_wait_ms(retry, DEFAULT, jitter_key=key) <= 144_000


@given(retries, keys)
def test_equal_keys_wait_equally_long(retry: int, key: str) -> None:
    """A re-executed micro-batch must not wait for another time."""
    assert backoff_wait_ms(retry, DEFAULT, jitter_key=key) == backoff_wait_ms(retry, DEFAULT, jitter_key=key)


def test_the_jitter_uses_its_whole_range() -> None:
    waits = [backoff_wait_ms(100, DEFAULT, jitter_key=f"client-{n}/m/1") for n in range(2_000)]
    assert min(waits) < 97_000
    assert max(waits) > 143_000
    assert abs(sum(waits) / len(waits) - 120_000) < 1_500


@given(retries, keys, st.integers(1, 10**6), st.floats(1.0, 10.0), st.floats(0.0, 1.0), st.integers(1, 10**7))
def test_no_wait_is_negative_or_longer_than_the_cap_and_its_jitter(
    retry: int, key: str, initial_ms: int, multiplier: float, jitter: float, max_ms: int
) -> None:
    settings = BackoffSettings(initial_ms=initial_ms, multiplier=multiplier, jitter=jitter, max_ms=max(initial_ms, max_ms))
    wait_ms = backoff_wait_ms(retry, settings, jitter_key=key)
    assert 0 <= wait_ms <= settings.max_ms * (1 + jitter) + 1


def test_without_jitter_the_waits_are_the_documented_ones() -> None:
    settings = BackoffSettings(jitter=0.0)
    assert [backoff_wait_ms(n, settings, jitter_key="") for n in range(1, 14)] == [
        1_000,
        1_600,
        2_560,
        4_096,
        6_554,
        10_486,
        16_777,
        26_844,
        42_950,
        68_719,
        109_951,
        120_000,
        120_000,
    ]
