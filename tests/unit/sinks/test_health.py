"""The health of a gateway or a bridge: alive, ready, and the reasons when it is not."""

import asyncio
from collections.abc import Iterable

from sinks.health import HANGS_AFTER_S, NO_LEASE, STARTING, STOPPING, LoopHealth, UnmetCondition


async def test_it_is_alive_and_not_ready_before_and_after_the_loop_runs() -> None:
    health = LoopHealth()
    assert (health.not_alive(), health.not_ready()) == ((), (STARTING,))
    with health.watching(lambda: ()):
        assert (health.not_alive(), health.not_ready()) == ((), ())
    assert (health.not_alive(), health.not_ready()) == ((), (STOPPING,))


async def test_what_is_missing_is_what_the_loop_found_last() -> None:
    health = LoopHealth()
    found: list[Iterable[UnmetCondition]] = [(NO_LEASE,), ()]
    looked = asyncio.Event()

    def look() -> Iterable[UnmetCondition]:
        if len(found) == 1:
            looked.set()
        return found.pop(0) if len(found) > 1 else found[0]

    with health.watching(look):
        assert health.not_ready() == (NO_LEASE,)
        async with asyncio.timeout(10):
            await looked.wait()
        assert health.not_ready() == ()


async def test_a_loop_that_does_nothing_is_not_alive_and_therefore_not_ready() -> None:
    now_s = 100.0
    health = LoopHealth(clock_s=lambda: now_s)
    with health.watching(lambda: ()):
        now_s += HANGS_AFTER_S - 0.1
        assert health.not_alive() == ()
        now_s += 0.2
        (lack,) = health.not_alive()
        assert "event loop" in lack.what
        assert health.not_ready() == (lack,)
