"""Lets a burst come in before the micro-batch that reads it.

The first record of a burst ends the pause of an engine that had nothing to do, or the pause ends by itself during a burst. A
micro-batch that starts at that moment reads a part of the burst and calls most of its sessions. A second one reads the rest, and
calls them again.
"""

from collections.abc import Callable
from typing import Final

BURST: Final = 30
"""The number of waiting records from which on something urgent is a burst."""
STEP_S: Final = 0.03
GROWTH: Final = 100
"""The number of new records in a step with which a burst goes on."""
MOST_STEPS: Final = 10


def await_burst(waiting: Callable[[], int], rest: Callable[[float], None], *, least: int = BURST) -> bool:
    """Returns when a burst has come in, at the latest after 0.3 s beside the counting; at once if there is none.

    Args:
        waiting: Returns how many records wait now.
        rest: Waits for so many seconds.
        least: The number of waiting records from which on it is a burst.

    Returns:
        True if there is a burst.
    """
    count = waiting()
    if count < least:
        return False
    for _ in range(MOST_STEPS):
        rest(STEP_S)
        before, count = count, waiting()
        if count - before < GROWTH:
            break
    return True
