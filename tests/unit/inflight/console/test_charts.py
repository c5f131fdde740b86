import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from inflight.console import charts as charts_module
from inflight.console.charts import charts, waiting
from inflight.console.live import WINDOW_S
from inflight.console.tracks import Sample
from inflight.status.measurements import Measurements, TopicStatus
from streaming.engine.progress import BatchProgress
from streaming.history.plots import Plot
from tests.unit.inflight.status.test_findings import SESSIONS, WELL

NOW_S = 1_000_000.0
TOPICS = (("inflight.messages", 5), ("inflight.events", 2), ("inflight.uplink", None))


def sample(ago_s: float, metrics: dict[str, float] | None = None, seen: Measurements = WELL) -> Sample:
    return Sample(at_s=NOW_S - ago_s, seen=seen, records={"inflight.messages": 2.5}, metrics=metrics or {})


def by_title(*samples: Sample, batches: tuple[BatchProgress, ...] = ()) -> dict[str, Plot]:
    return {plot.title: plot for plot in charts(samples, batches, None, until_s=NOW_S, window_s=WINDOW_S)}


def lines(plot: Plot) -> dict[str, str]:
    return {line.name: line.last for line in plot.lines}


def points(plot: Plot, name: str) -> int:
    return sum(len(set(piece.split())) for line in plot.lines if line.name == name for piece in line.segments)


def test_without_measurements_all_plots_are_empty() -> None:
    plots = by_title()
    assert len(plots) == 6
    assert all(not plot.lines for plot in plots.values())


def test_counters_become_rates_and_one_that_began_again_is_left_out() -> None:
    name = "inflight_gateway_publishes_sent_total"
    found = by_title(*(sample(ago_s, {name: value}) for ago_s, value in ((8, 10), (6, 30), (4, 5), (2, 25))))
    plot = found["PUBLISH packets to devices"]
    assert lines(plot) == {"all": "10"}
    assert points(plot, "all") == 2


def test_appends_are_a_mean_over_gateways_and_bridges() -> None:
    gateway, bridge = "inflight_gateway_append_seconds", "inflight_bridge_append_seconds"
    first = {f"{gateway}_count": 1.0, f"{gateway}_sum": 1.0, f"{bridge}_count": 0.0, f"{bridge}_sum": 0.0}
    then = {f"{gateway}_count": 3.0, f"{gateway}_sum": 1.01, f"{bridge}_count": 2.0, f"{bridge}_sum": 0.03}
    plot = by_title(sample(6, first), sample(4, then), sample(2, then))["Appends confirmed by Kafka"]
    assert lines(plot) == {"append": "10"}
    assert points(plot, "append") == 1


def test_the_plot_of_waiting_records_says_what_the_tile_says() -> None:
    seen = replace(WELL, kafka=replace(WELL.kafka, topics=tuple(TopicStatus(name=n, end=9, waiting=n_) for n, n_ in TOPICS)))
    away = replace(WELL, kafka=replace(WELL.kafka, error="away", topics=()))
    plot = by_title(sample(6, seen=away), sample(4, seen=seen))["Records that wait for the engine"]
    assert lines(plot) == {"waiting": str(waiting(seen))} == {"waiting": "7"}
    assert points(plot, "waiting") == 1, "nothing is known while Kafka is away"


def test_each_line_of_a_plot_has_its_own_colour() -> None:
    css = Path(charts_module.__file__).with_name("static").joinpath("console.css").read_text(encoding="utf-8")
    for theme in css.split("@media")[:2]:
        colours = re.findall(r"--s\d: (#\w+)", theme)
        assert len(colours) == len(set(colours)) == 8, "as many as there are topics with a line"


def test_micro_batches_are_plotted_from_before_the_first_page() -> None:
    started = datetime.fromtimestamp(NOW_S - 100, UTC).isoformat()
    batch = BatchProgress(batch_id=1, started=started, duration_ms=700, add_batch_ms=400)
    found = by_title(batches=(batch,))
    assert lines(found["Micro-batches"]) == {"whole": "0.7", "of these, work": "0.4"}


def test_session_totals_are_plotted_once() -> None:
    def seen(age_s: float, queued: int) -> Measurements:
        return replace(WELL, sessions=replace(SESSIONS, age_s=age_s, queued=queued))

    found = by_title(*(sample(ago_s, seen=seen(age_s, 7)) for ago_s, age_s in ((8, 20), (6, 22))), sample(2, seen=seen(1, 9)))
    assert lines(found["In the sessions"])["queued"] == "9"
    assert points(found["In the sessions"], "queued") == 2
