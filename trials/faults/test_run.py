"""A few minutes of the run, in which everybody suffers something: `make test-faults`. The whole: `make faults`."""

import asyncio
from math import inf
from pathlib import Path

import pytest
from rich.console import Console

from trials.faults import report
from trials.faults.account.account import DELIVERED, outcomes
from trials.faults.account.account_of_routing import owed, publications
from trials.faults.account.account_of_scheduling import CANCELLED, REPLACED
from trials.faults.account.facts import LoggedEnd, Status, Step
from trials.faults.plan.faults import Kind
from trials.faults.run import Result, Settings, judge, keep, run
from trials.faults.testbed.shape import Shape

SEED = 23
STANDBY_SEED = 7
FAULTS = 8
SECONDS = 300.0
"""Seconds, more than the runs take."""


def carried_out(settings: Settings, directory: Path) -> Result:
    console = Console(width=160)
    result = asyncio.run(run(settings, directory, console))
    report.show(result.facts, result.violations, result.reader, console)
    keep(result, directory)
    assert result.violations == []
    assert judge(directory) == 0
    assert settings.faults is not None
    assert len(result.facts.suffered) >= settings.faults
    return result


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.promise("all-faults")
def test_faults_of_everything_lose_double_and_forget_nothing(tmp_path: Path) -> None:
    """50 devices that come and go, QoS 1 and 2 in both directions."""
    result = carried_out(Settings(seed=SEED, seconds=SECONDS, faults=FAULTS), tmp_path)
    assert {suffered.fault.victim for suffered in result.facts.suffered} == Shape.LOCAL.victims
    # … and all of it has happened.
    assert outcomes(result.facts.receipts)[DELIVERED] > 0
    ends = {connection.end for connection in result.facts.connections}
    assert ends == {LoggedEnd.GOODBYE, LoggedEnd.OTHER}
    assert {publication.qos for device in result.facts.devices for publication in device.publications} == {1, 2}
    assert any(row.step is Step.SESSION_ENDED for row in result.facts.sessions)
    assert {said.status for said in result.facts.presence} == set(Status)
    assert any(campaign.kills for campaign in result.facts.campaigns)
    assert {REPLACED, CANCELLED} <= outcomes(result.facts.receipts).keys()
    came = {payload for device in result.facts.devices for payload in device.taken}
    assert any(message.due_s is not None and message.payload in came for message in result.facts.sent), "messages for later"


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.promise("all-faults")
def test_kills_of_engine_and_standby_lose_double_and_forget_nothing(tmp_path: Path) -> None:
    """The first kill is the engine's, and the standby has its work."""
    settings = Settings(seed=STANDBY_SEED, seconds=SECONDS, faults=FAULTS, kinds=frozenset({Kind.KILL}), shape=Shape.STANDBY)
    facts = carried_out(settings, tmp_path).facts
    assert {suffered.fault.victim for suffered in facts.suffered} == Shape.STANDBY.victims
    assert facts.takeovers


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.promise("all-faults")
def test_faults_with_routing_lose_and_double_nothing_that_devices_publish(tmp_path: Path) -> None:
    """50 devices that subscribe, unsubscribe, and publish to each other."""
    kinds = frozenset({Kind.KILL, Kind.FREEZE, Kind.FREEZE_AND_KILL})
    settings = Settings(seed=SEED, seconds=SECONDS, faults=FAULTS, kinds=kinds, shape=Shape.ROUTING, down_per_s=4.0, up_per_s=8.0)
    facts = carried_out(settings, tmp_path).facts
    assert {arrival.qos for device in facts.devices for arrival in device.routed} == {0, 1, 2}
    assert any(owed(device, publications(facts).values()) for device in facts.devices)
    assert any(period.ended_s < inf for device in facts.devices for period in device.periods), "some have unsubscribed"
