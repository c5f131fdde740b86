"""The suites: which tests each has, and how they are run with a deadline. A test that hangs is killed, and has failed."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from inflight.local.child_process import bound_to_parent
from state.errors import InflightError
from trials.conformance.outcome import Outcome, Verdict

TEST_S: Final = 60.0
"""The longest test waits some 30 s for times of the protocol."""
_LIST_S: Final = 30.0
_PAHO_TESTS: Final = Path(__file__).with_name("paho_tests.py")


class SuiteFailed(InflightError):
    """A suite could not be built or started."""


class Suite(Protocol):
    """One suite, against one server."""

    name: str

    def tests(self) -> list[str]:
        """Returns the names of all tests. Raises SuiteFailed."""

    def run(self, tests: Sequence[str]) -> Iterator[Outcome]:
        """Runs tests one after the other, and yields what became of each."""


@dataclass(frozen=True)
class Paho:
    """A file of eclipse/paho.mqtt.testing. directory: of the checkout. server: host and port."""

    name: str
    directory: Path
    file: str
    server: tuple[str, int]
    test_s: float = TEST_S

    def tests(self) -> list[str]:
        listed = subprocess.run(self._command(), capture_output=True, text=True, timeout=_LIST_S, check=False)
        if listed.returncode:
            raise SuiteFailed(f"{self.file} cannot list its tests: {listed.stderr.strip()[-500:]}")
        return [str(name) for name in json.loads(listed.stdout)["names"]]

    def run(self, tests: Sequence[str]) -> Iterator[Outcome]:
        """All in one process, as the suite means it. After a test that hangs another process goes on with the next."""
        left = list(tests)
        while left:
            for outcome in self._run_until_hang(left):
                left.remove(outcome.test)
                yield outcome

    def _run_until_hang(self, tests: Sequence[str]) -> Iterator[Outcome]:
        """Yields at least one outcome."""
        running, why = tests[0], ""
        events = _Events([*self._command(), *tests])
        try:
            while (event := events.next(self.test_s)) is not None:
                match event["event"]:
                    case "began":
                        running = str(event["test"])
                    case "unprepared":
                        why = f"before all tests: {event['message']}"
                    case "ended":
                        running = ""
                        verdict = Verdict.FAILED if event["message"] else Verdict.PASSED
                        yield Outcome(
                            suite=self.name,
                            test=str(event["test"]),
                            verdict=verdict,
                            message=str(event["message"]),
                            seconds=float(str(event["seconds"])),
                        )
        finally:
            events.close()
        if running:
            why = why or f"has not ended within {self.test_s:.0f} s"
            yield Outcome(suite=self.name, test=running, verdict=Verdict.FAILED, message=why, seconds=events.waited_s)

    def _command(self) -> list[str]:
        host, port = self.server
        return [sys.executable, str(_PAHO_TESTS), str(self.directory / "interoperability"), self.file, host, str(port)]


class _Events:
    """The lines of JSON that a process writes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.waited_s = 0.0
        self._process = subprocess.Popen(
            bound_to_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(b"")

    def next(self, timeout_s: float) -> dict[str, object] | None:
        """Returns the next event; None = the process has ended or says nothing for so long."""
        began_s = time.monotonic()
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            line = b""
        self.waited_s = round(time.monotonic() - began_s, 3)
        return dict(json.loads(line)) if line else None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True)
class MqttLib:
    """The crate mqtt5-conformance of LabOverWire/mqtt-lib. binary: the built program. description: TOML file about the server."""

    binary: Path
    description: Path
    name: str = "mqtt5-conformance"
    test_s: float = TEST_S
    _full_names: dict[str, str] = field(default_factory=dict)

    def tests(self) -> list[str]:
        command = [str(self.binary), "--sut", str(self.description), "--list"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_S, check=False)
        if listed.returncode:
            raise SuiteFailed(f"{self.binary} cannot list its tests: {listed.stderr.strip()[-500:]}")
        for line in listed.stdout.splitlines():
            full_name, separator, _ = line.rpartition(": test")
            if separator:
                self._full_names[full_name.partition(" ")[0].rpartition("::")[2]] = full_name
        return list(self._full_names)

    def run(self, tests: Sequence[str]) -> Iterator[Outcome]:
        """Each in a process of its own: some subscribe to topics that others publish to."""
        for test in tests:
            began_s = time.monotonic()
            verdict, message = self._run_one(self._full_names[test])
            seconds = round(time.monotonic() - began_s, 3)
            yield Outcome(suite=self.name, test=test, verdict=verdict, message=message, seconds=seconds)

    def _run_one(self, full_name: str) -> tuple[Verdict, str]:
        command = [str(self.binary), "--sut", str(self.description), "--format=json", "--test-threads=1", "--exact", full_name]
        try:
            ran = subprocess.run(bound_to_parent(command), capture_output=True, text=True, timeout=self.test_s, check=False)
        except subprocess.TimeoutExpired:
            return Verdict.FAILED, f"has not ended within {self.test_s:.0f} s"
        for line in ran.stdout.splitlines():
            event = json.loads(line)
            if event["type"] == "test" and event["event"] in _VERDICTS:
                return _VERDICTS[event["event"]], str(event.get("stdout", "")).strip()
        return Verdict.FAILED, f"ended with exit code {ran.returncode}: {ran.stderr.strip()[-500:]}"


_VERDICTS: Final = {"ok": Verdict.PASSED, "failed": Verdict.FAILED, "ignored": Verdict.NOT_RUN}
