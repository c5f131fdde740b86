from state.records.wake_ups import INTERVAL_MS, WAKE_UP


def test_a_wake_up_says_nothing_and_comes_seldom() -> None:
    """It is no tombstone, and the engine's laziest default is four times as long."""
    assert WAKE_UP == b""
    assert 4 * INTERVAL_MS <= 1_000
