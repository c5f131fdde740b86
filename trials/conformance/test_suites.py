"""Suites that pass, fail, hang and break, without a server."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from trials.conformance.outcome import Outcome, Verdict
from trials.conformance.run import MQTT_LIB, checkout, run
from trials.conformance.suites import MqttLib, Paho, SuiteFailed

FILE = """
import sys, time, traceback, unittest

class Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert port != 2, "no server"
    def test_fails(self):
        try:
            raise AssertionError("the reason")
        except AssertionError:
            traceback.print_exc()
        self.assertTrue(False)
    def test_hangs(self):
        time.sleep(60)
    def test_passes(self):
        print("chatter")

if __name__ == "__main__":
    port = int(sys.argv[3])
    unittest.main()
"""
PROGRAM = """#!/bin/sh
case "$*" in
*--list*) echo 'module::good [MQTT-1]: test'; echo 'module::bad [MQTT-2]: test'; echo 'module::left_out [missing: acl]: test';;
*good*) echo '{ "type": "test", "event": "started", "name": "good" }'; echo '{ "type": "test", "event": "ok", "name": "good" }';;
*bad*) printf '%s\\n' '{ "type": "test", "event": "failed", "name": "bad", "stdout": "Error: \\"why\\"\\n" }'; exit 101;;
*left_out*) echo '{ "type": "test", "event": "ignored", "name": "left_out" }';;
esac
"""


@pytest.fixture
def paho(tmp_path: Path) -> Paho:
    (tmp_path / "interoperability").mkdir()
    (tmp_path / "interoperability" / "client.py").write_text(FILE)
    return Paho("paho5", tmp_path, "client.py", ("127.0.0.1", 1), test_s=5.0)


@pytest.mark.processes
def test_after_a_test_that_hangs_the_others_are_run(paho: Paho) -> None:
    assert paho.tests() == ["test_fails", "test_hangs", "test_passes"]
    outcomes = list(paho.run(paho.tests()))
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == [Verdict.FAILED, Verdict.FAILED, Verdict.PASSED]
    assert outcomes[0].message.startswith("AssertionError: the reason; AssertionError: False is not true (line ")
    assert outcomes[1].message == "has not ended within 5 s"


@pytest.mark.processes
def test_a_preparation_that_fails_fails_every_test(paho: Paho) -> None:
    broken = Paho(paho.name, paho.directory, paho.file, ("127.0.0.1", 2))
    outcomes = list(broken.run(["test_fails", "test_passes"]))
    assert [outcome.test for outcome in outcomes] == ["test_fails", "test_passes"]
    assert all("no server" in outcome.message for outcome in outcomes)


@pytest.mark.processes
def test_the_program_in_rust_says_what_became_of_each_test(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    suite = MqttLib(program, tmp_path / "server.toml")
    assert suite.tests() == ["good", "bad", "left_out"]
    outcomes = list(suite.run(suite.tests()))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.PASSED, Verdict.FAILED, Verdict.NOT_RUN]
    assert outcomes[1].message == 'Error: "why"'


def test_a_missing_checkout_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(SuiteFailed, match=r"MQTT_LIB.*LabOverWire/mqtt-lib[\s\S]*git clone .* checkout fcdebe0"):
        checkout(tmp_path / "nothing", MQTT_LIB, "--mqtt-lib", "MQTT_LIB")


class Flaky:
    """A suite whose tests fail until the given attempt."""

    name = "paho5"

    def __init__(self, **passes_at: int) -> None:
        self._passes_at = passes_at
        self.ran: list[list[str]] = []

    def tests(self) -> list[str]:
        return list(self._passes_at)

    def run(self, tests: Sequence[str]) -> Iterator[Outcome]:
        self.ran.append(list(tests))
        for test in tests:
            is_passed = sum(test in ran for ran in self.ran) >= self._passes_at[test]
            yield Outcome(suite=self.name, test=test, verdict=Verdict.PASSED if is_passed else Verdict.FAILED)


def test_a_failed_test_is_repeated_alone_unless_it_is_known() -> None:
    suite = Flaky(good=1, slow=3, bad=9, known=9)
    outcomes = run([suite], "", Console(), attempts=3, known=frozenset({("paho5", "known")}))
    assert suite.ran == [["good", "slow", "bad", "known"], ["slow"], ["bad"], ["slow"], ["bad"]]
    results = [(outcome.test, outcome.verdict is Verdict.PASSED, outcome.attempts) for outcome in outcomes]
    assert results == [("good", True, 1), ("slow", True, 3), ("bad", False, 3), ("known", False, 1)]
