"""A real Mosquitto is restarted, killed and frozen under 50 devices, bridges are killed, devices forget to acknowledge."""

import time
from pathlib import Path

import pytest

from inflight.demo.bridge_broker import find_mosquitto
from inflight.demo.bridge_run import is_flawless
from inflight.demo.bridge_trial import UP_OPTIONS, TrialPlan, run_broker_alone, run_with_inflight
from inflight.demo.up import UpProcess
from inflight.local.errors import MissingPrerequisite

pytestmark = [pytest.mark.interop, pytest.mark.faults, pytest.mark.timeout(300)]

PLAN = TrialPlan()


@pytest.fixture(autouse=True, scope="module")
def _mosquitto() -> None:
    try:
        find_mosquitto()
    except MissingPrerequisite as error:
        pytest.skip(str(error))


def look(*_: object) -> None:
    """Nobody watches; a short pause, because this is also the pace of the trial."""
    time.sleep(0.05)


def test_with_inflight_nothing_is_lost_and_nothing_is_done_twice_and_the_receipts_say_so(tmp_path: Path) -> None:
    with UpProcess(tmp_path / "up", *UP_OPTIONS) as up:
        result = run_with_inflight(PLAN, tmp_path, look, up)
    print(result)
    assert result.sent == 2_000
    assert (result.lost, result.twice_at_qos2, result.unproven) == (0, 0, 0)
    assert result.receipts == {"delivered": 2_000}
    assert is_flawless(result)
    assert result.copies > 0, "no fault had any effect"


def test_the_broker_alone_loses_messages_in_the_same_script(tmp_path: Path) -> None:
    result = run_broker_alone(PLAN, tmp_path, look)
    print(result)
    assert result.lost > 0
