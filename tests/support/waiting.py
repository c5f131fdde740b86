"""Waits in tests for a condition: polls it often, with a deadline and a sentence for when the deadline passes.

The pauses between polls grow with the wait, because polls cost processor time that the awaited work could use.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
What = str | Callable[[], object]

DEADLINE_S: Final = 120.0
"""Many times what anything takes on a quiet machine: only a failure waits for so long."""
_SHORTEST_S, _LONGEST_S, _SHARE = 0.002, 0.05, 0.1
"""The pause between two polls is a share of the time waited so far, within bounds."""


def wait_until(
    condition: Callable[[], T], what: What, *, within_s: float = DEADLINE_S, check: Callable[[], object] = lambda: None
) -> T:
    """Returns the first true value of the condition.

    what: the error's text after the deadline; a function is called only then. check: called at each poll; raises when waiting
    is useless. Raises AssertionError at the deadline.
    """
    began = time.monotonic()
    while not (value := condition()):
        check()
        waited_s = time.monotonic() - began
        assert waited_s < within_s, _too_late(what, within_s)
        time.sleep(_pause_s(waited_s))
    return value


async def until(condition: Callable[[], T], what: What, *, within_s: float = DEADLINE_S) -> T:
    """Does what `wait_until` does, inside an event loop, which continues meanwhile."""
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < within_s, _too_late(what, within_s)
        await asyncio.sleep(_pause_s(waited_s))
    return value


def _pause_s(waited_s: float) -> float:
    return min(_LONGEST_S, max(_SHORTEST_S, _SHARE * waited_s))


def _too_late(what: What, within_s: float) -> str:
    return f"not within {within_s:g} s: {what if isinstance(what, str) else what()}"
