import pytest

from sinks.mqtt.limits.adaptive_rate import FairShare
from sinks.mqtt.limits.settings import DeviceLimits


def share_of(max_delay_ms: int) -> FairShare:
    return FairShare(DeviceLimits(max_delay_ms=max_delay_ms))


def beat(share: FairShare, *append_ms: float, loop_lag_ms: float = 0.0) -> float:
    share.handed_over(len(append_ms))
    for one in append_ms:
        share.waited(one)
    share.beat(loop_lag_ms)
    return share.share


def test_the_share_falls_while_the_loop_is_late_and_comes_back() -> None:
    share = share_of(20)
    assert beat(share, 1.0, loop_lag_ms=20.0) == 1.0
    falling = [beat(share, 1.0, loop_lag_ms=20.1) for _ in range(8)]
    assert falling == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 64, 1 / 64]
    rising = []
    while share.share < 1.0:
        rising.append(beat(share, 1.0))
    assert rising == sorted(rising)
    assert 400 < len(rising) < 440, "twenty to twenty-two seconds"


def test_nobody_is_slowed_down_when_no_modest_device_has_to_wait() -> None:
    share = share_of(5)
    for _ in range(100):
        assert beat(share, loop_lag_ms=50.0) == 1.0
    assert beat(share, 1.0, loop_lag_ms=50.0) == 0.5
    for _ in range(18):
        beat(share, loop_lag_ms=50.0)
    assert share.share == 1 / 64, "it has just said something"
    beat(share, loop_lag_ms=50.0)
    assert beat(share, loop_lag_ms=50.0) == 1.0, "it has said nothing for a second"


def test_who_waits_for_a_kafka_that_does_not_answer_is_there() -> None:
    share = share_of(5)
    beat(share, 1.0)
    share.handed_over(2)
    falling = [beat(share, loop_lag_ms=50.0) for _ in range(100)]
    assert falling[-1] == 1 / 64
    share.waited(None)
    for _ in range(100):
        beat(share, loop_lag_ms=50.0)
    assert share.share == 1 / 64, "the other one waits"
    share.waited(None)
    for _ in range(20):
        beat(share, loop_lag_ms=50.0)
    assert share.share == 1.0


@pytest.mark.parametrize(("late", "share"), [(1, 1.0), (2, 1.0), (3, 0.5), (10, 0.5)])
def test_it_falls_when_more_than_one_in_fifty_of_a_second_is_late(late: int, share: float) -> None:
    fair = share_of(5)
    for _ in range(100):
        beat(fair, *[1.0] * 6)
    assert beat(fair, *[1.0] * (10 - late), *[7.0] * late) == share
    assert beat(fair, *[1.0] * 6) == pytest.approx(min(1.0, share * 1.01)), "it is looked at what is new"


def test_late_is_what_takes_longer_than_it_does_when_there_is_little() -> None:
    share = share_of(20)
    for append_ms in ([300.0], [300.0], [290.0, 330.0], [], [300.0]):
        assert beat(share, *append_ms) == 1.0, "it always takes as long"
    beat(share, 5.0)
    assert beat(share, 25.0) == 1.0
    assert beat(share, 26.0) == 0.5
    for _ in range(20 * 60 * 3):
        beat(share, 50.0)
    assert share.share == 1.0, "for three minutes: that is what it takes now"


def test_what_takes_long_anyway_may_take_three_times_as_long() -> None:
    """A Kafka that is some milliseconds away takes some more or less each time."""
    share = share_of(5)
    for append_ms in (8.0, 5.0, 9.9, 7.0, 15.0):
        assert beat(share, append_ms) == 1.0
    assert beat(share, 15.5) == 0.5


def test_0_is_no_share() -> None:
    share = share_of(0)
    beat(share, 0.0)
    assert beat(share, 1_000.0, loop_lag_ms=1_000.0) == 1.0
    share.take(DeviceLimits(max_delay_ms=1))
    assert beat(share, 1.0, loop_lag_ms=2.0) == 0.5
