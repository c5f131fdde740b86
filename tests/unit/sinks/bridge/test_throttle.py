"""Waits after the broker's 0x97."""

from sinks.bridge.throttle import BrokerThrottle
from state.settings import BackoffSettings


def test_the_first_wait_is_exactly_initial_and_one_round_of_refusals_is_one_step() -> None:
    throttle = BrokerThrottle(BackoffSettings(initial_ms=1_000, jitter=0.0), key="b")
    assert throttle.refused(10.0) == 1_000
    assert throttle.refused(10.5) is None
    assert throttle.holds(10.999)
    assert not throttle.holds(11.0)
    assert throttle.refused(11.0) == 1_600


def test_an_answer_of_the_broker_resets_the_backoff_but_not_one_that_comes_during_the_wait() -> None:
    throttle = BrokerThrottle(BackoffSettings(initial_ms=1_000, jitter=0.0), key="b")
    throttle.refused(0.0)
    throttle.answered(0.5)
    assert throttle.refused(1.0) == 1_600
    throttle.answered(3.0)
    assert throttle.refused(3.0) == 1_000
