"""sinks.mqtt.connection.deadlines"""

from sinks.mqtt.connection.deadlines import Deadlines
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.settings import GatewaySettings

SETTINGS = GatewaySettings(
    connect_timeout_ms=10_000,
    accept_timeout_ms=30_000,
    stalled_write_timeout_ms=60_000,
    device_limits=DeviceLimits(max_keep_alive_s=1_000),
)


def accepted(keep_alive_s: int) -> Deadlines:
    deadlines = Deadlines(SETTINGS, 1_000)
    deadlines.accepted(keep_alive_s, 5_000)
    return deadlines


def test_each_step_of_the_handshake_has_its_own_time() -> None:
    deadlines = Deadlines(SETTINGS, 1_000)
    assert deadlines.handshake_ms == 11_000
    deadlines.connect_received(4_000)
    assert deadlines.handshake_ms == 34_000
    deadlines.accepted(10, 5_000)
    assert deadlines.handshake_ms is None


def test_a_device_may_be_silent_for_one_and_a_half_times_its_keep_alive() -> None:
    """[MQTT-3.1.2-22]"""
    deadlines = accepted(10)
    assert deadlines.connected_ms() == 20_000
    deadlines.last_received_ms = 8_000
    assert deadlines.connected_ms() == 23_000


def test_without_keep_alive_or_with_a_longer_one_it_has_the_longest() -> None:
    assert accepted(0).connected_ms() == 5_000 + 1_500_000
    assert accepted(1_001).connected_ms() == 5_000 + 1_500_000
    assert accepted(999).connected_ms() == 5_000 + 1_498_500


def test_the_end_of_a_pause_comes_first() -> None:
    assert accepted(10).connected_ms(5_100) == 5_100
    assert accepted(10).connected_ms(90_000) == 20_000


def test_a_device_that_takes_nothing_has_the_time_of_the_settings_or_of_its_keep_alive() -> None:
    patient, keeping_alive = accepted(0), accepted(10)
    for deadlines in (patient, keeping_alive):
        deadlines.blocked_since_ms = 6_000
        deadlines.last_received_ms = 7_000
    assert patient.connected_ms() == 66_000
    assert keeping_alive.connected_ms() == 21_000
