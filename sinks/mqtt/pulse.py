"""How late an event loop is: what is due there waits for as long."""

import asyncio
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 0.05


class Pulse:
    """observe: called at each beat with how late it is, in milliseconds."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due_s = self._loop.time() + _INTERVAL_S
        self._timer = self._loop.call_at(due_s, self._beat, due_s)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, due_s: float) -> None:
        self._observe((self._loop.time() - due_s) * 1_000)
        self.start()
