"""trials/slow_reader/result.py: each thing that must not be is noticed, so that a run that finds nothing has looked."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from trials.slow_reader.result import Result, failures

GOOD = Result(
    reading_ms=[10.0] * 100,
    beside_ms=[12.0] * 100,
    sent=200,
    missing=0,
    lost=0,
    sent_to_slow=5_000,
    outcomes=Counter(maxlen=3_900),
    is_throttled=True,
    is_progressing=False,
    reconnects=0,
)


def test_a_run_in_which_only_the_slow_one_loses_has_no_failure() -> None:
    assert failures(GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"missing": 1}, "missing"),
        ({"lost": 1}, "connections"),
        ({"beside_ms": [21.0] * 100}, "p99"),
        ({"outcomes": Counter()}, "nothing was dropped"),
        ({"outcomes": Counter(maxlen=1, delivered=1)}, "other outcomes"),
        ({"is_throttled": False}, "not told"),
        ({"is_progressing": True}, "catches up"),
    ],
)
@pytest.mark.promise("slow-reader")
def test_each_planted_failure_is_found(change: dict[str, Any], word: str) -> None:
    (found,) = failures(replace(GOOD, **change))
    assert word in found
