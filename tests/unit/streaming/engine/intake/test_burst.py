from collections.abc import Iterator

import pytest

from streaming.engine.intake.burst import BURST, GROWTH, MOST_STEPS, STEP_S, await_burst


class Waiting:
    """Says how many records wait: one count after the other, and the last one for ever."""

    def __init__(self, *counts: int) -> None:
        self._counts = iter(counts)
        self._last = 0
        self.rests: list[float] = []

    def __call__(self) -> int:
        self._last = next(self._counts, self._last)
        return self._last


def awaited(waiting: Waiting) -> bool:
    return await_burst(waiting, waiting.rests.append)


@pytest.mark.parametrize("count", [0, 1, BURST - 1])
def test_a_few_records_do_not_wait(count: int) -> None:
    waiting = Waiting(count, 20_000)
    assert not awaited(waiting)
    assert not waiting.rests


def test_what_is_a_burst_may_be_said() -> None:
    waiting = Waiting(BURST, BURST + 1)
    assert not await_burst(waiting, waiting.rests.append, least=BURST + 1)
    assert await_burst(waiting, waiting.rests.append, least=BURST + 1)


def test_a_burst_is_awaited_until_it_has_come_in() -> None:
    waiting = Waiting(BURST, BURST + GROWTH, BURST + 9 * GROWTH, BURST + 10 * GROWTH - 1, 20_000)
    assert awaited(waiting)
    assert waiting.rests == [STEP_S] * 3


def test_records_that_come_for_ever_are_not_awaited() -> None:
    def growing() -> Iterator[int]:
        count = BURST
        while True:
            yield count
            count += GROWTH

    counts, rests = growing(), []
    assert await_burst(lambda: next(counts), rests.append)
    assert len(rests) == MOST_STEPS
