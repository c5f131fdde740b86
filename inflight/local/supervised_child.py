"""Starts a process of ours again whenever it ends: the parts of `inflight up`, the processes of a gateway.

The pause before a restart doubles up to half a minute. A process that was never ready ends everything instead: its settings or
this machine have to be mended. A process that is not ready after three minutes is killed, unless it works or waits for a
processor: the first micro-batch of an engine may have very many timers in it, and the machine may be busy with other things.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from inflight.local.child_log import ChildLog
from inflight.local.child_process import bound_to_parent, tail
from inflight.local.errors import ChildProcessFailed
from inflight.local.start_watch import PATIENCE_S, StartWatch
from streaming.engine.watching.processes import lower_priority_of
from streaming.engine.watching.watchdog import HUNG

READY: Final = "ready"
"""The first word of the line by which a child says that it works; its role and `key=value` words may follow."""
STANDBY: Final = "standby"
"""The role of an engine that waits for another one to be gone."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
_WATCH_S: Final = 0.5
_RESTART_WAIT_S: Final = 15.0
_LAST_WORDS_S: Final = 1.0
_STOP_DURING_START_S: Final = 3.0
"""A process that is not ready has no connection to end and no micro-batch to finish, so it need not get longer."""
_OWN_ERROR: Final = "\n  inflight: "
"""Begins the error by which a child of ours ends, in the tail of its log."""
_LONGEST_LINE_BYTES: Final = 1 << 20


class SupervisedChild:
    """Runs `inflight ARGUMENTS`. ready: set once it has been ready.

    Of its newest ready line, words has what is after the equals signs, and role the first word without one.
    """

    def __init__(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        *,
        say: Callable[[str], None],
        log: Path | None = None,
        nice: int = 0,
        on_change: Callable[[], None] = lambda: None,
        hint: Callable[[], str] = lambda: "",
        longest_pause_s: Callable[[], float] = lambda: LONGEST_PAUSE_S,
        may_restart: Callable[[], bool] = lambda: True,
    ) -> None:
        """Starts nothing yet.

        Args:
            arguments: Made anew for each start.
            say: Told what happens, for people.
            log: Gets its output; None = our standard error.
            nice: Its nice value, once it is ready and no standby: before that, devices wait for it.
            on_change: Called when it has gone, and when it is back.
            hint: Says for people what may have ended it.
            longest_pause_s: Limits the pause before a restart.
            may_restart: False lets a restart wait, at most for `_RESTART_WAIT_S`.
        """
        self.name = name
        self.words: dict[str, str] = {}
        self.role = ""
        self.ready = asyncio.Event()
        self._arguments = arguments
        self._say = say
        self._log = None if log is None else ChildLog(log)
        self._nice = nice
        self._on_change = on_change
        self._hint = hint
        self._longest_pause_s = longest_pause_s
        self._may_restart = may_restart
        self._process: asyncio.subprocess.Process | None = None
        self._is_up = False
        """True from its ready line to its end."""
        self._failed_starts = 0
        """Counted in a row, with the present start until it is ready."""

    @property
    def pid(self) -> int | None:
        """Returns its process id, or None while it is being restarted."""
        return None if self._process is None else self._process.pid

    def metrics(self, name: str | None = None) -> Iterator[tuple[str, str]]:
        """Yields name and HOST:PORT of each process that serves its metrics: itself, or those that it has started.

        Args:
            name: The name to yield; None = its own.
        """
        addresses = self.words.get("metrics", "").split(",")
        for number, address in enumerate(filter(None, addresses), start=1):
            yield child_name(name or self.name, number, len(addresses)), address

    async def run(self) -> None:
        """Starts it again and again. Raises ChildProcessFailed when it does not become ready the first time.

        When it is cancelled the process goes on: see `stop`.
        """
        while True:
            status = await self._run_once()
            if not self.ready.is_set():
                raise ChildProcessFailed(
                    f"the {self.name} ended ({explain_status(status)}) before it was ready. {self._last_words()} and start again."
                )
            self._on_change()
            # What was ready and died is needed at once; what cannot start would only burn the machine.
            pause_s = min(FIRST_PAUSE_S * 2 ** min(self._failed_starts, 10), self._longest_pause_s())
            see = "" if self._log is None else f"; see {self._log.path}"
            self._say(
                f"the {self.name} ended unexpectedly ({explain_status(status)}), starting it again in {pause_s:g} s"
                f"{see}{self._hint()}"
            )
            await asyncio.sleep(pause_s)
            deadline_s = time.monotonic() + _RESTART_WAIT_S
            while not self._may_restart() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - asks other processes
                await asyncio.sleep(_WATCH_S)
            self._failed_starts += 1

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing if it has ended."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, within_s: float) -> None:
        """Sends SIGTERM, and after `within_s` SIGKILL to it and all that it has started. Call it once `run` is cancelled.

        A start is interrupted: the next one recovers, as after any crash.
        """
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._say(f"stopping the {self.name}" if self._is_up else f"interrupting the start of the {self.name}")
        self.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), within_s if self._is_up else min(within_s, _STOP_DURING_START_S))
        except TimeoutError:
            if self._is_up:
                self._say(f"the {self.name} did not stop within {within_s:g} s and is killed; it recovers at the next start")
        kill_group(process.pid)
        await process.wait()  # a process that is not waited for has a watcher that outlives the event loop
        await self._flush_log()

    async def _run_once(self) -> int:
        """Starts it, waits until it ends, and returns its status."""
        with self._standard_error() as standard_error:
            command = bound_to_parent([sys.executable, "-m", "inflight", *self._arguments()])
            # Our own pipe: with one of asyncio's, `wait` returns only when all that the child has started has closed it, too.
            reading, writing = os.pipe()
            output = os.fdopen(reading, "rb", buffering=0)
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=writing,
                    stderr=standard_error,
                    start_new_session=True,  # Ctrl-C in a terminal reaches only us, and we stop the children in order
                )
            except BaseException:
                output.close()
                raise
            finally:
                os.close(writing)
        reader = asyncio.create_task(self._read_output(process.pid, output))
        try:
            status = await process.wait()
            self._process, self._is_up, self.role = None, False, ""
            # What the child has started itself (Spark's JVM) must not work on the same checkpoint beside its successor.
            kill_group(process.pid)
            await asyncio.wait([reader], timeout=_LAST_WORDS_S)
            await self._flush_log()
        finally:
            reader.cancel()
        return status

    async def _read_output(self, pid: int, output: IO[bytes]) -> None:
        """Reads its ready line, and copies whatever else to its log."""
        stream = asyncio.StreamReader(limit=_LONGEST_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), output)
        too_late = asyncio.create_task(kill_when_stuck(self.name, pid, say=self._say))
        try:
            started = time.monotonic()
            async for line in stream:
                words = line.decode(errors="replace").split()
                if words[:1] != [READY]:
                    self._write_log(line)
                    continue
                too_late.cancel()
                was_up, self._failed_starts, self._is_up = self._is_up, 0, True
                self.words = dict(word.split("=", 1) for word in words[1:] if "=" in word)
                self.role = next((word for word in words[1:] if "=" not in word), "")
                if self._nice and self.role != STANDBY:
                    lower_priority_of(pid, self._nice)
                if self.ready.is_set():
                    self._on_change()
                    back = f"is back after {time.monotonic() - started:.1f} s"
                    self._say(f"the {self.name} {f'works as the {self.role} now' if was_up else back}")
                self.ready.set()
        finally:
            too_late.cancel()
            transport.close()

    @contextmanager
    def _standard_error(self) -> Iterator[int | None]:
        """Gives what becomes the standard error of a child; None = ours."""
        if self._log is None:
            yield None
            return
        with self._log.standard_error() as descriptor:
            yield descriptor

    def _write_log(self, line: bytes) -> None:
        if self._log is not None:
            self._log.write(line)
            return
        with contextlib.suppress(OSError):  # a full disk
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()

    async def _flush_log(self) -> None:
        if self._log is not None:
            await asyncio.to_thread(self._log.join, _LAST_WORDS_S)

    def _last_words(self) -> str:
        """Returns the error by which it ended if it has one of ours, else the end of its log."""
        if self._log is None:
            return "Mend what it has said above"
        text = tail(self._log.path)
        own = f"\n{text}".rpartition(_OWN_ERROR)[2]
        if own != f"\n{text}":
            return f"It says:\n  {own}\nThe rest is in {self._log.path}. Mend that"
        return f"The end of {self._log.path}:\n{text}\nMend what it says there"


