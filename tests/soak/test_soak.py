"""The soak, a minute of it: `make test-faults`. Half an hour: `make soak-kills`."""

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from tests.soak import report
from tests.soak.account import DELIVERED, outcomes
from tests.soak.facts import LoggedEnd, Step
from tests.soak.run import Settings, soak
from tests.soak.schedule import Victim

SEED = 7
SECONDS = 60.0


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_kills_and_freezes_of_everything_lose_double_and_forget_nothing(tmp_path: Path) -> None:
    """50 devices that come and go, QoS 1 and 2 in both directions; two gateways and the engine are killed and frozen."""
    console = Console(width=160)
    result = asyncio.run(soak(Settings(seed=SEED, seconds=SECONDS), tmp_path, console))
    report.show(result.facts, result.plant.done, result.violations, result.reader, console)
    assert result.violations == []
    assert {fault.victim for fault, _, _ in result.plant.done} == set(Victim)
    # … and all of it has happened.
    assert outcomes(result.facts.receipts)[DELIVERED] > 0
    ends = {connection.end for connection in result.facts.connections}
    assert ends == {LoggedEnd.GOODBYE, LoggedEnd.OTHER}
    assert {publication.qos for device in result.facts.devices for publication in device.publications} == {1, 2}
    assert any(row.step is Step.SESSION_ENDED for row in result.facts.sessions)
