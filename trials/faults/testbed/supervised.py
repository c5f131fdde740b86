"""Restarts a command of Inflight whenever it ends, as systemd or `inflight up` do."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from inflight.local.child_process import bound_to_parent, tail
from inflight.local.supervised_child import READY, kill_group

_RESTART_S = 0.5
_START_S = 240.0


class Supervised:
    """Runs `inflight ARGUMENTS`. pid: None while it is being restarted. role: the second word of its newest ready line."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        """environment: what is set beside our own."""
        self.name = name
        self.pid: int | None = None
        self.role = ""
        self._ready = asyncio.Event()
        self._log = log
        self._command = [sys.executable, "-m", "inflight", *arguments]
        self._environment = {**os.environ, **(environment or {})}

    async def run(self) -> None:
        """Runs until cancelled; the process ends then, with all that it has started."""
        while True:
            with self._log.open("ab", buffering=0) as log:
                process = await asyncio.create_subprocess_exec(
                    *bound_to_parent(self._command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
                self.pid = process.pid
                reading = asyncio.create_task(self._read(process, log))
                try:
                    await process.wait()
                finally:
                    self.pid, self.role = None, ""
                    kill_group(process.pid)
                    await process.wait()
                    reading.cancel()
            await asyncio.sleep(_RESTART_S)

    async def _read(self, process: asyncio.subprocess.Process, log: BinaryIO) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            log.write(line)
            if line.split()[:1] == [READY.encode()]:
                self.role = " ".join(line.decode(errors="replace").split()[1:2])
                self._ready.set()

    async def until_ready(self) -> None:
        try:
            await asyncio.wait_for(self._ready.wait(), _START_S)
        except TimeoutError:
            raise AssertionError(f"{self.name} has not started:\n{tail(self._log)}") from None