def child_name(name: str, number: int, several: int) -> str:
    """Returns the name of one of several processes, numbered from 1 on; a single one has no number."""
    return name if several == 1 else f"{name}-{number}"


async def until_stopped(stop: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
    """Returns when all of it is done or `stop` is set; raises the first thing that goes wrong."""
    tasks = [asyncio.create_task(item) for item in work]
    stopping = asyncio.create_task(stop.wait())
    pending: set[asyncio.Task[Any]] = {stopping, *tasks}
    try:
        while stopping in pending and len(pending) > 1:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def kill_when_stuck(name: str, pid: int, *, say: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
    """Kills a child and its group when it has done nothing for `patience_s`. Cancel it when the child is ready."""
    watch = StartWatch(pid, patience_s=patience_s)
    while True:
        await asyncio.sleep(min(_WATCH_S, patience_s))
        is_stuck = watch.is_stuck()
        if is_stuck:
            say(f"the {name} has done nothing for {patience_s:g} s of its start and is killed")
            kill_group(pid)
            return
        if is_stuck is not None:
            say(f"the {name} is not ready after {watch.waited_s:.0f} s, but it works; see its log")


def kill_group(pid: int) -> None:
    """Sends SIGKILL to a child and all that it started; each child leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def explain_status(status: int) -> str:
    """`signal SIGKILL` or `exit status 1`."""
    if status == HUNG:
        return f"exit status {status}: the watchdog of the engine, whose query hung"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
