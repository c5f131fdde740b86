"""Chooses the plots of the first page. Their data are the samples of `Live` and the engine's progress.jsonl."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from inflight.console.tracks import Sample, ended_s
from inflight.status.measurements import Measurements, SessionTotals
from streaming.engine.progress import BatchProgress
from streaming.history.plots import MAX_GAP_S, Plot, Points, plot

_APPENDS: Final = ("inflight_gateway_append_seconds", "inflight_bridge_append_seconds")
_PUBLISHES: Final = ("inflight_gateway_publishes_sent_total", "inflight_gateway_fast_publishes_sent_total")
_MINUTE_S: Final = 60.0
_COUNT_GAP_S: Final = 300.0
RESEND_CAUSES: Final = {"retry_interval": "no answer", "reconnect": "reconnect"}
"""Labels of the causes of resends, by the engine's names (streaming/engine/progress.py)."""


def charts(
    samples: Sequence[Sample],
    batches: Sequence[BatchProgress],
    sessions: SessionTotals | None,
    *,
    until_s: float,
    window_s: float,
    max_gap_s: float = MAX_GAP_S,
) -> tuple[Plot, ...]:
    """Returns the plots.

    Args:
        sessions: The newest totals.
        until_s: The right edge, in seconds since 1970.
        window_s: The time that the plots show.
        max_gap_s: Points with a larger gap are not joined.
    """
    ended = [(ended_s(batch), batch) for batch in batches]
    topics = samples[-1].records if samples else {}
    counts = _counts(samples, sessions, until_s)

    def draw(title: str, unit: str, *series: tuple[str, Points], max_gap_s: float = max_gap_s) -> Plot:
        return plot(title, unit, series, until_s=until_s, window_s=window_s, max_gap_s=max_gap_s)

    return (
        draw(
            "Records appended",
            "a second",
            *((name.rpartition(".")[2], [(s.at_s, s.records[name]) for s in samples if name in s.records]) for name in topics),
        ),
        draw(
            "PUBLISH packets to devices",
            "a second",
            ("all", _rates(samples, _PUBLISHES[0])),
            ("fast path", _rates(samples, _PUBLISHES[1])),
        ),
        draw(
            "Micro-batches",
            "seconds each",
            ("whole", [(at_s, batch.duration_ms / 1_000) for at_s, batch in ended]),
            ("of these, work", [(at_s, batch.add_batch_ms / 1_000) for at_s, batch in ended]),
        ),
        draw("Appends confirmed by Kafka", "ms, mean", ("append", _append_ms(samples))),
        draw("Records that wait for the engine", "records", ("waiting", _waiting(samples))),
        draw(
            "In the sessions",
            "messages",
            ("in flight", [(at_s, found.inflight) for at_s, found in counts]),
            ("queued", [(at_s, found.queued) for at_s, found in counts]),
            max_gap_s=max(max_gap_s, _COUNT_GAP_S),  # minutes may pass between two counts
        ),
    )


def resends(batches: Sequence[BatchProgress], *, until_s: float, window_s: float) -> dict[str, int]:
    """Returns how many messages were sent again in the time of the plots, by cause."""
    found = dict.fromkeys(RESEND_CAUSES, 0)
    for batch in batches:
        if ended_s(batch) > until_s - window_s:
            for trigger, count in batch.resends.items():
                found[trigger] = found.get(trigger, 0) + count
    return found


def waiting(seen: Measurements) -> int:
    """Returns the records that the engine has not read."""
    return sum(topic.waiting or 0 for topic in seen.kafka.topics)


def _waiting(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(sample.at_s, waiting(sample.seen)) for sample in samples if sample.seen.kafka.error is None]


def _counts(samples: Sequence[Sample], newest: SessionTotals | None, now_s: float) -> list[tuple[float, SessionTotals]]:
    """Returns (time of the count, totals), each count once."""
    seen = [(sample.at_s, sample.seen.sessions) for sample in samples]
    return sorted({round(at_s - found.age_s): found for at_s, found in [*seen, (now_s, newest)] if found is not None}.items())


def _growth(samples: Sequence[Sample], name: str) -> Iterator[tuple[float, float, float]]:
    """Yields (time, seconds, growth) between samples. A counter that fell was restarted, and is left out."""
    for before, now in pairwise(samples):
        if name in before.metrics and name in now.metrics and now.metrics[name] >= before.metrics[name]:
            yield now.at_s, now.at_s - before.at_s, now.metrics[name] - before.metrics[name]


def _rates(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    return [(at_s, grown / passed_s) for at_s, passed_s, grown in _growth(samples, name) if 0 < passed_s < _MINUTE_S]


def _append_ms(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Returns the mean append time in milliseconds, where something was appended."""
    count: dict[float, float] = {}
    total_s: dict[float, float] = {}
    for name in _APPENDS:
        for found, suffix in (count, "_count"), (total_s, "_sum"):
            for at_s, _, grown in _growth(samples, name + suffix):
                found[at_s] = found.get(at_s, 0.0) + grown
    return [(at_s, 1_000 * total_s[at_s] / number) for at_s, number in sorted(count.items()) if number and at_s in total_s]
