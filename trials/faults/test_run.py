"""A few minutes of the run, in which everybody suffers something: `make test-faults`. The whole: `make faults`."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from trials.faults import report
from trials.faults.account.account import DELIVERED, outcomes
from trials.faults.account.facts import LoggedEnd, Step
from trials.faults.run import Settings, judge, keep, run
from trials.faults.testbed.shape import Shape

SEED = 23
FAULTS = 8
SECONDS = 300.0
"""Seconds, more than the runs take."""


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_faults_of_everything_lose_double_and_forget_nothing(tmp_path: Path) -> None:
    """50 devices that come and go, QoS 1 and 2 in both directions."""
    console = Console(width=160)
    result = asyncio.run(run(Settings(seed=SEED, seconds=SECONDS, faults=FAULTS), tmp_path, console))
    report.show(result.facts, result.violations, result.reader, console)
    keep(result, tmp_path)
    assert result.violations == []
    assert judge(tmp_path) == 0
    assert len(result.facts.suffered) >= FAULTS
    assert {suffered.fault.victim for suffered in result.facts.suffered} == Shape.LOCAL.victims
    # … and all of it has happened.
    assert outcomes(result.facts.receipts)[DELIVERED] > 0
    ends = {connection.end for connection in result.facts.connections}
    assert ends == {LoggedEnd.GOODBYE, LoggedEnd.OTHER}
    assert {publication.qos for device in result.facts.devices for publication in device.publications} == {1, 2}
    assert any(row.step is Step.SESSION_ENDED for row in result.facts.sessions)
