import time
from dataclasses import replace

from inflight.console.live import DEAD_LETTERS_S, WINDOW_S, Live
from inflight.status.measurements import KafkaStatus, ProcessStatus, TopicStatus
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.inflight.console.console_client import FakeObserver
from tests.unit.inflight.status.test_findings import KAFKA, WELL


def kafka_at(measured_s: float, messages: int) -> KafkaStatus:
    return replace(KAFKA, measured_s=measured_s, topics=(TopicStatus(name="inflight.messages", end=messages, waiting=0),))


def test_it_measures_in_the_background_and_often_for_an_open_page() -> None:
    seen = FakeObserver()
    with Live(seen, interval_s=0.01, idle_interval_s=DEADLINE_S) as live:
        wait_until(lambda: seen.looks == 1, "a look although no page is open")
        live.view()
        wait_until(lambda: seen.looks > 5, "the pause ends when a page is opened")
    looks = seen.looks
    time.sleep(0.05)
    assert seen.looks == looks, "it ends with its block"


def test_dead_letters_of_the_last_hour_are_counted(monkeypatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("inflight.console.live.time.time", lambda: now_s)
    seen = FakeObserver()
    live = Live(seen, dead_letters_topic="inflight.messages")

    def counted(messages: int) -> tuple[int, float] | None:
        seen.seen = replace(WELL, kafka=kafka_at(now_s, messages))
        live.update()
        dead = live.view().dead_letters
        return None if dead is None else (dead.count, dead.within_s)

    assert counted(100) is None
    now_s += 600
    assert counted(140) == (40, 600.0)
    now_s += 3_400
    assert counted(141) == (1, 3_400.0) or counted(141) == (41, 4_000.0)
    now_s += DEAD_LETTERS_S
    assert counted(141)[0] == 0
    now_s += 1
    assert counted(3) is None, "the topic was made anew"


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
