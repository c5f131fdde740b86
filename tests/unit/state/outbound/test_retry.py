"""Waits of a packet for its answer. The backoff after 0x97 is in tests/properties/test_backoff.py."""

import pytest

from state.outbound.retry import retry_wait_ms
from state.settings import SessionSettings


def test_one_duration_holds_for_every_wait() -> None:
    assert [retry_wait_ms(timeouts, SessionSettings()) for timeouts in (0, 1, 2, 1_000)] == [30_000] * 4


@pytest.mark.parametrize(("timeouts", "wait_ms"), [(0, 10), (1, 20), (2, 30), (3, 30), (10**12, 30)])
def test_a_schedule_goes_on_with_its_last_wait(timeouts: int, wait_ms: int) -> None:
    settings = SessionSettings(retry_interval_ms=10, later_retry_intervals_ms=(20, 30))
    assert retry_wait_ms(timeouts, settings) == wait_ms
