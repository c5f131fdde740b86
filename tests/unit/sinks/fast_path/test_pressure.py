"""sinks.fast_path.pressure"""

import pytest

from sinks.fast_path.pressure import Pressure
from sinks.fast_path.settings import FastPathSettings

SETTINGS = FastPathSettings(pressure_loop_lag_ms=50, pressure_unconfirmed=9, pressure_offers=9, pressure_hold_ms=500)


@pytest.mark.parametrize("fields", [{"loop_lag_ms": 51.0}, {"unconfirmed": 10}, {"offers": 10}], ids=lambda fields: min(fields))
def test_each_sign_alone_is_pressure_for_a_while(fields: dict[str, int]) -> None:
    pressure = Pressure(SETTINGS)
    assert not pressure.is_high(1_000)
    pressure.observe(1_000, **fields)
    assert pressure.is_high(1_000)
    pressure.observe(1_100)
    assert pressure.is_high(1_499)
    assert not pressure.is_high(1_500)


def test_at_its_limits_nothing_is_pressure() -> None:
    pressure = Pressure(SETTINGS)
    pressure.observe(1_000, loop_lag_ms=50.0, unconfirmed=9, offers=9)
    assert not pressure.is_high(1_000)


def test_as_long_as_it_lasts_it_is_pressure() -> None:
    pressure = Pressure(SETTINGS)
    pressure.observe(1_000, offers=10)
    pressure.observe(1_400, offers=10)
    assert pressure.is_high(1_899)
    assert not pressure.is_high(1_900)
