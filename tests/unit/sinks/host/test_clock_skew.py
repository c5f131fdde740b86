from typing import Any

import pytest

from sinks.host.clock_skew import ClockSkew, skew_text


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, float]] = []

    def warning(self, event: str, *, skew_s: float, **_: Any) -> None:
        self.lines.append((event, skew_s))

    info = warning


class Watched:
    def __init__(self) -> None:
        self.log, self.now_s = Log(), 0.0
        self.gauge: list[float] = []
        self.skew = ClockSkew(on_measured=self.gauge.append, log=self.log, clock_s=lambda: self.now_s)


@pytest.mark.parametrize("seconds", [0.0, 5.0, -5.0])
def test_a_clock_that_is_about_right_is_only_measured(seconds: float) -> None:
    watched = Watched()
    watched.skew.measured(seconds)
    assert (watched.gauge, watched.skew.seconds, watched.log.lines) == ([seconds], seconds, [])


@pytest.mark.parametrize("seconds", [5.1, -5.1, 7_200.0, -864_000.0])
@pytest.mark.promise("clocks-off")
def test_a_clock_that_is_off_is_logged_once_an_hour(seconds: float) -> None:
    watched = Watched()
    for _ in range(3):
        watched.skew.measured(seconds)
        watched.now_s += 1_800
    assert watched.log.lines == [("clock_off", seconds)] * 2
    watched.skew.measured(0.04)
    watched.skew.measured(0.04)
    assert watched.log.lines[2:] == [("clock_right_again", 0.0)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(7, "7 s ahead of"), (-90, "90 s behind"), (7_200, "2.0 h ahead of"), (-864_000, "10.0 days behind")]
)
def test_people_read_how_far_and_in_which_direction(seconds: float, text: str) -> None:
    assert skew_text(seconds) == f"the clock is {text} that of Kafka's brokers"
