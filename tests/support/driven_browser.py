"""A real browser that a test drives over a pipe, with the DevTools protocol: screens of any size, a pointer, expressions."""

import fcntl
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.support.browser import OPTIONS
from tests.support.waiting import DEADLINE_S, wait_until

_FREE_FD: Final = 10
"""Above 3 and 4, where the browser expects the pipe."""


class DrivenBrowser:
    """One tab.

    Args:
        reads, writes: The ends of the pipe.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._numbers = count(1)
        self._received = b""
        self._session = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, address: str, *, width: int, height: int = 2_400) -> None:
        """Opens a page on a screen of this size, and waits until it is complete."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)
        self._call("Page.navigate", url=address)
        is_there = f"document.readyState === 'complete' && location.href === {json.dumps(address)}"
        wait_until(lambda: self.evaluate(is_there), address)

    def point(self, x: float, y: float) -> None:
        """Moves the pointer to a place on the screen."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _call(self, method: str, **params: object) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            pass  # an event
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._received:
            assert select.select([self._reads], [], [], DEADLINE_S)[0], "the browser does not answer"
            more = os.read(self._reads, 1 << 16)
            assert more, "the browser has ended"
            self._received += more
        answer, _, self._received = self._received.partition(b"\0")
        return json.loads(answer)


@contextmanager
def driven_browser(directory: Path) -> Iterator[DrivenBrowser]:
    """Runs Debian's chromium. directory: for what it writes."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is missing: apt-get install chromium"
    profile = directory / "profile"
    (their_reads, our_writes), (our_reads, their_writes) = os.pipe(), os.pipe()
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, _FREE_FD) for end in (their_reads, their_writes)]
    command = [chromium, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}', *command]
    process = subprocess.Popen(shell, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in their_reads, their_writes, *theirs:
        os.close(end)
    try:
        yield DrivenBrowser(our_reads, our_writes)
    finally:
        process.terminate()
        process.wait(60)
        os.close(our_reads)
        os.close(our_writes)
        shutil.rmtree(profile, ignore_errors=True)
