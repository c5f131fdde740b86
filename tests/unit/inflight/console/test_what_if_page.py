from pathlib import Path

from inflight.console.what_if_page import plots
from streaming.what_if.answer import FILE, KeptAnswer, WhatIfAnswer, keep
from streaming.what_if.comparison import Comparison, Example, Flow, GroupTally
from tests.unit.inflight.console.console_client import ESCAPED, SCRIPT, ConsoleDriver, FakeHistory, unnamed_cells

LAMPS = GroupTally(clients=2, before={"delivered": 9}, after={"delivered": 7, "maxlen": 2}, changed={"delivered → maxlen": 2})
ANSWER = WhatIfAnswer(
    comparison=Comparison(
        groups={"lamp-*": LAMPS},
        left_out={"failed": 1},
        flow={0: Flow(arrived_before=60, arrived_after=30), 3: Flow(lost_after=120)},
        examples=[Example(client_id=SCRIPT, message_id="m-1", before="delivered", after="maxlen")],
    ),
    since_ms=1_700_000_000_000,
    until_ms=1_700_000_240_000,
    width_ms=60_000,
    batches=4,
    records=90,
    is_recorded=True,
    took_s=1.0,
)


def test_the_newest_answer_is_shown_by_group(tmp_path: Path) -> None:
    keep(tmp_path, KeptAnswer(asked_ms=1_700_000_300_000, policy=f"[session] # {SCRIPT}", answer=ANSWER))
    text = ConsoleDriver(tmp_path, FakeHistory()).get("/what-if")
    assert '>lamp-*</td><td data-label="messages">maxlen</td><td class="number" data-label="was">0</td>' in text
    assert text.count('data-label="messages">maxlen</td>') == 1, "one group is all clients, and each row is there once"
    assert "1 clients left out: their sessions failed in the replay" in text
    assert '"would be">2</td><td class="number" data-label="difference">+2</td>' in text
    assert unnamed_cells(text) == [[], []]
    assert f"[session] # {ESCAPED}" in text
    assert text.count("<polyline") == 4
    assert "2023-11-14 22:17:20.000 UTC" in text
    assert text.count("<script") == 1, "ours"


def test_a_plot_has_a_point_for_each_part_of_the_period() -> None:
    arrived, lost = plots(ANSWER)
    assert [(line.name, len(line.segments[0].split()), line.last) for line in arrived.lines] == [
        ("was", 4, "0"),
        ("would be", 4, "0"),
    ]
    assert [line.last for line in lost.lines] == ["0", "2"]


def test_without_an_answer_the_page_says_how_to_ask(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    assert "inflight what-if --policy other.toml" in console.get("/what-if")
    (tmp_path / FILE).write_text("{half")
    assert "inflight what-if --policy other.toml" in console.get("/what-if")
