"""Busy loops beside everything: a machine that has more to do than it can."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from inflight.local.child_process import bound_to_parent


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Each takes as much of a processor as it gets, at nice 0."""
    loops = [subprocess.Popen(bound_to_parent([sys.executable, "-S", "-c", "while True: pass"])) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
