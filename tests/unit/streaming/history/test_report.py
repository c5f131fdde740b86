"""The page of the report from plain numbers: one file, text stays text, and an empty time is said to be empty."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from streaming.history.report.measures import BUCKETS, Report, WorstClient, _width_s, measure
from streaming.history.report.page import render
from streaming.history.report.plots import latency
from streaming.history.store import Store
from tests.support.stored_history import T0, Topics, archive, at_offsets, ledger, letter, receipt, settings_in

START = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def report(steps: int = 3, **changes: object) -> Report:
    values: dict[str, object] = {
        "since": START,
        "until": START + timedelta(minutes=steps),
        "width_s": 60,
        "times": [START + timedelta(minutes=step) for step in range(steps)],
        **{name: [5] * steps for name in ("accepted", "delivered", "resends", "in_window", "waiting")},
        **{f"latency_p{quantile}_ms": [None, *[quantile * 10] * (steps - 1)] for quantile in (50, 95, 99)},
        "dead_letters": {"expired": 3, "rejected": 1},
        "worst": [WorstClient(client_id="<u>&$x$", resends=2, dead_letters=1, delivered=4, latency_p99_ms=1_234)],
        "overall_p50_ms": 500,
        "overall_p99_ms": 61_000,
        "clients": 2,
    }
    return Report(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def page() -> str:
    return render(report())


def test_the_page_is_one_file_that_refers_to_nothing_else(page: str) -> None:
    references = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert [reference for reference in references if not reference.startswith("#")] == []
    assert "@import" not in page
    assert "url(http" not in page


def test_ids_are_unique_in_the_page_so_that_no_plot_borrows_from_another(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_client_id_is_text_whatever_characters_it_has(page: str) -> None:
    assert "<td>&lt;u&gt;&amp;$x$</td>" in page
    assert "<u>" not in page


def test_every_plot_is_well_formed_svg(page: str) -> None:
    plots = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        ElementTree.fromstring(plot)


def test_a_bar_is_as_long_as_its_share_of_the_most_frequent_reason(page: str) -> None:
    assert re.findall(r'<td>(\w+)</td><td>(\d+)</td><td class="bar"><i style="width: (\d+)%">', page) == [
        ("expired", "3", "100"),
        ("rejected", "1", "33"),
    ]


def test_a_line_has_a_hole_where_nothing_was_delivered() -> None:
    drawn = latency(report(steps=4, latency_p50_ms=[10, None, 20, 30]))
    assert [len(line.segments) for line in drawn.lines] == [2, 1, 1]


def test_facts_are_readable_numbers() -> None:
    page = render(report(steps=3, accepted=[1_000_000, 0, 1]))
    assert "<dd>1,000,001</dd><dt>accepted</dt>" in page
    assert "<dd>0.50 s</dd><dt>latency p50</dt>" in page
    assert "<dd>1.02 min</dd><dt>latency p99</dt>" in page


def test_a_report_without_records_shows_empty_plots() -> None:
    nothing = {name: [0] for name in ("accepted", "delivered", "resends", "in_window", "waiting")}
    latency = {f"latency_p{quantile}_ms": [None] for quantile in (50, 95, 99)}
    page = render(report(steps=1, **nothing, **latency, dead_letters={}, worst=[], overall_p50_ms=None, overall_p99_ms=None))
    assert page.count("Nothing of the kind in this time.") == 5
    assert "<svg" not in page


@pytest.mark.parametrize("span_s", [0, 1, 60, 61, 3_600, 86_400, 30 * 86_400, 365 * 86_400])
def test_steps_are_round_and_not_too_many(span_s: int) -> None:
    assert _width_s(span_s * 1_000) * BUCKETS >= span_s


@pytest.fixture
def measured(tmp_path: Path, topics: Topics) -> Callable[[], Report]:
    """The report about two minutes from T0 on; some of it is archived, some only in Kafka."""
    settings = settings_in(tmp_path)
    steps = at_offsets(
        [
            ledger("c", "accepted", message_id="older", time_ms=T0 - 3_600_000),  # waits from before the report on
            ledger("c", "accepted", "sent", message_id="m1", packet_id=1),
            ledger("c", "resent", message_id="m1", packet_id=1, time_ms=T0 + 30_000),
            ledger("c", "finished", message_id="m1", outcome="delivered", time_ms=T0 + 60_000),
            ledger("d", "accepted", message_id="m2", time_ms=T0 + 60_000),
            ledger("d", "finished", message_id="m2", outcome="expired", time_ms=T0 + 119_000),
        ]
    )
    receipts = at_offsets(receipt("c", f"r{number}", time_ms=T0 + 60_000, took_ms=number) for number in range(1, 101))
    letters = at_offsets([letter("d", "m2", T0 + 119_000), letter("d", "old", T0 - 1)])
    archive(settings, *steps[:4], *receipts[:50])
    topics.add(*steps, *receipts, *letters)

    def ask() -> Report:
        with Store(settings, list) as store:
            return measure(store, since_ms=T0, until_ms=T0 + 120_000)

    return ask


def test_a_report_counts_what_happened_in_its_period(measured: Callable[[], Report]) -> None:
    found = measured()
    assert (sum(found.accepted), sum(found.delivered), sum(found.resends), found.clients) == (2, 1, 1, 2)
    assert found.dead_letters == {"expired": 1}
    assert (found.overall_p50_ms, found.overall_p95_ms, found.overall_p99_ms) == (50, 95, 99)
    assert [value for value in found.latency_p50_ms if value is not None] == [50]
    assert found.width_s * BUCKETS >= 120
    worst = [(one.client_id, one.dead_letters, one.resends, one.delivered, one.latency_p99_ms) for one in found.worst]
    assert worst == [("d", 1, 0, 0, None), ("c", 0, 1, 100, 99)]


def test_depths_begin_with_what_waited_before_the_report(measured: Callable[[], Report]) -> None:
    found = measured()
    assert (found.in_window[0], found.waiting[0]) == (1, 1)
    middle = found.times.index(datetime.fromtimestamp(T0 / 1_000, UTC) + timedelta(minutes=1))
    assert (found.in_window[middle], found.waiting[middle]) == (0, 2)
    assert found.waiting[-1] == 1


def test_a_report_about_nothing_is_empty(tmp_path: Path, topics: Topics) -> None:
    with Store(settings_in(tmp_path), list) as store:
        found = measure(store, since_ms=T0, until_ms=T0 + 60_000)
    assert found.is_empty
    assert (found.worst, found.overall_p50_ms, found.clients) == ([], None, 0)
