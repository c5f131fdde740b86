"""How tests wait: for a condition, looked at often, with a deadline and a sentence for when it passes."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
What = str | Callable[[], object]

DEADLINE_S: Final = 120.0
"""Many times what anything takes here on a quiet machine: only a failure waits for so long."""
_LOOK_EVERY_S: Final = 0.005


def wait_until(
    condition: Callable[[], T], what: What, *, within_s: float = DEADLINE_S, check: Callable[[], object] = lambda: None
) -> T:
    """The first true value of the condition.

    what: said when the deadline passes; a function is called only then. check: called at each look; raises when waiting is
    useless. Raises AssertionError at the deadline.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        check()
        assert time.monotonic() < deadline, _too_late(what, within_s)
        time.sleep(_LOOK_EVERY_S)
    return value


async def until(condition: Callable[[], T], what: What, *, within_s: float = DEADLINE_S) -> T:
    """`wait_until` for the inside of an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, _too_late(what, within_s)
        await asyncio.sleep(_LOOK_EVERY_S)
    return value


def _too_late(what: What, within_s: float) -> str:
    return f"not within {within_s:g} s: {what if isinstance(what, str) else what()}"
