"""The plots of a comparison."""

from pathlib import Path

from streaming.what_if.answer import WhatIfAnswer
from streaming.what_if.comparison import Comparison, Flow, GroupTally
from streaming.what_if.plot import bars, write_svg

COMPARISON = Comparison(
    groups={"*": GroupTally(clients=1, before={"delivered": 40, "expired": 1}, after={"delivered": 20, "maxlen": 21})},
    flow={0: Flow(arrived_before=40, arrived_after=20), 3: Flow(lost_after=21)},
)


def test_each_outcome_has_two_bars() -> None:
    lines = list(bars(COMPARISON))
    assert len(lines) == 6
    assert lines[0].split() == ["delivered", "was", "▒" * 48, "40"]
    assert lines[1].split() == ["would", "be", "█" * 24, "20"]


def test_the_plot_over_the_period_has_both_sides(tmp_path: Path) -> None:
    answer = WhatIfAnswer(
        comparison=COMPARISON,
        since_ms=1_700_000_000_000,
        until_ms=1_700_000_240_000,
        width_ms=60_000,
        batches=4,
        records=90,
        is_recorded=True,
        took_s=1.0,
    )
    write_svg(tmp_path / "plot.svg", answer)
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert ("would be" in text, "lost, messages / s" in text) == (True, True)
