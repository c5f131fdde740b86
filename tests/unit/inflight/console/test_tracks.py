from dataclasses import replace
from datetime import UTC, datetime

from inflight.console.tracks import BatchTrack, Sample, SampleTrack
from inflight.status.measurements import TopicStatus
from streaming.engine.progress import BatchProgress
from tests.unit.inflight.status.test_findings import KAFKA, WELL

TOPIC = "inflight.messages"
MIDNIGHT_S = 1_800_000_000.0


def sample(at_s: float, end: int = 0) -> Sample:
    kafka = replace(KAFKA, measured_s=at_s, topics=(TopicStatus(name=TOPIC, end=end),))
    return Sample(at_s=at_s, seen=replace(WELL, kafka=kafka))


def batch(at_s: float, duration_ms: int, **resends: int) -> BatchProgress:
    started = datetime.fromtimestamp(MIDNIGHT_S + at_s, UTC).isoformat()
    return BatchProgress(batch_id=int(at_s), started=started, duration_ms=duration_ms, resends=resends)


def test_one_sample_is_kept_for_each_step_and_the_newest() -> None:
    track = SampleTrack(window_s=3_600.0, step_s=15.0)
    for at_s in range(0, 41, 2):
        track.add(sample(float(at_s)))
    assert [kept.at_s for kept in track.samples] == [0.0, 16.0, 32.0, 40.0]


def test_the_samples_of_any_time_need_bounded_memory() -> None:
    track = SampleTrack(window_s=3_600.0, step_s=15.0)
    for at_s in range(0, 4 * 3_600, 2):
        track.add(sample(float(at_s)))
    assert len(track.samples) <= 3_600 / 15 + 1
    assert track.samples[-1].at_s - track.samples[0].at_s > 3_600 - 16


def test_a_burst_between_two_kept_samples_is_in_their_rate() -> None:
    track = SampleTrack(window_s=3_600.0, step_s=15.0)
    for at_s, end in (0, 0), (2, 0), (4, 160), (16, 160), (18, 160):
        track.add(sample(float(at_s), end))
    assert [kept.records for kept in track.samples] == [{}, {TOPIC: 10.0}, {TOPIC: 0.0}]


def test_without_a_step_every_sample_is_kept() -> None:
    track = SampleTrack(window_s=10.0)
    for at_s in range(20):
        track.add(sample(float(at_s)))
    assert [kept.at_s for kept in track.samples] == [float(at_s) for at_s in range(9, 20)]


def test_the_longest_batch_of_a_step_is_kept_with_all_resends() -> None:
    track = BatchTrack(window_s=60.0, step_s=15.0)
    first = [batch(1, 300, reconnect=1), batch(3, 900, reconnect=2), batch(5, 400, retry_interval=4)]
    track.add(first)
    track.add([*first, batch(20, 100)])
    assert [(kept.duration_ms, kept.resends) for kept in track.batches] == [
        (900, {"reconnect": 3, "retry_interval": 4}),
        (100, {}),
    ]


def test_old_batches_are_dropped() -> None:
    track = BatchTrack(window_s=60.0, step_s=15.0)
    for at_s in range(0, 600, 5):
        track.add([batch(at_s, 100)])
    assert len(track.batches) == 60 / 15 + 1
