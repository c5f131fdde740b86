import pytest

from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.settings import DeviceLimits


def limiter_for(max_delay_ms: int) -> AdaptiveRateLimiter:
    return AdaptiveRateLimiter(DeviceLimits(max_delay_ms=max_delay_ms))


def step(limiter: AdaptiveRateLimiter, *append_ms: float, loop_lag_ms: float = 0.0) -> float:
    """Passes 50 ms in which records were confirmed after these times. Returns the share."""
    limiter.appended(len(append_ms))
    for one in append_ms:
        limiter.confirmed(one)
    limiter.observe_lag(loop_lag_ms)
    return limiter.share


def test_the_share_falls_while_the_loop_is_late_and_recovers() -> None:
    limiter = limiter_for(20)
    assert step(limiter, 1.0, loop_lag_ms=20.0) == 1.0
    falling = [step(limiter, 1.0, loop_lag_ms=20.1) for _ in range(8)]
    assert falling == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 64, 1 / 64]
    rising = []
    while limiter.share < 1.0:
        rising.append(step(limiter, 1.0))
    assert rising == sorted(rising)
    assert 400 < len(rising) < 440, "twenty to twenty-two seconds"


def test_nothing_is_reduced_when_no_low_rate_device_waits() -> None:
    limiter = limiter_for(5)
    for _ in range(100):
        assert step(limiter, loop_lag_ms=50.0) == 1.0
    assert step(limiter, 1.0, loop_lag_ms=50.0) == 0.5
    for _ in range(18):
        step(limiter, loop_lag_ms=50.0)
    assert limiter.share == 1 / 64, "its last record is less than a second old"
    step(limiter, loop_lag_ms=50.0)
    assert step(limiter, loop_lag_ms=50.0) == 1.0, "it has been silent for a second"


def test_appends_in_flight_count_as_waiting() -> None:
    limiter = limiter_for(5)
    step(limiter, 1.0)
    limiter.appended(2)
    falling = [step(limiter, loop_lag_ms=50.0) for _ in range(100)]
    assert falling[-1] == 1 / 64
    limiter.confirmed(None)
    for _ in range(100):
        step(limiter, loop_lag_ms=50.0)
    assert limiter.share == 1 / 64, "the other one waits"
    limiter.confirmed(None)
    for _ in range(20):
        step(limiter, loop_lag_ms=50.0)
    assert limiter.share == 1.0


@pytest.mark.parametrize(("late", "share"), [(1, 1.0), (2, 1.0), (3, 0.5), (10, 0.5)])
def test_it_falls_when_more_than_one_in_fifty_of_a_second_is_late(late: int, share: float) -> None:
    limiter = limiter_for(5)
    for _ in range(100):
        step(limiter, *[1.0] * 6)
    assert step(limiter, *[1.0] * (10 - late), *[7.0] * late) == share
    assert step(limiter, *[1.0] * 6) == pytest.approx(min(1.0, share * 1.01)), "only new records count"


def test_late_means_slower_than_with_few_records() -> None:
    limiter = limiter_for(20)
    for append_ms in ([300.0], [300.0], [290.0, 330.0], [], [300.0]):
        assert step(limiter, *append_ms) == 1.0, "it always takes as long"
    step(limiter, 5.0)
    assert step(limiter, 25.0) == 1.0
    assert step(limiter, 26.0) == 0.5
    for _ in range(20 * 60 * 3):
        step(limiter, 50.0)
    assert limiter.share == 1.0, "after three minutes this is the new floor"


def test_a_slow_kafka_may_take_three_times_as_long() -> None:
    """A Kafka that is some milliseconds away takes some more or less each time."""
    limiter = limiter_for(5)
    for append_ms in (8.0, 5.0, 9.9, 7.0, 15.0):
        assert step(limiter, append_ms) == 1.0
    assert step(limiter, 15.5) == 0.5


def test_0_turns_the_limiter_off() -> None:
    limiter = limiter_for(0)
    step(limiter, 0.0)
    assert step(limiter, 1_000.0, loop_lag_ms=1_000.0) == 1.0
    limiter.reconfigure(DeviceLimits(max_delay_ms=1))
    assert step(limiter, 1.0, loop_lag_ms=2.0) == 0.5


def test_a_light_use_of_the_rates_is_not_slowed_down_below_a_quarter() -> None:
    limiter = limiter_for(20)
    for _ in range(8):
        step(limiter, 1.0, loop_lag_ms=21.0)
    assert (limiter.share, limiter.packet_share) == (1 / 64, 1 / 4)
    limiter.used(0.4)
    step(limiter, 1.0, loop_lag_ms=21.0)
    assert limiter.packet_share == 1 / 64
    for _ in range(10):
        step(limiter, 1.0, loop_lag_ms=21.0)
    assert limiter.packet_share == 1 / 4, "0.24 of one device's rates in the last second"
