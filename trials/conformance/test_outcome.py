"""Failures, and the clauses that explain them."""

import json
from pathlib import Path

from rich.console import Console

from trials.conformance.outcome import Known, Outcome, Verdict, explain, read_known
from trials.conformance.report import show, write
from trials.conformance.run import HERE, SUITES

PASSED = Outcome(suite="paho5", test="test_basic", verdict=Verdict.PASSED, seconds=2.0)
FAILED = Outcome(suite="paho5", test="test_keepalive", verdict=Verdict.FAILED, message="length should be 1: []")
NOT_RUN = Outcome(suite="mqtt5-conformance", test="connect", verdict=Verdict.NOT_RUN)
KNOWN = Known(suite="paho5", test="test_keepalive", clause="MQTT-3.1.2-22", why="an example")


def test_a_known_test_that_fails_gets_its_clause() -> None:
    (outcome,) = explain([FAILED], [KNOWN])
    assert (outcome.clause, outcome.needs_explanation) == ("MQTT-3.1.2-22", False)


def test_a_test_of_that_name_in_another_suite_is_not_known() -> None:
    (outcome,) = explain([Outcome(suite="paho3", test="test_keepalive", verdict=Verdict.FAILED)], [KNOWN])
    assert outcome.needs_explanation


def test_a_known_test_that_passes_needs_no_clause() -> None:
    (outcome,) = explain([Outcome(suite="paho5", test="test_keepalive", verdict=Verdict.PASSED)], [KNOWN])
    assert (outcome.clause, outcome.needs_explanation) == ("", False)


def test_a_test_that_was_left_out_needs_an_explanation() -> None:
    assert NOT_RUN.needs_explanation


def test_every_known_test_names_a_suite_and_a_clause() -> None:
    known = read_known(HERE / "known.toml")
    assert all(one.suite in SUITES and one.clause and one.why for one in known)
    assert len({(one.suite, one.test) for one in known}) == len(known)


def test_the_table_counts_and_names_what_failed() -> None:
    console = Console(record=True, width=150)
    show([PASSED, FAILED, NOT_RUN], console)
    text = console.export_text()
    assert "| paho5             | 2     | 1      | 0                | 0                     | 1      | 2       |" in text
    assert "length should be 1: []" in text
    assert "2 failures without a clause" in text


def test_the_report_has_every_outcome(tmp_path: Path) -> None:
    write([PASSED, FAILED], tmp_path / "new" / "report.json")
    first, second = json.loads((tmp_path / "new" / "report.json").read_bytes())
    assert first["test"] == "test_basic"
    assert first["verdict"] == "passed"
    assert second["message"] == "length should be 1: []"
