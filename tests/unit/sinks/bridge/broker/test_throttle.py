from sinks.bridge.broker.throttle import BrokerThrottle, DialBackoff
from state.settings import BackoffSettings


def test_the_first_wait_is_initial_and_a_round_of_refusals_is_one_step() -> None:
    throttle = BrokerThrottle(BackoffSettings(initial_ms=1_000, jitter=0.0), key="b")
    assert throttle.refused(10.0) == 1_000
    assert throttle.refused(10.5) is None
    assert throttle.is_active(10.999)
    assert not throttle.is_active(11.0)
    assert throttle.refused(11.0) == 1_600


def test_an_answer_after_the_wait_resets_the_backoff_and_not_during_it() -> None:
    throttle = BrokerThrottle(BackoffSettings(initial_ms=1_000, jitter=0.0), key="b")
    throttle.refused(0.0)
    throttle.answered(0.5)
    assert throttle.refused(1.0) == 1_600
    throttle.answered(3.0)
    assert throttle.refused(3.0) == 1_000


def dialling() -> DialBackoff:
    return DialBackoff(BackoffSettings(initial_ms=1_000, jitter=0.0), lasting_ms=5_000, key="b")


def test_waits_grow_and_count_from_the_start_of_the_attempt() -> None:
    backoff = dialling()
    assert [backoff.ended(100, is_throttled=False) for _ in range(3)] == [900, 1_500, 2_460]
    assert backoff.ended(5_000, is_throttled=False) == 0  # as long as its wait would have been


def test_a_connection_that_lasted_ends_the_backoff() -> None:
    backoff = dialling()
    backoff.ended(0, is_throttled=False)
    assert backoff.ended(60_000, is_throttled=False) == 0
    assert backoff.ended(0, is_throttled=False) == 1_000


def test_an_overloaded_broker_is_dialled_after_the_first_wait() -> None:
    backoff = dialling()
    assert backoff.ended(60_000, is_throttled=True) == 1_000
    assert backoff.ended(0, is_throttled=True) == 1_600
