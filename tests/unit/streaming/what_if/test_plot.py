"""The plots of a comparison."""

from pathlib import Path
from xml.etree import ElementTree

from streaming.what_if.answer import WhatIfAnswer
from streaming.what_if.comparison import Comparison, Flow, GroupTally
from streaming.what_if.plot import bars, plots, write_svg

COMPARISON = Comparison(
    groups={"*": GroupTally(clients=1, before={"delivered": 40, "expired": 1}, after={"delivered": 20, "maxlen": 21})},
    flow={0: Flow(arrived_before=40, arrived_after=20), 3: Flow(lost_after=21)},
)
ANSWER = WhatIfAnswer(
    comparison=COMPARISON,
    since_ms=1_700_000_000_000,
    until_ms=1_700_000_240_000,
    width_ms=60_000,
    batches=4,
    records=90,
    is_recorded=True,
    took_s=1.0,
)


def test_each_outcome_has_two_bars() -> None:
    lines = list(bars(COMPARISON))
    assert len(lines) == 6
    assert lines[0].split() == ["delivered", "was", "▒" * 48, "40"]
    assert lines[1].split() == ["would", "be", "█" * 24, "20"]


def test_a_plot_has_a_point_for_each_part_of_the_period() -> None:
    arrived, lost = plots(ANSWER)
    assert [(line.name, len(line.segments[0].split()), line.last) for line in arrived.lines] == [
        ("was", 4, "0"),
        ("would be", 4, "0"),
    ]
    assert [line.last for line in lost.lines] == ["0", "0.35"]


def test_the_file_has_both_plots_and_refers_to_nothing_else(tmp_path: Path) -> None:
    write_svg(tmp_path / "plot.svg", ANSWER)
    found = ElementTree.parse(tmp_path / "plot.svg")
    text = "".join(found.getroot().itertext())
    assert all(part in text for part in ("Messages that arrive", "Messages that are lost", "would be", "2023-11-14 22:17:20"))
    assert len(found.findall(".//{*}polyline")) == 4
