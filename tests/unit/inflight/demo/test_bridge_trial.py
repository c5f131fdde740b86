"""When `make demo-bridge` may say that all is well, and what it shows."""

import dataclasses
import io
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from inflight.demo.bridge_run import comparison, is_flawless, summary
from inflight.demo.bridge_trial import WINDOW, TrialPlan, TrialResult

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
