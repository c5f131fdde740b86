"""Runs tests of eclipse/paho.mqtt.testing, and writes what becomes of each to standard output, one line of JSON for each event.

    python paho_tests.py DIRECTORY/interoperability client_test5.py HOST PORT            # lists the tests
    python paho_tests.py DIRECTORY/interoperability client_test5.py HOST PORT TEST…      # runs these

The file is executed as it is, as the main program that it means to be. Only the runner is another one, because the file's own
takes its options for those of unittest. This program is a process of its own, which may be killed when a test hangs.
"""

import io
import json
import os
import runpy
import sys
import time
import traceback
import unittest
from types import TracebackType
from typing import IO, Any

Failure = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class EventWriter(unittest.TestResult):
    """Writes an event when a test begins and when it ends."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out
        self._began_s = 0.0
        self._message = ""

    def write(self, **event: object) -> None:
        print(json.dumps(event), file=self._out, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self._began_s, self._message = time.monotonic(), ""
        sys.stderr = io.StringIO()  # some tests print the reason instead of raising it
        self.write(event="began", test=_name(test))

    def addError(self, test: unittest.TestCase, err: Failure) -> None:  # noqa: N802
        self.addFailure(test, err)
        if not isinstance(test, unittest.TestCase):  # the preparation has failed, before all tests
            self.write(event="unprepared", message=self._message)

    def addFailure(self, test: unittest.TestCase, err: Failure) -> None:  # noqa: N802
        super().addFailure(test, err)
        printed = sys.stderr.getvalue() if isinstance(sys.stderr, io.StringIO) else ""
        reasons = [line for line in printed.splitlines() if line and not line.startswith((" ", "Traceback"))]
        self._message = "; ".join([*dict.fromkeys(reasons), _reason(err)])

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        sys.stderr = sys.__stderr__
        seconds = round(time.monotonic() - self._began_s, 3)
        self.write(event="ended", test=_name(test), message=self._message, seconds=seconds)


def _name(test: unittest.TestCase) -> str:
    return test.id().rpartition(".")[2]


def _reason(error: Failure) -> str:
    last = traceback.extract_tb(error[2])[-1]
    return f"{''.join(traceback.format_exception_only(*error[:2])).strip()} (line {last.lineno}: {last.line})"


def main(directory: str, file: str, host: str, port: str, *names: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tests print

    def run_chosen() -> None:
        """Stands for unittest.main, which the file calls at its end."""
        case: Any = sys._getframe(1).f_globals["Test"]
        writer = EventWriter(out)
        if names:
            unittest.TestSuite(map(case, names)).run(writer)
        else:
            writer.write(event="tests", names=unittest.TestLoader().getTestCaseNames(case))

    sys.path.insert(0, directory)
    os.chdir(directory)
    sys.argv = [file, f"--hostname={host}", "--port", port]
    unittest.main = run_chosen  # type: ignore[assignment,misc]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # threads of the clients may still read
