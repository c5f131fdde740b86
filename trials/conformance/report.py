"""The table at the end of `make conformance`, and the report in JSON."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from trials.conformance.outcome import Outcome, Verdict

_MESSAGE: Final = 300
"""Characters of a message that the table shows; the report has all of it."""


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints a row for each suite and for each test that has not passed. The tables are Markdown, as in conformance.md."""
    console.print(_totals(outcomes))
    if not all(outcome.verdict is Verdict.PASSED for outcome in outcomes):
        console.print(_failures(outcomes))
    unexplained = sum(outcome.needs_explanation for outcome in outcomes)
    console.print(f"{unexplained} failures without a clause", style="bold red" if unexplained else "bold green")


def _totals(outcomes: Sequence[Outcome]) -> Table:
    table = Table("suite", "tests", "passed", "of them repeated", "failed, with a clause", "failed", "seconds", box=box.MARKDOWN)
    for suite in dict.fromkeys(outcome.suite for outcome in outcomes):
        ours = [outcome for outcome in outcomes if outcome.suite == suite]
        verdicts = Counter(outcome.verdict for outcome in ours)
        failed = sum(outcome.needs_explanation for outcome in ours)
        passed = verdicts[Verdict.PASSED]
        repeated = sum(outcome.verdict is Verdict.PASSED and outcome.attempts > 1 for outcome in ours)
        counts = (len(ours), passed, repeated, len(ours) - passed - failed, failed)
        table.add_row(suite, *map(str, counts), f"{sum(outcome.seconds for outcome in ours):.0f}")
    return table


def _failures(outcomes: Sequence[Outcome]) -> Table:
    table = Table("suite", "test", "clause", "what the suite says", box=box.MARKDOWN)
    for outcome in outcomes:
        if outcome.verdict is not Verdict.PASSED:
            said = " ".join(outcome.message.split())
            said = said if len(said) <= _MESSAGE else f"{said[:_MESSAGE]}…"
            table.add_row(outcome.suite, outcome.test, outcome.clause or outcome.verdict, said.replace("[", r"\["))
    return table


def write(outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes every outcome as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)) + b"\n")
