from collections import Counter

from sinks.log_throttle import LogThrottle, RefusalLog


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.now_s = 5.0

    def write(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    def pop(self) -> list[tuple[str, dict[str, object]]]:
        lines, self.lines = self.lines, []
        return lines


def test_ten_lines_a_minute_and_then_the_number_left_out() -> None:
    log = Log()
    throttle = LogThrottle(log.write, "refused", "more_refused", clock_s=lambda: log.now_s)
    for number in range(25):
        throttle.line(number=number)
    log.now_s = 64.999
    throttle.flush()
    assert log.pop() == [("refused", {"number": number}) for number in range(10)]
    log.now_s = 65.0
    throttle.flush()
    throttle.line(number=25)
    assert log.pop() == [("more_refused", {"count": 15}), ("refused", {"number": 25})]
    log.now_s = 190.0
    throttle.flush()
    assert log.pop() == []


def test_a_flood_of_a_day_makes_a_small_log() -> None:
    log = Log()
    throttle = LogThrottle(log.write, "refused", "more_refused", clock_s=lambda: log.now_s)
    for _ in range(86_400):
        log.now_s += 1
        throttle.line(number=1)
    assert len(log.pop()) <= 11 * 24 * 60 + 10


def test_some_lines_are_wanted_once_a_minute() -> None:
    log = Log()
    throttle = LogThrottle(log.write, "cannot", "still_cannot", max_lines=1, clock_s=lambda: log.now_s)
    for _ in range(120):
        throttle.line()
        log.now_s += 1
    assert log.pop() == [("cannot", {}), ("still_cannot", {"count": 59}), ("cannot", {})]


def test_every_refusal_is_counted_and_texts_are_cut() -> None:
    log, counter = Log(), Counter[str]()
    refusals = RefusalLog(counter, log.write, "refused", "more", label="step", clock_s=lambda: log.now_s)
    for _ in range(25):
        refusals.refused("TLS", "192.0.2.1", reason="x" * 500)
    assert log.pop() == [("refused", {"step": "TLS", "address": "192.0.2.1", "reason": "x" * 200})] * 10
    assert counter == {"TLS": 25}
