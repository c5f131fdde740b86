from sinks.host.broker_clock import BrokerClock

MS = 1_000_000


class Clocks:
    def __init__(self) -> None:
        self.boot_ms = 50.0
        self.wall_ns = 7
        self.brokers = BrokerClock(clock_ms=lambda: self.boot_ms, wall_ns=lambda: self.wall_ns)


def test_the_wall_clock_counts_only_until_a_brokers_time_is_known() -> None:
    clocks = Clocks()
    assert clocks.brokers.now_ns() == 7
    clocks.brokers.observe(1_000_000, round_trip_ms=10.0)
    assert clocks.brokers.now_ns() == 1_000_005 * MS, "in the middle between sending and hearing"
    clocks.wall_ns = 10**18
    clocks.boot_ms += 3
    assert clocks.brokers.now_ns() == 1_000_008 * MS


def test_a_slow_answer_does_not_replace_a_quick_one() -> None:
    clocks = Clocks()
    clocks.brokers.observe(1_000_000, round_trip_ms=10.0)
    clocks.brokers.observe(2_000_000, round_trip_ms=11.0)
    assert clocks.brokers.now_ns() == 1_000_005 * MS
    clocks.brokers.observe(2_000_000, round_trip_ms=8.0)
    assert clocks.brokers.now_ns() == 2_000_004 * MS


def test_the_estimates_error_grows_with_time() -> None:
    clocks = Clocks()
    clocks.brokers.observe(1_000_000, round_trip_ms=10.0)
    clocks.boot_ms += 1_000
    clocks.brokers.observe(1_002_000, round_trip_ms=12.1)
    assert clocks.brokers.now_ns() == 1_001_005 * MS
    clocks.brokers.observe(1_002_000, round_trip_ms=12.0)
    assert clocks.brokers.now_ns() == 1_002_006 * MS


def test_the_difference_to_the_brokers_is_known_after_an_observation() -> None:
    clocks = Clocks()
    assert clocks.brokers.skew_s() == 0
    clocks.wall_ns = 1_007_205_000 * MS
    clocks.brokers.observe(1_000_000_000, round_trip_ms=10_000.0)
    assert clocks.brokers.skew_s() == 7_200
