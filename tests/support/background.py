"""Runs a gateway or a bridge on an event loop of its own, in a thread of this process."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvloop

from tests.support.waiting import DEADLINE_S

Main = Callable[[asyncio.Event, Callable[[], None]], Coroutine[Any, Any, None]]
"""Gets the event that ends it, and what it calls when it is ready."""


@contextmanager
def in_thread(main: Main, name: str) -> Iterator[Callable[[], None]]:
    """Yields, when `main` is ready, a function that stops it. Checks at the end that it has stopped, and raises its error."""
    ready = threading.Event()
    stops: list[Callable[[], object]] = []
    failures: list[BaseException] = []

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        await main(stop, ready.set)

    def work() -> None:
        try:
            uvloop.run(run())
        except BaseException as error:
            failures.append(error)
        ready.set()

    def stop() -> None:
        with suppress(RuntimeError):  # it has ended
            for each in stops:
                each()

    thread = threading.Thread(target=work, name=name)
    thread.start()
    try:
        assert ready.wait(DEADLINE_S), f"the {name} is not ready"
        if not failures:
            yield stop
    finally:
        stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"the {name} does not stop"
    if failures:
        raise failures[0]
