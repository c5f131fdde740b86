"""When `make demo-bridge` may say that all is well, what it shows, and what it does on the way."""

import dataclasses
import io
from collections import Counter
from typing import Any
from unittest.mock import Mock, call

import pytest
from rich.console import Console

from inflight.demo.bridge_run import comparison, is_flawless, summary
from inflight.demo.bridge_trial import WINDOW, TrialPlan, TrialResult, perform

FLAWLESS = TrialResult(sent=10, delivered=10, most_unacknowledged=WINDOW, receipts=Counter(delivered=10))


def test_a_run_without_loss_whose_receipts_say_so_is_flawless() -> None:
    assert is_flawless(FLAWLESS)


@pytest.mark.parametrize(
    "flaw",
    [
        {"delivered": 9},
        {"twice_at_qos2": 1},
        {"unproven": 1},
        {"receipts": Counter(delivered=9)},
        {"receipts": Counter(delivered=9, delivery_limit=1)},
        {"most_unacknowledged": WINDOW + 1},
    ],
)
def test_any_flaw_is_enough_for_exit_code_1(flaw: dict[str, Any]) -> None:
    assert not is_flawless(dataclasses.replace(FLAWLESS, **flaw))


def test_both_runs_stand_side_by_side() -> None:
    alone = TrialResult(sent=10, delivered=7)
    console = Console(file=io.StringIO(), width=120)
    console.print(comparison(alone, FLAWLESS))
    assert isinstance(console.file, io.StringIO)
    assert "10 delivered" in console.file.getvalue()
    shown = summary(alone, FLAWLESS)
    assert shown["broker_alone"]["lost"] == 3  # type: ignore[index]
    assert shown["with_inflight"]["lost"] == 0  # type: ignore[index]


def test_the_trial_is_the_one_that_the_docs_describe() -> None:
    plan = TrialPlan()
    assert (plan.devices, plan.total) == (50, 2_000)
    assert {plan.qos(number) for number in range(plan.messages)} == {1, 2}


def test_everything_that_the_script_says_happens_in_order_while_all_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.demo.bridge_trial.TICK_S", 0.001)
    plan = TrialPlan(devices=6, messages=20, seconds=0.3)
    everything, watched = Mock(), []
    devices = [getattr(everything, f"dev_{number}") for number in range(plan.devices)]
    perform(plan, everything.side, devices, lambda happening, _devices, _sent: watched.append(happening))
    calls = [happened for happened in everything.mock_calls if happened[0] != "side.send"]
    address = (everything.side.broker.host, everything.side.broker.port)
    assert calls == [
        call.dev_0.stop(), call.dev_5.stop(),
        call.side.broker.stop(), call.side.broker.start(),
        call.side.kill_bridge(0),
        call.side.broker.kill(), call.side.broker.start(),
        call.dev_0.start(*address), call.dev_5.start(*address),
        call.side.broker.freeze(), call.side.broker.thaw(),
        call.side.kill_bridge(1),
    ]  # fmt: skip
    assert everything.side.send.call_count == plan.total
    assert watched[-1] == "a bridge was killed"
