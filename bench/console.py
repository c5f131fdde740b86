"""Measures the waits of a user of the console while an engine has very many sessions."""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from bench.running_engine import RunningEngine
from inflight.local.child_process import start_child, tail

_WORKING = 'class="working"'
_PAUSE_S = 0.2


class AskedConsole:
    """A client of a console. longest_s: its longest request. Pages with queries answer at once, with or without the result."""

    def __init__(self, address: str, within_s: float) -> None:
        self.longest_s = 0.0
        self._host = urlsplit(address).netloc
        self._within_s = within_s

    def ask(self, path: str, **question: str) -> float:
        """Returns the seconds until the page has its result. Raises RuntimeError for a refusal, TimeoutError."""
        began_s = time.monotonic()
        while _WORKING in self._get(f"{path}?{urlencode(question)}"):
            if time.monotonic() > began_s + self._within_s:
                raise TimeoutError(f"the console has no answer to {path} {question} within {self._within_s:,.0f} s")
            time.sleep(_PAUSE_S)
        return time.monotonic() - began_s

    def _get(self, path: str) -> str:
        began_s = time.monotonic()
        connection = http.client.HTTPConnection(self._host, timeout=self._within_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            page = response.read().decode()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"the console says {response.status} to {path}: {page}")
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        return page


@contextmanager
def _console(engine: RunningEngine, directory: Path, within_s: float) -> Iterator[AskedConsole]:
    log, said = directory / "console.log", directory / "console.out"
    command = [sys.executable, "-m", "inflight", "console", *engine.options, "--set", "console.port=0"]
    with log.open("wb") as errors, said.open("wb") as output:
        process = start_child(command, stdout=output, stderr=errors)
    try:
        until_s = time.monotonic() + within_s
        while not (line := said.read_text(encoding="utf-8")).endswith("\n"):
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the console is not ready:\n{tail(log)}")
            time.sleep(_PAUSE_S)
        yield AskedConsole(line.split("console=", 1)[1].strip(), within_s)
    finally:
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()


def measure_console(engine: RunningEngine, directory: Path, client_id: str, within_s: float) -> dict[str, float]:
    """client_id: the client of one session."""
    with _console(engine, directory, within_s) as console:
        return {
            "console_first_s": console.ask("/sessions"),
            "console_search_s": console.ask("/sessions", client=client_id[:-1]),
            "console_client_s": console.ask("/client", id=client_id),
            "console_longest_s": console.longest_s,
        }
