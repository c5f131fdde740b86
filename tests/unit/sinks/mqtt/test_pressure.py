import asyncio
import time

import pytest

from sinks.mqtt.pressure import LoopLagMonitor, Pressure
from sinks.routing.settings import FastPathSettings

SETTINGS = FastPathSettings(pressure_loop_lag_ms=50, pressure_unconfirmed=9, pressure_offers=9, pressure_hold_ms=500)


@pytest.mark.parametrize("fields", [{"unconfirmed": 10}, {"offers": 10}], ids=lambda fields: min(fields))
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
    pressure.observe(1_000, unconfirmed=9, offers=9)
    for now_ms in range(1_000, 4_000, 100):
        pressure.observe_lag(now_ms, 50.0)
    assert not pressure.is_high(1_000)


def test_as_long_as_it_lasts_it_is_pressure() -> None:
    pressure = Pressure(SETTINGS)
    pressure.observe(1_000, offers=10)
    pressure.observe(1_400, offers=10)
    assert pressure.is_high(1_899)
    assert not pressure.is_high(1_900)


def test_an_event_loop_that_is_late_is_pressure_when_that_lasts() -> None:
    pressure = Pressure(SETTINGS)
    for now_ms in 1_000, 1_100, 1_999:
        pressure.observe_lag(now_ms, 51.0)
        assert not pressure.is_high(now_ms)
    pressure.observe_lag(2_000, 51.0)
    assert pressure.is_high(2_499)
    assert not pressure.is_high(2_500)


def test_an_event_loop_that_is_on_time_now_and_then_is_no_pressure() -> None:
    pressure = Pressure(SETTINGS)
    for now_ms in range(1_000, 9_000, 500):
        pressure.observe_lag(now_ms, 9_999.0)
        pressure.observe_lag(now_ms + 400, 0.0)
        pressure.observe(now_ms + 450)
        assert not pressure.is_high(now_ms + 450)


async def test_a_loop_that_was_held_up_is_late_by_as_much() -> None:
    late_ms: list[float] = []
    was_called = asyncio.Event()

    def observed(milliseconds: float) -> None:
        late_ms.append(milliseconds)
        was_called.set()

    monitor = LoopLagMonitor(observed)
    monitor.start()
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is to be late
    await was_called.wait()
    monitor.stop()
    calls = len(late_ms)
    await asyncio.sleep(0.1)
    assert len(late_ms) == calls, "it has stopped"
    assert late_ms[0] > 200


async def test_a_monitor_that_never_started_can_be_stopped() -> None:
    LoopLagMonitor(lambda late_ms: None).stop()
