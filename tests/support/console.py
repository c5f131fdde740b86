"""Starts `inflight console` beside a running system."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_console(data_dir: Path) -> Iterator[str]:
    """Gives the address of the page, with a slash at its end, until the end of the block."""
    command = [sys.executable, "-m", "inflight", "console", "--data-dir", str(data_dir), "--set", "console.port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready, _, address = process.stdout.readline().strip().partition("console=")
            assert (ready, address[:4]) == ("ready ", "http"), "the console has not started"
            yield address
        finally:
            process.terminate()
