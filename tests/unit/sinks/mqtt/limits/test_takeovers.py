from sinks.mqtt.limits.takeovers import FREE, Takeovers


def contested_by(takeovers: int, *, every_ms: int = 100) -> tuple[Takeovers, int]:
    """Returns the object and the time of the last takeover."""
    table, now_ms = Takeovers(), 0
    for number in range(takeovers):
        now_ms = number * every_ms
        table.record("c", now_ms)
    return table, now_ms


def test_a_device_may_take_its_own_connection_over() -> None:
    table, now_ms = contested_by(FREE)
    assert table.wait_ms("c", now_ms) == 0
    assert table.contested(now_ms) == 0


def test_each_further_takeover_doubles_the_wait() -> None:
    waits = []
    for takeovers in range(FREE + 1, FREE + 9):
        table, now_ms = contested_by(takeovers)
        waits.append(table.wait_ms("c", now_ms))
    assert waits == [1_000, 2_000, 4_000, 8_000, 8_000, 8_000, 8_000, 8_000]


def test_the_wait_counts_from_the_takeover_and_for_one_client() -> None:
    table, now_ms = contested_by(FREE + 2)
    assert table.wait_ms("c", now_ms + 1_500) == 500
    assert table.wait_ms("c", now_ms + 2_000) == 0
    assert table.wait_ms("other", now_ms) == 0


def test_only_a_takeover_that_brings_a_wait_is_reported() -> None:
    table = Takeovers()
    assert [table.record("c", number) for number in range(FREE + 2)] == [*[0] * FREE, FREE + 1, FREE + 2]


def test_takeovers_that_are_far_apart_are_no_contest() -> None:
    table, now_ms = contested_by(2 * FREE, every_ms=60_001)
    assert table.wait_ms("c", now_ms) == 0


def test_after_a_quiet_minute_nothing_is_contested() -> None:
    table, now_ms = contested_by(FREE + 2)
    assert table.contested(now_ms + 62_000) == 1
    assert table.contested(now_ms + 62_001) == 0
    assert table.record("c", now_ms + 62_001) == 0


def test_only_the_last_clients_are_kept() -> None:
    table, now_ms = contested_by(FREE + 6)
    for number in range(10_000):
        table.record(f"other-{number}", now_ms)
    assert table.wait_ms("c", now_ms) == 0
