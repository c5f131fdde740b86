"""The console measures the system while a page is open."""

import time
from dataclasses import replace

from inflight.console.live import WINDOW_S, Live
from inflight.status.measurements import KafkaStatus, ProcessStatus, TopicStatus
from tests.support.waiting import wait_until
from tests.unit.inflight.console.console_client import FakeObserver
from tests.unit.inflight.status.test_findings import KAFKA, WELL


def kafka_at(measured_s: float, messages: int) -> KafkaStatus:
    return replace(KAFKA, measured_s=measured_s, topics=(TopicStatus(name="inflight.messages", end=messages, waiting=0),))


def test_nothing_is_measured_before_a_page_is_requested() -> None:
    seen = FakeObserver()
    with Live(seen, interval_s=0.01) as live:
        time.sleep(0.05)
        assert seen.looks == 0
        assert live.view().newest is None
        wait_until(lambda: live.view().newest is not None, "a look")
    looks = seen.looks
    time.sleep(0.05)
    assert seen.looks == looks, "it ends with its block"


def test_a_failed_measurement_is_followed_by_others() -> None:
    class Fails(FakeObserver):
        def probe_kafka(self) -> KafkaStatus:
            if self.looks == 0:
                self.looks = 1
                raise RuntimeError("a bug")
            return super().probe_kafka()

    with Live(Fails(), interval_s=0.01) as live:
        wait_until(lambda: live.view().newest is not None, "a look")


def test_rates_are_between_two_measurements_over_all_processes() -> None:
    gateways = tuple(ProcessStatus(name="gateway", address=f"g:{n}", values={"x": n}) for n in (1, 2))
    seen = FakeObserver(replace(WELL, kafka=kafka_at(10.0, 100), processes=gateways))
    live = Live(seen)
    live.update()
    seen.seen = replace(seen.seen, kafka=kafka_at(12.0, 160))
    live.update()
    newest = live.view().newest
    assert newest is not None
    assert newest.records == {"inflight.messages": 30.0}
    assert newest.metrics == {"x": 3.0}


def test_measurements_are_kept_while_plots_show_them(monkeypatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("inflight.console.live.time.time", lambda: now_s)
    live = Live(FakeObserver())
    live.update()
    now_s += WINDOW_S - 1
    live.update()
    assert len(live.view().samples) == 2
    now_s += 2
    live.update()
    assert len(live.view().samples) == 2
    assert live.view().found == ()
