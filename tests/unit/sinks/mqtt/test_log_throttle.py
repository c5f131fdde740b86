"""sinks.mqtt.log_throttle"""

from sinks.mqtt.log_throttle import LimitedLog


def test_ten_lines_a_second_and_then_how_many_are_missing() -> None:
    said: list[tuple[str, dict[str, object]]] = []
    log = LimitedLog(lambda event, **fields: said.append((event, fields)), "refused", "more_refused")
    for number in range(25):
        log.line(5_000, number=number)
    log.catch_up(5_999)
    assert said == [("refused", {"number": number}) for number in range(10)]
    said.clear()
    log.catch_up(6_000)
    log.line(6_001, number=25)
    assert said == [("more_refused", {"count": 15}), ("refused", {"number": 25})]
    said.clear()
    log.catch_up(9_000)
    assert said == []
