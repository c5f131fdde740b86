from sinks.mqtt.access.backoff import FailedLogins
from sinks.mqtt.settings import LoginSettings

SETTINGS = LoginSettings(max_failures=3, failure_wait_ms=100, max_failure_wait_ms=1_000)


def wait_ms(failed: FailedLogins, address: str, now_ms: int) -> int:
    return next(ms for ms in range(10_000) if not failed.is_blocked(address, now_ms + ms))


def test_the_wait_begins_with_the_third_failure_and_doubles() -> None:
    failed = FailedLogins(SETTINGS)
    now_ms, waits = 1_000, []
    for _ in range(8):
        failed.record_failure("192.0.2.1", now_ms)
        waits.append(wait_ms(failed, "192.0.2.1", now_ms))
        now_ms += waits[-1]
    assert waits == [0, 0, 100, 200, 400, 800, 1_000, 1_000]
    assert not failed.is_blocked("192.0.2.2", 1_000)


def test_success_and_a_quiet_time_reset_the_count() -> None:
    failed = FailedLogins(SETTINGS)
    for _ in range(3):
        failed.record_failure("a", 0)
    failed.record_success("a")
    assert not failed.is_blocked("a", 0)
    for _ in range(5):
        failed.record_failure("a", 0)
    failed.record_failure("a", 0 + 400 + 1_001)
    assert not failed.is_blocked("a", 1_401)


def test_a_host_cannot_evade_it_with_another_ipv6_address() -> None:
    failed = FailedLogins(SETTINGS)
    for number in range(3):
        failed.record_failure(f"2001:db8::{number}", 0)
    assert failed.is_blocked("2001:db8::ffff", 0)
    assert failed.is_blocked("2001:db8::ffff%eth0", 0)
    assert not failed.is_blocked("2001:db8:0:1::1", 0)


def test_0_failures_means_no_wait() -> None:
    failed = FailedLogins(LoginSettings(max_failures=0))
    for _ in range(100):
        failed.record_failure("a", 0)
    assert not failed.is_blocked("a", 0)


def test_the_table_is_bounded_and_forgets_the_oldest() -> None:
    failed = FailedLogins(LoginSettings(max_failures=1))
    for number in range(10_001):
        failed.record_failure(str(number), 0)
    assert len(failed._failures) == 10_000
    assert not failed.is_blocked("0", 0)
    assert failed.is_blocked("1", 0)
